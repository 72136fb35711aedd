"""The parent's end of a worker: starts it, exchanges messages within time limits, and starts one that died again.

A correct kernel is slow where other processes use the processors, so the time that a process waits for a processor does
not count (``run_delay`` of ``/proc/PID/task/TID/schedstat``). What does count is time in which it computes, sleeps or
waits for a GPU. Where the system does not tell, all time counts.

The two ends share a socket pair (``multiprocessing.connection``), whose number is the worker's last argument; each
message is one JSON document. Standard input is empty and everything printed goes through a pipe of its own, so a target
can disturb neither.

Why no ready-made pool: one message in each direction, a time limit on the wait and a process group to kill are all
that is needed. ``multiprocessing.Process`` imports the parent's main module again, and a pool such as pebble's starts
a new interpreter after each crash. Importing torch and the target takes seconds, and a target that crashes does so at
every step of shrinking, so a worker answers from forks of the process that is set up
(:mod:`fuzz_attn.workers.worker`). Where a fork server runs (:mod:`fuzz_attn.workers.fork_server`), that process
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Pipe
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Generic, Self, TypeAlias, TypeVar

import msgspec

from fuzz_attn.backends.gpus import APART, control_of
from fuzz_attn.errors import FuzzAttnError, OutOfTimeError, ProcessError, TargetError
from fuzz_attn.owners import without_callers
from fuzz_attn.workers.fork import children_of, kill_with_descendants
from fuzz_attn.workers.fork_server import Fork, forked, worker_environment
from fuzz_attn.workers.messages import (
    CONNECTION_LOST,
    DEVICE_FULL,
    DEVICE_LOST,
    Compiling,
    DeviceStarted,
    Died,
    HarnessFailed,
    Refused,
    Renew,
    Unsupported,
)

COMPILE_SECONDS: Final = 120.0
"""A kernel has to compile, or a device to start, within this time, which does not count as part of the launch."""
COMPILES_SECONDS: Final = 600.0
"""All kernels of an order have to compile within this time."""
FIRST_LOOK_SECONDS: Final = 1.0
"""How long a process has waited is asked after so long for the first time: nearly all orders take less."""
NEXT_LOOK_SECONDS: Final = 0.1
MOST_WAITING: Final = 10.0
"""A process that waits for a processor is waited for so many times as long as its limit."""

Delays = Mapping[int, float]
"""For each thread of a process how many seconds it has waited for a processor."""


class LaunchClock:
    """Counts the time of one order from now on, of which a launch may take so many ``seconds``.

    ``delays`` returns the delays of the threads that may carry out the order.
    """

    def __init__(self, seconds: float, delays: Callable[[], Delays]) -> None:
        self._seconds = seconds
        self._delays = delays
        self._used = self._passed = self._compiled = 0.0
        """How much of the time before the current part counts, how much it was, and how long kernels compiled."""
        self._compiling = False
        self._begin()

    def _begin(self) -> None:
        """Begin a part of the order: a launch up to the next kernel that compiles, or that."""
        self._since, self._before = time.monotonic(), None

    _before: Delays | None

    def compiling(self, *, ended: bool) -> None:
        """Note that a kernel compiles from now on, or has compiled."""
        if self._compiling:
            self._compiled += self.took
        else:
            self._used, self._passed = self._used + self._counted(), self._passed + self.took
        self._compiling = not ended
        self._begin()

    @property
    def took(self) -> float:
        """The seconds since the order began, or since its last kernel compiled."""
        return time.monotonic() - self._since

    def next_look(self) -> float:
        """Return when to ask next whether the time is over, a time of ``time.monotonic``."""
        if self._compiling:
            return self._since + min(COMPILE_SECONDS, COMPILES_SECONDS - self._compiled)
        left = self._seconds - self._used - self._counted()
        if self._before is None:
            return self._since + min(FIRST_LOOK_SECONDS, self._seconds - self._used)
        return time.monotonic() + max(left, NEXT_LOOK_SECONDS)

    def over(self) -> str:
        """Return in words which limit is reached, empty if none is."""
        if self._compiling:
            total = self._compiled + self.took
            return f"the launch still compiled a kernel after {total:.0f} s" if self._compiling_too_long() else ""
        passed = self._passed + self.took
        if self._used + self._counted() >= self._seconds or passed >= MOST_WAITING * self._seconds:
            return f"the launch did not end within {self._seconds:.0f} s"
        if self._before is None:
            self._before = self._delays()
        return ""

    def _compiling_too_long(self) -> bool:
        return self.took >= COMPILE_SECONDS or self._compiled + self.took >= COMPILES_SECONDS

    def _counted(self) -> float:
        """Return how much of the current part counts: the time less what the thread that waited most has waited."""
        if self._before is None:
            return self.took
        delays = self._delays()
        waited = max((delays[thread] - self._before.get(thread, 0.0) for thread in delays), default=0.0)
        return max(0.0, self.took - waited)


def delays_of(processes: Iterable[int]) -> Delays:
    """Return how long each thread of some processes has waited for a processor; nothing where the system is silent."""
    delays: dict[int, float] = {}
    for process in processes:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{process}/task"):
                with contextlib.suppress(OSError, ValueError, IndexError):
                    text = Path(f"/proc/{process}/task/{thread}/schedstat").read_text()
                    delays[int(thread)] = int(text.split()[1]) / 1e9
    return delays


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

M = TypeVar("M")
KEPT_BYTES: Final = 2**20
"""How much of the output is kept."""
_CHUNK_BYTES: Final = 2**16
"""What a pipe can hold on Linux."""
_LOOK_MILLISECONDS: Final = 1000
"""How often the thread looks whether it is to end, while something that the worker left behind keeps the pipe open."""


class WorkerProcess(Generic[M]):
    """A running worker process.

    ``command`` starts it, ``decoder`` reads its messages, and ``index`` spreads workers over the GPUs. The first
    ``apart`` orders are judged apart from a Multi-Process Service. ``end_signal`` is what a fork server sends the
    process when this one ends; others arrange that themselves. ``with_triton`` lets a fork server import Triton for it.
    Raises :class:`ProcessError` where it cannot start.
    """

    def __init__(
        self,
        command: Sequence[str],
        decoder: msgspec.json.Decoder[M],
        index: int = 0,
        apart: int = 0,
        end_signal: int = signal.SIGKILL,
        with_triton: bool = False,
    ) -> None:
        self._decoder = decoder
        self._environment = {**worker_environment(index), APART: str(apart)}
        try:
            self._start(command, end_signal, with_triton)
        except (OSError, RuntimeError, MemoryError) as error:  # no file, process, thread or memory is left
            raise ProcessError(f"a worker process cannot be started: {error}") from error

    def _start(self, command: Sequence[str], end_signal: int, with_triton: bool) -> None:
        self.printed = PrintedOutput()
        try:
            self.connection, others = Pipe()
            with others, self.printed.writer as output:
                files = others.fileno(), output.fileno()
                fork = forked(command, self._environment, *files, end_signal, with_triton=with_triton)
                self._process = fork or self._started(command, *files)
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

    def receive(self, limit: float | None = None) -> M | None:
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


START_SECONDS: Final = 180.0
"""A worker has to import torch, Triton and the target within this time."""
RENEW_SECONDS: Final = 10.0
"""A process that is to be replaced has to end within this time."""

R = TypeVar("R", bound=msgspec.Struct)
"""What a worker says when it is set up."""
A = TypeVar("A", bound=msgspec.Struct)
"""What it answers."""
Reply: TypeAlias = R | A | Refused | Unsupported | Died | HarnessFailed
Word: TypeAlias = Reply[R, A] | Compiling | DeviceStarted


class SupervisedWorker(Generic[R, A]):
    """A process that is set up with a message, answers others, and is replaced when it dies.

    ``name`` is what it loads, ``decoder`` reads its words, ``ready_type`` is the one that says that it is set up, and
    ``index`` spreads workers over the GPUs. ``imports_triton`` is true where it first imports Triton, and not for the
    interpreter. Raises :class:`FuzzAttnError` on entering where it cannot be set up.
    """

    ready: R

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        decoder: msgspec.json.Decoder[Word[R, A]],
        ready_type: type[R],
        index: int = 0,
        imports_triton: bool = False,
    ) -> None:
        self.name = name
        self.index = index
        self.command = command
        self.deaths = 0
        self.process: WorkerProcess[Word[R, A]] | None = None
        self._decoder = decoder
        self._ready_type = ready_type
        self._imports_triton = imports_triton
        self._shared = False
        """Whether the process shares its GPU, so that other workers can break or block it."""
        self._busy = False
        """Whether the process has not answered yet."""
        self._apart = 0
        """How many orders the next process judges apart from the others on its GPU."""
        self._notes: list[str] = []
        self._took = 0.0
        """How many seconds the last request took."""

    def __enter__(self) -> Self:
        """Start the child and wait until it is set up."""
        try:
            self.ready = self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """End the child."""
        self._end()

    def _first_message(self) -> msgspec.Struct:
        """Return what the process is set up with."""
        raise NotImplementedError

    def renew(self) -> None:
        """Let a process that has judged no case answer the next order."""
        if self.process is None:
            return
        try:
            reply = self._request(Renew(), RENEW_SECONDS)
        except TimeoutError:
            reply = None
        if not isinstance(reply, Died):
            self._end()  # this worker answers from the process that is set up, so that another has to start

    def _end_fork(self) -> bool:
        """End the fork that answers, and return whether the process that is set up goes on with another one."""
        assert self.process is not None
        try:
            reply = self.process.receive(time.monotonic() + RENEW_SECONDS) if self.process.kill_forks() else None
        except TimeoutError:
            return False
        if isinstance(reply, Died):
            self._forget(reply)
        return isinstance(reply, Died)

    def _start(self, deadline: float | None = None) -> R:
        self.process = WorkerProcess(
            self.command, self._decoder, self.index, self._apart, with_triton=self._imports_triton
        )
        self._shared, self._apart = False, 0
        try:
            reply = self._request(self._first_message(), START_SECONDS, deadline)
        except TimeoutError:
            if deadline is not None and deadline <= time.monotonic():
                raise OutOfTimeError(f"the time was up before {self.name!r} was loaded") from None
            raise TargetError(f"target={self.name!r} did not load within {START_SECONDS:.0f} s") from None
        if isinstance(reply, self._ready_type):
            return reply
        if isinstance(reply, Refused):
            raise FuzzAttnError(reply.reason)
        raise TargetError(f"target={self.name!r} {self._death(self._end_of(reply))} while it was loaded")

    def _request(self, message: msgspec.Struct, seconds: float, deadline: float | None = None) -> Reply[R, A] | None:
        """Return the child's reply to a message, None at its end.

        Raises :class:`TimeoutError` at the deadline, or after so many seconds without a reply, with words for that.
        Time to compile has limits of its own, and time in which other processes have the processors does not count.
        """
        assert self.process is not None
        self.process.send(message)
        self._busy = True
        clock = LaunchClock(seconds, self.process.delays)
        while True:
            reply = self._received(clock, deadline)
            match reply:
                case Compiling():
                    clock.compiling(ended=reply.ended)
                case DeviceStarted():
                    self._shared = reply.shared
                    self._notes += [reply.note] * bool(reply.note)
                case _:
                    self._busy, self._took = False, clock.took
                    return reply

    def _received(self, clock: LaunchClock, deadline: float | None) -> Word[R, A] | None:
        """Return the child's next word, None at its end; raises :class:`TimeoutError` as :meth:`_request` does."""
        assert self.process is not None
        while True:
            try:
                return self.process.receive(_earlier(clock.next_look(), deadline))
            except TimeoutError:
                words = clock.over()
                if words or (deadline is not None and deadline <= time.monotonic()):
                    raise TimeoutError(words) from None

    def _end_of(self, reply: Reply[R, A] | None) -> Died:
        """Return how the process that was to answer died: a fork, which is reported, or the whole child."""
        assert self.process is not None
        return reply if isinstance(reply, Died) else Died(self.process.exit_code(), whole=True)

    def _death(self, died: Died) -> str:
        """Return in words how a process died; the child ends if it was the whole of it."""
        assert self.process is not None
        self.deaths += 1
        how = self.process.death(died.code, died.reason)
        if died.whole:
            self._end()
        return how

    def _forget(self, died: Died) -> None:
        """Go on after a death that says nothing about the order, without what was printed before it."""
        assert self.process is not None
        self.process.last_output()
        if died.whole:
            self._end()

    def _end(self) -> None:
        if self.process is not None:
            if self._shared and self._busy:
                self.process.end_gpu_work()
            self.process.end()
            self.process = None


def _earlier(limit: float, deadline: float | None) -> float:
    return limit if deadline is None else min(limit, deadline)
