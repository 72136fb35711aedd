"""Guard: every way in which a command ends gets its exit status, and one line where something is wrong.

Exit status 1 means that a case fails. Python and click give it to exceptions, too, so none of them gets past here.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TextIO

import click

from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.report.printing import safe

WRONG: Final = 2
"""Exit status where an argument or a file is wrong, or an output cannot be written."""
INTERNAL_ERROR: Final = 70
"""Exit status for a defect of fuzz-attn: EX_SOFTWARE of sysexits.h."""
INTERRUPTED: Final = 130
"""Exit status of shells for a program that was interrupted from the keyboard."""
SHOWN_CHARACTERS: Final = 1000
"""Characters of an error that are printed: an argument may have thousands."""


class Program(click.Group):
    """A group of commands, none of which ends with a traceback or with an exit status that means another thing."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command and exit; a text that standard output does not take changes the exit status to 2."""
        run = partial(super().main, args, prog_name, complete_var, standalone_mode=False, **extra)
        if not standalone_mode:
            return run()
        with sturdy_streams() as stdout:
            try:
                sys.exit(guarded(run))
            finally:
                stdout.flush()
                if stdout.error:
                    complain(f"standard output cannot be written: {stdout.error}")
                    sys.exit(WRONG)


def guarded(call: Callable[[], Any]) -> Any:
    """Return what a call returns; exits for an exception with one line on standard error and a status that is not 1."""
    try:
        return call()
    except FuzzAttnError as error:
        complain(str(error))
        sys.exit(WRONG)
    except OSError as error:
        place = f"{error.filename}: " if error.filename is not None else ""
        complain(f"{place}{error.strerror or error}")
        sys.exit(WRONG)
    except MemoryError:
        complain("no memory is left")
        sys.exit(WRONG)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(WRONG)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except Exception as error:  # noqa: BLE001 - Python would print a traceback and exit with 1
        complain(f"internal error: {_in_one_line(error)}; please report it with {_saved_traceback(error)}")
        sys.exit(INTERNAL_ERROR)


def complain(text: str) -> None:
    """Print one line on standard error, without what is in the middle of a long one; a broken one is ignored."""
    shown = safe(" ".join(text.splitlines()))
    half = SHOWN_CHARACTERS // 2
    if len(shown) > SHOWN_CHARACTERS:
        shown = f"{shown[:half]} ... {shown[-half:]}"
    with contextlib.suppress(OSError, ValueError):
        click.echo(f"fuzz-attn: {shown}", err=True)


def _in_one_line(error: BaseException) -> str:
    return " ".join("".join(traceback.format_exception_only(error)).split())


def _saved_traceback(error: BaseException) -> str:
    """Return the name of a new file with the traceback, or where none can be written the traceback."""
    text = "".join(traceback.format_exception(error))
    try:
        number, name = tempfile.mkstemp(prefix="fuzz-attn-error-", suffix=".txt")
        with open(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:
        return f"this traceback: {text}"
    return name


class SturdyStream:
    """A text stream that drops what cannot be written and keeps the reason of the first error.

    A run goes on where its output is a full disk or a pipe that was closed: what it finds is saved.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error = ""

    def write(self, text: str) -> int:
        """Write a text if the stream takes it; return its length."""
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream if it takes what was written."""
        self._try(self._stream.flush)

    def _try(self, call: Callable[[], object]) -> None:
        if self.error:
            return
        try:
            call()
        except (OSError, ValueError) as error:  # ValueError: it was closed
            self.error = getattr(error, "strerror", None) or str(error)
            self._discard()

    def _discard(self) -> None:
        """Send to nowhere what the stream still holds: Python would write it at its end, and exit with 120."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def sturdy_streams() -> Iterator[SturdyStream]:
    """Replace standard output and error by streams that raise no errors and print what they cannot encode as escapes.

    Yields that of standard output. Where a standard stream is closed, a file of the command would get its number: it is
    opened on nothing.
    """
    for number in range(3):
        _open(number)
    before = sys.stdout, sys.stderr
    stdout, stderr = (_sturdy(stream) for stream in before)
    sys.stdout, sys.stderr = stdout, stderr
    try:
        yield stdout
    finally:
        sys.stdout, sys.stderr = before


def _open(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        os.open(os.devnull, os.O_RDWR)


def _sturdy(stream: TextIO | None) -> SturdyStream:
    """Return a stream that raises no errors; None is a stream that was closed when Python started."""
    if stream is None:
        sturdy = SturdyStream(io.StringIO())
        sturdy.error = "it is closed"
        return sturdy
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return SturdyStream(stream)
