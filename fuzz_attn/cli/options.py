"""What the commands share: types of option values, the options of a target, and the exit status."""

from __future__ import annotations

import math
import re
import secrets
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from fuzz_attn.api import LARGEST, LARGEST_NUMBER
from fuzz_attn.backends import BACKEND_NAMES
from fuzz_attn.binding.binding import Binding, read_binding
from fuzz_attn.cli.guard import guarded
from fuzz_attn.engine.events import Part
from fuzz_attn.engine.run_plan import available_cores
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.operations.registry import FAMILIES
from fuzz_attn.settings import DEFAULT_MEMORY, bytes_of

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Decorator = Callable[[Decorated], Decorated]


class Place(click.ParamType[Path]):
    """A file or a folder; an empty text, as of a shell's variable that is not set, is neither."""

    def __init__(self, *, folder_only: bool = False) -> None:
        self._kind: click.ParamType[Path] = click.Path(file_okay=not folder_only, path_type=Path)
        self.name = self._kind.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path."""
        if not str(value):
            self.fail("the path is empty, as that of a variable that is not set", param, ctx)
        return self._kind.convert(_utf8(self, value, param, ctx), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return how a shell completes a path."""
        return self._kind.shell_complete(ctx, param, incomplete)


class Words(click.ParamType[str]):
    """A text that a file can hold: UTF-8."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text."""
        return _utf8(self, value, param, ctx)


def _utf8(kind: click.ParamType[Any], value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
    """Return a value as a text that JSON can hold and that the system takes as a name."""
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        kind.fail(f"{text!r} must be UTF-8", param, ctx)
    if "\0" in text:
        kind.fail(f"{text!r} must have no zero bytes", param, ctx)
    return text


FILE: Final[click.ParamType[Path]] = Place()
"""A file or folder. What is no file is refused where it would be read (:mod:`fuzz_attn.foreign_files`)."""
OUTPUT_DIRECTORY: Final[click.ParamType[Path]] = Place(folder_only=True)
WORDS: Final[click.ParamType[str]] = Words()


def exits(command: Callable[..., int]) -> Callable[..., None]:
    """Return a click callback that exits with the status that the command returns.

    An exception gives one line on standard error and the status that :mod:`fuzz_attn.cli.guard` has for it.
    """

    @wraps(command)
    def callback(**arguments: Any) -> None:
        sys.exit(guarded(lambda: command(**arguments)))

    return callback


class Workers(click.ParamType[int]):
    """A number of worker processes; ``auto`` is one for each core that this process may use."""

    name = "auto|N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of workers."""
        if value == "auto":
            return available_cores()
        try:
            workers = int(value)
        except ValueError:
            workers = 0
        if not 1 <= workers <= LARGEST["workers"]:
            self.fail(f"{value!r} must be 'auto' or a number from 1 to {LARGEST['workers']}", param, ctx)
        return workers


class Seconds(click.ParamType[float]):
    """A finite time above 0."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number of seconds."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            self.fail(f"{value!r} must be a finite number above 0", param, ctx)
        return seconds


class Output(click.ParamType[Path | str]):
    """A folder, as a path, or an address that fsspec knows, such as s3://bucket/folder, as text."""

    name = "dir"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        """Return the folder or the address."""
        if isinstance(value, str) and "://" in value:
            return _utf8(self, value, param, ctx)
        return OUTPUT_DIRECTORY.convert(value, param, ctx)


class Shard(click.ParamType[Part]):
    """One part of several: ``2/4``."""

    name = "i/n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Part:
        """Return the part."""
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", str(value))
        number, of = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= number <= of:
            self.fail(f"{value!r} must be i/n with i from 1 to n", param, ctx)
        return Part(number, of)


class Memory(click.ParamType[int]):
    """A size in bytes, with a unit: ``512M``, ``8G``; ``none`` is no limit."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes."""
        if isinstance(value, int):
            return value
        try:
            return bytes_of(value)
        except FuzzAttnError as error:
            self.fail(str(error), param, ctx)


def target_option(default: str, name: str = "target", *, multiple: bool = False) -> Decorator[Any]:
    """Return the option ``--target``; its help names the default."""
    words = f"A built-in name, module:function, path.py:function or entry point. Default: {default}."
    words += " Can be repeated." * multiple
    return click.option("--target", name, type=WORDS, metavar="T", multiple=multiple, help=words)


def stated_binding(path: Path | None) -> Binding | None:
    """Return the binding that a file states, None without a file."""
    return None if path is None else read_binding(path)


memory_option: Final = click.option(
    "--memory",
    type=Memory(),
    metavar="SIZE",
    default=DEFAULT_MEMORY,
    show_default=True,
    help="Memory of each worker, such as 512M; none is no limit.",
)
family_option: Final = click.option(
    "--family",
    type=click.Choice(tuple(FAMILIES)),
    metavar="FAMILY",
    help=f"Kernel family: {', '.join(FAMILIES)}. Default: the one that fits the signature. Without --target: this "
    "project's own kernel.",
)
binding_option: Final = click.option(
    "--binding", type=FILE, metavar="FILE", help="TOML file that says how the target is called."
)
backend_option: Final = click.option(
    "--backend",
    type=click.Choice(BACKEND_NAMES),
    default="auto",
    show_default=True,
    help="Where Triton kernels run. auto: cuda where torch sees a GPU, else simulator.",
)
seed_option: Final = click.option(
    "--seed",
    type=click.IntRange(0, LARGEST_NUMBER),
    metavar="N",
    default=lambda: secrets.randbelow(2**32),
    help="Seed of the drawn cases. Default: a random one, which is printed.",
)
workers_option: Final = click.option(
    "--workers",
    type=Workers(),
    default="auto",
    show_default=True,
    help="Worker processes. auto: one for each core that this process may use.",
)
markdown_option: Final = click.option(
    "--markdown",
    type=FILE,
    metavar="FILE",
    help="Append a summary in Markdown, as for $GITHUB_STEP_SUMMARY.",
)
annotations_option: Final = click.option(
    "--annotations", is_flag=True, help="Also print each failure as an annotation of GitHub Actions."
)
out_option: Final = click.option("--out", type=OUTPUT_DIRECTORY, metavar="DIR", help="Output directory.")
