"""WorkerProcess: the parent's end of a worker. Starts the process, exchanges messages, reports its death.

The two ends share a socket pair (``multiprocessing.connection``), whose number is the worker's last argument; each
message is one JSON document. Standard input is empty and everything printed goes through a pipe of its own, so a target
can disturb neither.

Why no ready-made pool: one message in each direction, a time limit on the wait and a process group to kill are all
that is needed. ``multiprocessing.Process`` imports the parent's main module again, and a pool such as pebble's starts
a new interpreter after each crash. Importing torch and the target takes seconds, and a target that crashes does so at
every step of shrinking, so a worker answers from forks of the process that is set up
(:mod:`fuzz_attn.workers.worker`). Where a fork server runs (:mod:`fuzz_attn.workers.fork_service`), that process
itself is a fork.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Pipe
from typing import IO, Final, Generic, TypeVar

import msgspec

from fuzz_attn.backends.gpus import APART, control_of
from fuzz_attn.errors import ProcessError
from fuzz_attn.owners import without_callers
from fuzz_attn.workers.descendants import children_of, kill_with_descendants
from fuzz_attn.workers.fork_service import Fork, forked, worker_environment
from fuzz_attn.workers.launch_clock import Delays, delays_of
from fuzz_attn.workers.messages import CONNECTION_LOST, DEVICE_FULL, DEVICE_LOST

SHOWN_CHARACTERS: Final = 1500
"""How much of the last output of a dead worker is shown."""
LONGEST_MESSAGE: Final = 2**28
"""Bytes; what a target writes to the connection may look like the length of a longer one."""
END_SECONDS: Final = 5.0
"""A process that has closed its connection has this much time to end."""

_DEATHS: Final = {
    DEVICE_FULL: "found no memory left on the GPU",
    DEVICE_LOST: "broke the device for its process",
    CONNECTION_LOST: "closed or replaced the file descriptors of its process",
}
"""Exit statuses with a meaning, in words."""

Reply = TypeVar("Reply")
KEPT_BYTES: Final = 2**20
"""How much of the output is kept."""
_CHUNK_BYTES: Final = 2**16
"""What a pipe can hold on Linux."""
_LOOK_MILLISECONDS: Final = 1000
"""How often the thread looks whether it is to end, while something that the worker left behind keeps the pipe open."""


class WorkerProcess(Generic[Reply]):
    """A running worker process.

    ``command`` starts it, ``decoder`` reads its messages, and ``index`` spreads workers over the GPUs. The first
    ``apart`` orders are judged apart from a Multi-Process Service. ``end_signal`` is what a fork server sends the
    process when this one ends; others arrange that themselves. Raises :class:`ProcessError` where it cannot start.
    """

    def __init__(
        self,
        command: Sequence[str],
        decoder: msgspec.json.Decoder[Reply],
        index: int = 0,
        apart: int = 0,
        end_signal: int = signal.SIGKILL,
    ) -> None:
        self._decoder = decoder
        self._environment = {**worker_environment(index), APART: str(apart)}
        try:
            self._start(command, end_signal)
        except (OSError, RuntimeError, MemoryError) as error:  # no file, process, thread or memory is left
            raise ProcessError(f"a worker process cannot be started: {error}") from error

    def _start(self, command: Sequence[str], end_signal: int) -> None:
        self.printed = PrintedOutput()
        try:
            self.connection, others = Pipe()
            with others, self.printed.writer as output:
                files = others.fileno(), output.fileno()
                self._process = forked(command, self._environment, *files, end_signal) or self._started(command, *files)
        except BaseException:
            self.printed.writer.close()
            self.printed.close()
            raise

    def _started(self, command: Sequence[str], connection: int, output: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own command
            [*command, str(connection)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[connection],
            env=self._environment,
            process_group=0,  # the parent handles an interrupt from the keyboard
        )

    @property
    def pid(self) -> int:
        """The number of the process and of its process group."""
        return self._process.pid

    def send(self, message: msgspec.Struct) -> None:
        """Send a message. Sending to a dead worker does nothing; the next receive reports the death."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send_bytes(msgspec.json.encode(message))

    def receive(self, limit: float | None = None) -> Reply | None:
        """Return the next message, None at the worker's end.

        ``limit`` is a time of ``time.monotonic``; raises :class:`TimeoutError` when it passes first. A target that
        writes to the connection ends the worker.
        """
        try:
            if limit is not None and not self.connection.poll(max(0.0, limit - time.monotonic())):
                raise TimeoutError
            return self._decoder.decode(self.connection.recv_bytes(LONGEST_MESSAGE))
        except TimeoutError:
            raise
        except (EOFError, OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def exit_code(self) -> int:
        """Wait for the process and return how it ended: its status, or minus the signal that killed it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(END_SECONDS)
        self.kill()
        return CONNECTION_LOST

    def death(self, code: int, reason: str = "") -> str:
        """Return in words how the process, or a fork of it, died, with the end of what it printed."""
        printed = self.last_output()
        how = f"died of {_signal_name(-code)}" if code < 0 else f"ended its process with status {code}"
        how = reason or _DEATHS.get(code, how)
        return f"{how}; it last printed:\n{printed}" if printed else how

    def last_output(self) -> str:
        """Return the end of what the worker printed since the last call."""
        return _without_noise(self.printed.take())[-SHOWN_CHARACTERS:]

    def end_gpu_work(self) -> None:
        """Let the Multi-Process Service end the process's work on the GPU, which it shares with others."""
        control_of(self._environment).end_work_of(self.pid)

    def delays(self) -> Delays:
        """Return how long the threads of the process and its forks have waited for a processor."""
        return delays_of((self.pid, *children_of(self.pid)))

    def kill_forks(self) -> bool:
        """Kill the forks of the process; return whether there are any, and the system names them, as Linux does."""
        forks = children_of(self.pid)
        for fork in forks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(fork, signal.SIGKILL)
        return bool(forks)

    @property
    def started(self) -> int | None:
        """The number of the process, None where a fork server has not forked it yet, which is not waited for."""
        return self._process.started if isinstance(self._process, Fork) else self._process.pid

    def ask_to_end(self) -> bool:
        """Send SIGTERM to the process; return False, and want no more of it, where it has not started."""
        process = self.started
        if process is None:
            self._abandon()
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)
        return True

    def strike(self) -> None:
        """Kill the process's group and wait for nothing, so that a signal handler may do this."""
        process = self.started
        if process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)

    def kill(self) -> None:
        """Kill the process with all that it started; messages that it has sent can still be received."""
        process = self.started
        if process is None:
            self._abandon()
            return
        if self._process.poll() is None:
            kill_with_descendants(process)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it
            self._process.wait(END_SECONDS)

    def _abandon(self) -> None:
        assert isinstance(self._process, Fork)
        self._process.abandon()

    def end(self) -> None:
        """Kill the process with its forks and release everything."""
        self.kill()
        self.connection.close()
        self.printed.close()


