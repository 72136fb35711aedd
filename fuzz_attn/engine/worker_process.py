"""WorkerProcess: the parent's end of a worker. Starts the process, exchanges messages, reports its death.

The two ends share a socket pair (``multiprocessing.connection``), whose number is the worker's last argument; each
message is one JSON document. Standard input is empty and everything printed goes to a file, so a target can disturb
neither.

Why no ready-made pool: one message in each direction, a time limit on the wait and a process group to kill are all
that is needed. ``multiprocessing.Process`` imports the parent's main module again, and a pool such as pebble's starts
a new interpreter after each crash. Importing torch and the target takes seconds, and a target that crashes does so at
every step of shrinking, so a worker answers from forks of the process that is set up (:mod:`fuzz_attn.engine.worker`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import IO, Final, Generic, TypeVar

import msgspec

from fuzz_attn.backends.gpus import gpu_environment
from fuzz_attn.engine.messages import DEVICE_LOST

SHOWN_CHARACTERS: Final = 1500
"""How much of the last output of a dead worker is shown."""
KEPT_BYTES: Final = 2**20
"""How much of the output of a living worker is kept."""

CALLER: Final = Path(__file__).parents[1] / "targets" / "target.py"
"""The file whose frame calls the target."""

Reply = TypeVar("Reply")


class WorkerProcess(Generic[Reply]):
    """A running worker process.

    ``command`` starts it, ``decoder`` reads its messages, and ``index`` spreads workers over the GPUs.
    """

    def __init__(self, command: Sequence[str], decoder: msgspec.json.Decoder[Reply], index: int = 0) -> None:
        self._decoder = decoder
        self._printed: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by end()
        self.connection, others = Pipe()
        with others:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [*command, str(others.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                pass_fds=[others.fileno()],
                env={**os.environ, "PYTHONPATH": _search_path(), "OMP_NUM_THREADS": "1", **gpu_environment(index)},
                process_group=0,  # the parent handles an interrupt from the keyboard
            )

    @property
    def pid(self) -> int:
        """The number of the process and of its process group."""
        return self._process.pid

    @property
    def printed_bytes(self) -> int:
        """How much of the worker's output is kept at the moment."""
        return os.fstat(self._printed.fileno()).st_size

    def send(self, message: msgspec.Struct) -> None:
        """Send a message. Sending to a dead worker does nothing; the next receive reports the death."""
        if self.printed_bytes > KEPT_BYTES:
            self._forget_output()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send_bytes(msgspec.json.encode(message))

    def receive(self, limit: float | None = None) -> Reply | None:
        """Return the next message, None at the worker's end.

        ``limit`` is a time of ``time.monotonic``; raises :class:`TimeoutError` when it passes first.
        """
        try:
            if limit is not None and not self.connection.poll(max(0.0, limit - time.monotonic())):
                raise TimeoutError
            return self._decoder.decode(self.connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            return None

    def exit_code(self) -> int:
        """Wait for the process and return how it ended: its status, or minus the signal that killed it."""
        return self._process.wait()

    def death(self, code: int) -> str:
        """Return in words how the process, or a fork of it, died, with the end of what it printed."""
        printed = self.last_output()
        self._forget_output()
        how = f"died of {_signal_name(-code)}" if code < 0 else f"ended its process with status {code}"
        if code == DEVICE_LOST:
            how = "broke the device for its process"
        return f"{how}; it last printed:\n{printed}" if printed else how

    def last_output(self) -> str:
        """Return the end of what the worker printed."""
        self._printed.seek(0)
        return _without_noise(self._printed.read().decode(errors="replace"))[-SHOWN_CHARACTERS:]

    def _forget_output(self) -> None:
        self._printed.seek(0)  # moves the worker's position too: both ends share one open file
        self._printed.truncate()

    def kill(self) -> None:
        """Kill the process with its forks; messages that it has sent can still be received."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        """Kill the process with its forks and release everything."""
        self.kill()
        self.connection.close()
        self._printed.close()


def _signal_name(number: int) -> str:
    """Return the name of a signal; real-time signals have only numbers."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _without_noise(printed: str) -> str:
    """Return output without our own frames below the target's and without the list of extension modules."""
    targets_frames, _, _ = printed.partition(f'  File "{CALLER}"')
    lines = targets_frames.splitlines()
    return "\n".join(line for line in lines if not line.startswith("Extension modules:")).strip()


def _search_path() -> str:
    """Return this process's import path, so that the worker finds the same targets."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)
