"""IsolatedWorker: a target in a child process, so that its crash, hang or poisoned device is a verdict, not the end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self, TypeAlias

import msgspec

from fuzz_attn.backends.gpus import gpu_environment
from fuzz_attn.engine.messages import DEVICE_LOST, Answer, Died, Order, Ready, Refused, Setup, Unsupported
from fuzz_attn.errors import BackendError, FuzzAttnError, TargetError
from fuzz_attn.oracle.verdict import Kind, Verdict

START_SECONDS: Final = 180.0
"""A worker imports torch, Triton and the target within this time, or is given up."""
LAUNCH_SECONDS: Final = 120.0
"""A launch that takes longer hangs."""
SHOWN_CHARACTERS: Final = 1500
"""How much of what a dead worker printed is told."""
KEPT_BYTES: Final = 2**20
"""How much of what a living worker prints is kept."""

COMMAND: Final = (sys.executable, "-P", "-m", "fuzz_attn.engine.worker")
"""What starts a child."""

CALLER: Final = Path(__file__).parents[1] / "targets" / "target.py"
"""The file whose frame calls the target."""

Said: TypeAlias = Ready | Refused | Answer | Unsupported | Died


class OutOfTime(Exception):  # noqa: N818 - not an error: the budget ended while a launch was running
    """The caller's deadline passed while a launch was running; its worker was ended and the case has no verdict."""


class IsolatedWorker:
    """Judges cases in a child process that is replaced when it dies.

    ``index`` tells workers that run side by side apart: each takes its turn among the GPUs. Raises
    :class:`FuzzAttnError` on entering where the target or backend cannot be set up.
    """

    def __init__(self, setup: Setup, *, launch_seconds: float = LAUNCH_SECONDS, index: int = 0) -> None:
        self.setup = setup
        self.index = index
        self.launch_seconds = launch_seconds
        self.deaths = 0
        self.fallback = ""
        """Why the best backend was given up for the interpreter; empty while it was not."""
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - lives as long as we
        self._pending = b""

    def __enter__(self) -> Self:
        """Start the child and wait until it is set up."""
        try:
            self.ready = self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """End the child."""
        self._end()
        self._errors.close()

    def judge(self, order: Order, *, deadline: float | None = None) -> Answer:
        """Return the answer to an order; a death or a hang of the child answers as a verdict of that kind.

        ``deadline`` is on the clock of ``time.monotonic``; raises :class:`OutOfTime` when it passes first, and
        :class:`FuzzAttnError` where the harness itself failed.
        """
        try:
            return self._judged(order, deadline)
        except BaseException:
            self._end()  # whatever it still says would be taken for the answer to the next order
            raise

    def _judged(self, order: Order, deadline: float | None) -> Answer:
        if self._process is None:
            self.ready = self._start(deadline)
        limit = time.monotonic() + self.launch_seconds
        try:
            said = self._asked(order, limit if deadline is None else min(limit, deadline))
        except TimeoutError:
            if deadline is not None and deadline < limit:
                raise OutOfTime from None
            self._end()
            return self._failed("timeout", f"the launch did not end within {self.launch_seconds:.0f} s")
        if isinstance(said, Answer):
            return said
        if isinstance(said, Unsupported):
            self._fall_back(said.reason)
            return self._judged(order, deadline)
        if isinstance(said, Refused):
            raise FuzzAttnError(said.reason)
        return self._failed("crash", self._death(said.code if isinstance(said, Died) else self._exit_code()))

    def _fall_back(self, reason: str) -> None:
        """Go on in the interpreter with a kernel that the best backend cannot run; raise if a backend was asked for."""
        if self.setup.backend != "auto":
            raise BackendError(reason)
        self.fallback = reason
        self.setup = msgspec.structs.replace(self.setup, backend="interpreter")
        self._end()

    def _start(self, deadline: float | None = None) -> Ready:
        self._pending = b""
        self._errors.seek(0)
        self._errors.truncate()
        self._process = subprocess.Popen(  # noqa: S603 - our own call
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": _search_path(), "OMP_NUM_THREADS": "1", **gpu_environment(self.index)},
            process_group=0,  # an interrupt from the keyboard is ours to handle
        )
        limit = time.monotonic() + START_SECONDS
        try:
            said = self._asked(self.setup, limit if deadline is None else min(limit, deadline))
        except TimeoutError:
            if deadline is not None and deadline < limit:
                raise OutOfTime from None
            raise TargetError(f"target={self.setup.target!r} did not load within {START_SECONDS:.0f} s") from None
        if isinstance(said, Ready):
            return said
        if isinstance(said, Refused):
            raise FuzzAttnError(said.reason)
        code = said.code if isinstance(said, Died) else self._exit_code()
        self._end()
        raise TargetError(f"target={self.setup.target!r} {self._death(code)} while it was loaded")

    def _asked(self, message: msgspec.Struct, limit: float) -> Said | None:
        """Return what the child says to a message, None at its end; raises TimeoutError when the limit passes."""
        assert self._process is not None
        assert self._process.stdin is not None
        if os.fstat(self._errors.fileno()).st_size > KEPT_BYTES:
            self._errors.seek(0)  # moves the child's place too: it writes through the same one
            self._errors.truncate()
        try:
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        line = self._line(limit)
        said: Said | None = msgspec.json.decode(line, type=Said) if line else None
        return said

    def _line(self, limit: float) -> bytes:
        """Return the child's next line, empty at its end; raises TimeoutError when the limit passes."""
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._pending:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, limit - time.monotonic()))
            if not ready:
                raise TimeoutError
            chunk = os.read(descriptor, 2**16)
            if not chunk:
                return b""
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _failed(self, kind: Kind, message: str) -> Answer:
        return Answer(Verdict("oracle", kind, message))

    def _exit_code(self) -> int:
        """Return how the child ended, and forget it."""
        assert self._process is not None
        code = self._process.wait()
        self._end()
        return code

    def _death(self, code: int) -> str:
        """Return how a process died, with the end of what it printed."""
        self.deaths += 1
        self._errors.seek(0)
        printed = _without_noise(self._errors.read().decode(errors="replace"))
        self._errors.seek(0)
        self._errors.truncate()
        how = f"died of {_signal_name(-code)}" if code < 0 else f"ended its process with status {code}"
        if code == DEVICE_LOST:
            how = "broke the device for its process"
        return f"{how}; it last printed:\n{printed[-SHOWN_CHARACTERS:]}" if printed else how

    def _end(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._process = None


def _signal_name(number: int) -> str:
    """Return the name of a signal; those for real time have numbers alone."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _without_noise(printed: str) -> str:
    """Return what was printed without what hides the rest: our own frames below the target's, the extension modules."""
    targets_frames, _, _ = printed.partition(f'  File "{CALLER}"')
    lines = targets_frames.splitlines()
    return "\n".join(line for line in lines if not line.startswith("Extension modules:")).strip()


def _search_path() -> str:
    """Return this process's import path for the child, so that a target found here is found there."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)
