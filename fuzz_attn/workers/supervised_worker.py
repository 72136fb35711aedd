"""SupervisedWorker: a worker process that is started again when it dies, and asked within time limits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Generic, Self, TypeAlias, TypeVar

import msgspec

from fuzz_attn.errors import FuzzAttnError, OutOfTimeError, TargetError
from fuzz_attn.workers.launch_clock import LaunchClock
from fuzz_attn.workers.messages import Compiling, DeviceStarted, Died, HarnessFailed, Refused, Renew, Unsupported
from fuzz_attn.workers.worker_process import WorkerProcess

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
    ``index`` spreads workers over the GPUs. Raises :class:`FuzzAttnError` on entering where it cannot be set up.
    """

    ready: R

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        decoder: msgspec.json.Decoder[Word[R, A]],
        ready_type: type[R],
        index: int = 0,
    ) -> None:
        self.name = name
        self.index = index
        self.command = command
        self.deaths = 0
        self.process: WorkerProcess[Word[R, A]] | None = None
        self._decoder = decoder
        self._ready_type = ready_type
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
        self.process = WorkerProcess(self.command, self._decoder, self.index, self._apart)
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