def _signal_name(number: int) -> str:
    """Return the name of a signal; real-time signals have only numbers."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _without_noise(printed: str) -> str:
    """Return output without our own frames below the target's and without the list of extension modules."""
    lines = without_callers(printed).splitlines()
    return "\n".join(line for line in lines if not line.startswith("Extension modules:")).strip()


class PrintedOutput:
    """The output of a process and its forks, which write to :attr:`writer`, the end of a pipe.

    The process that starts the other one closes its own copy of the writer. The output ends when the last copy is
    closed.

    A thread reads it, so that the process can go on printing whatever this process waits for. A process that prints
    faster than the thread reads has to wait, as it would for a terminal.
    """

    def __init__(self) -> None:
        self._reader, writer = os.pipe()
        self.writer: IO[bytes] = os.fdopen(writer, "wb", buffering=0)
        os.set_blocking(self._reader, False)
        self._kept = bytearray()
        self._open = True
        self._lock = threading.Lock()
        threading.Thread(target=self._read_on, name="output of a worker", daemon=True).start()

    def __len__(self) -> int:
        """Return how many bytes are kept at the moment."""
        return len(self._kept)

    def take(self) -> str:
        """Return what is kept, up to the last character that was printed, and forget it."""
        with self._lock:
            self._read()
            kept = self._kept.decode(errors="replace")
            self._kept.clear()
        return kept

    def close(self) -> None:
        """Read no more: a process that still has the other end gets an error when it prints."""
        self._open = False

    def _read_on(self) -> None:
        """Read until every process has closed its end; only this thread closes the pipe, which it waits for."""
        arrived = select.poll()
        arrived.register(self._reader, select.POLLIN)
        while self._open:
            if arrived.poll(_LOOK_MILLISECONDS):
                with self._lock:
                    self._read()
        with self._lock:
            os.close(self._reader)

    def _read(self) -> None:
        """Keep what has arrived."""
        if not self._open:
            return
        try:
            chunk = os.read(self._reader, _CHUNK_BYTES)
        except BlockingIOError:
            return
        self._open = bool(chunk)
        self._kept += chunk
        del self._kept[:-KEPT_BYTES]
