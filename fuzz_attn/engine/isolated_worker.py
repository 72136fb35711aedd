"""IsolatedWorker: judges cases in a child process, so that a crash, a hang or a broken device becomes a verdict."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias, get_args

import msgspec

from fuzz_attn.case.families import Family
from fuzz_attn.engine.child.sharing import ORDERS_APART
from fuzz_attn.engine.launch_clock import LaunchClock
from fuzz_attn.engine.messages import (
    DEVICE_FULL,
    DEVICE_LOST,
    Answer,
    Compiling,
    DeviceStarted,
    Died,
    HarnessFailed,
    Order,
    Ready,
    Refused,
    Renew,
    Setup,
    Unsupported,
)
from fuzz_attn.engine.worker_process import WorkerProcess
from fuzz_attn.errors import FuzzAttnError, OutOfTimeError, TargetError
from fuzz_attn.oracle.verdict import Kind, Verdict

START_SECONDS: Final = 180.0
"""A worker has to import torch, Triton and the target within this time."""
RENEW_SECONDS: Final = 10.0
"""A process that is to be replaced has to end within this time."""
LAUNCH_SECONDS: Final = 120.0
"""A launch that takes longer counts as a hang."""
LEAST_PATIENCE: Final = 3.0
PATIENCE: Final = 10
"""An order that takes so many times as long as any before it, and so many seconds, may be a hang."""

COMMAND: Final = (sys.executable, "-P", "-m", "fuzz_attn.engine.case_judge")

Reply: TypeAlias = Ready | Refused | Answer | Unsupported | Died | HarnessFailed
Word: TypeAlias = Reply | Compiling | DeviceStarted
Wait: TypeAlias = Literal["full", "short", "short, then full"]
"""How long an order may take: the full limit, or :attr:`IsolatedWorker.patience`, after which it is a hang, or after
which it is judged again with the full limit, in a new process."""
DECODER: Final = msgspec.json.Decoder[Word](Word)

FULL_TRIES: Final = 6
FULL_SECONDS: Final = 0.5
"""An order that finds no memory left on the GPU is tried so often again, after so many seconds more each time."""
FULL: Final = "the GPU had no memory left, most of which other processes held: fewer --workers need less"
OTHERS_FAULT: Final = (
    "a worker lost the GPU that it shares, or got no answer from it, and the case that it was judging passes apart "
    "from the others, so that no case is blamed for it"
)


class IsolatedWorker:
    """Judges cases in a child process that is replaced when it dies.

    A case that the simulator cannot run is judged in the interpreter, by a second child that is started for the first
    such case, unless the set-up names the backend.

    A launch that has not ended after ``launch_seconds`` is a hang. ``index`` spreads workers over the GPUs. Where they
    share one through MPS, a lost GPU or a hang is a verdict only if it recurs apart from the others
    (:mod:`fuzz_attn.engine.child.sharing`). Raises :class:`FuzzAttnError` on entering where the target or the backend
    cannot be set up.
    """

    ready: Ready

    def __init__(
        self,
        setup: Setup,
        *,
        launch_seconds: float = LAUNCH_SECONDS,
        index: int = 0,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.setup = setup
        self.index = index
        self.launch_seconds = launch_seconds
        self.command = command
        self.deaths = 0
        self.unsupported: Counter[str] = Counter()
        """What the backend could not run, with the number of cases."""
        self._interpreter: IsolatedWorker | None = None
        self.process: WorkerProcess[Word] | None = None
        self._shared = False
        """Whether the process shares its GPU, so that other workers can break or block it."""
        self._busy = False
        """Whether the process has not answered yet."""
        self._apart = 0
        """How many orders the next process judges apart from the others on its GPU."""
        self._notes: list[str] = []
        self._full = 0
        """How often an order has found no memory left, one after the other."""
        self._took = self._longest = 0.0
        """How many seconds the last request took, and the longest order that was answered."""

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

    @property
    def patience(self) -> float:
        """After how many seconds an order may be a hang, from what others took; time to compile does not count."""
        return min(self.launch_seconds, max(LEAST_PATIENCE, PATIENCE * self._longest))

    def judge(self, order: Order, *, deadline: float | None = None, wait: Wait = "full") -> Answer:
        """Return the answer to an order; a death or a hang of the child is a verdict of that kind.

        So is a failure of the harness itself, if it recurs in a fresh process and the target is not built in.
        ``deadline`` is a time of ``time.monotonic``; raises :class:`OutOfTimeError` when it passes first. Orders that
        ask for more than a verdict may take the full limit, whatever ``wait`` says.
        """
        try:
            answer = self._judge(order, deadline, wait if order.only_judges else "full")
        except BaseException:
            self._end()  # a late reply must not be taken for the answer to the next order
            raise
        notes, self._notes = self._notes, []
        return msgspec.structs.replace(answer, notes=(*answer.notes, *notes)) if notes else answer

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

    def _judge(
        self, order: Order, deadline: float | None, wait: Wait, *, again: bool = False, apart: bool = False
    ) -> Answer:
        """Return the answer to an order; ``apart`` in a new process, after one whose failure may not be the order's."""
        if self.process is None:
            self.ready = self._start(deadline)
        try:
            reply = self._request(order, self._limit(wait), deadline)
        except TimeoutError as error:
            if deadline is not None and deadline <= time.monotonic():
                raise OutOfTimeError(f"the time was up before a launch of {self.setup.target!r} ended") from None
            return self._timed_out(order, deadline, wait, str(error), apart=apart)
        match reply:
            case Answer():
                self._full = 0
                self._longest = max(self._longest, self._took) if order.only_judges else self._longest
                return reply
            case Unsupported():
                self.unsupported[reply.reason] += 1
                return msgspec.structs.replace(self._judge_instead(order, deadline, wait), unsupported=reply.reason)
            case HarnessFailed():
                return self._after_harness_failure(order, deadline, wait, reply, again=again)
            case Refused():
                raise FuzzAttnError(reply.reason)
        died = self._end_of(reply)
        lost = died.code == DEVICE_LOST and self._shared and not apart
        if lost or died.code == DEVICE_FULL:
            self._forget(died)
            again_as = partial(self._judge_apart, shared=True) if lost else self._judge_later
            return again_as(order, deadline, wait)
        return self._died(died)

    def _judge_later(self, order: Order, deadline: float | None, wait: Wait) -> Answer:
        """Judge an order again in a process that holds no memory of the GPU yet; without a verdict after some tries."""
        self._full += 1
        if self._full > FULL_TRIES:
            self._full = 0
            return Answer(unsupported=FULL)
        time.sleep(FULL_SECONDS * self._full)
        return self._judge(order, deadline, wait)

    def _limit(self, wait: Wait) -> float:
        return self.launch_seconds if wait == "full" else self.patience

    def _timed_out(self, order: Order, deadline: float | None, wait: Wait, words: str, *, apart: bool) -> Answer:
        """Return the answer where a launch did not end: perhaps it is slow, or another worker's blocks the GPU."""
        shared = self._shared
        again = not apart and (shared or wait == "short, then full")
        if shared or not self._end_fork():
            self._end()
            self._apart = 1 if again else ORDERS_APART
        failed = _failed("timeout", words)
        if again:
            answer = self._judge_apart(order, deadline, wait, shared=shared)
            return answer if shared else msgspec.structs.replace(answer, earlier=failed.verdict)
        return msgspec.structs.replace(failed, fresh=apart and wait == "full")

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

    def _judge_apart(self, order: Order, deadline: float | None, wait: Wait, *, shared: bool) -> Answer:
        """Judge an order again, apart from the other workers on the GPU: what failed while ``shared`` may be theirs."""
        answer = self._judge(order, deadline, "short" if wait == "short" else "full", apart=True)
        if shared and answer.verdict.passed:
            self._notes.append(OTHERS_FAULT)
        return answer

    def _died(self, died: Died) -> Answer:
        """Return the answer where the process that was to give it has died."""
        killed = not died.reason and -died.code in (signal.SIGKILL, signal.SIGTERM)
        return msgspec.structs.replace(_failed("crash", self._death(died)), killed=killed)

    def _after_harness_failure(
        self, order: Order, deadline: float | None, wait: Wait, failed: HarnessFailed, *, again: bool
    ) -> Answer:
        """Try again in a fresh process: an earlier case may have patched torch or corrupted memory.

        Raises :class:`FuzzAttnError` for a second failure on a built-in target, which does neither.
        """
        self.deaths += 1
        if failed.worker_ended:
            self._end()
        if not again:
            earlier = Verdict("oracle", "crash", f"broke the harness: {failed.error}")
            return msgspec.structs.replace(self._judge(order, deadline, wait, again=True), earlier=earlier)
        if self.setup.target in get_args(Family):
            raise FuzzAttnError(f"fuzz_attn itself failed on a case:\n{failed.traceback}")
        return _failed("crash", f"broke the harness, in a fresh process too: {failed.error}")

    def _judge_instead(self, order: Order, deadline: float | None, wait: Wait) -> Answer:
        """Return the interpreter's answer to an order, or one without a verdict if the user named a backend."""
        if self.setup.backend != "auto":
            return Answer()
        worker = self._interpreter = self._interpreter or self.other("interpreter")
        worker.launch_seconds = self.launch_seconds
        deaths = worker.deaths
        try:
            answer = worker.judge(order, deadline=deadline, wait=wait)
        finally:
            self.deaths += worker.deaths - deaths
        return msgspec.structs.replace(answer, instead="interpreter")

    def other(self, backend: str) -> IsolatedWorker:
        """Return a worker of the same target on another backend."""
        setup = msgspec.structs.replace(self._complete_setup, backend=backend)
        return IsolatedWorker(setup, index=self.index, command=self.command)

    @property
    def _complete_setup(self) -> Setup:
        """The set-up with the binding that the first start has found, so that no other start finds another one."""
        ready = getattr(self, "ready", None)
        if ready is None or ready.published or ready.target != self.setup.target:
            return self.setup
        return msgspec.structs.replace(self.setup, binding=ready.binding)

    @property
    def fallback(self) -> str:
        """The first operation that the backend could not run; empty while there is none."""
        return next(iter(self.unsupported), "")

    def _start(self, deadline: float | None = None) -> Ready:
        self.process = WorkerProcess(self.command, DECODER, self.index, self._apart)
        self._shared, self._apart = False, 0
        try:
            reply = self._request(self._complete_setup, START_SECONDS, deadline)
        except TimeoutError:
            if deadline is not None and deadline <= time.monotonic():
                raise OutOfTimeError(f"the time was up before {self.setup.target!r} was loaded") from None
            raise TargetError(f"target={self.setup.target!r} did not load within {START_SECONDS:.0f} s") from None
        if isinstance(reply, Ready):
            return reply
        if isinstance(reply, Refused):
            raise FuzzAttnError(reply.reason)
        raise TargetError(f"target={self.setup.target!r} {self._death(self._end_of(reply))} while it was loaded")

    def _request(self, message: msgspec.Struct, seconds: float, deadline: float | None = None) -> Reply | None:
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

    def _received(self, clock: LaunchClock, deadline: float | None) -> Word | None:
        """Return the child's next word, None at its end; raises :class:`TimeoutError` as :meth:`_request` does."""
        assert self.process is not None
        while True:
            try:
                return self.process.receive(_earlier(clock.next_look(), deadline))
            except TimeoutError:
                words = clock.over()
                if words or (deadline is not None and deadline <= time.monotonic()):
                    raise TimeoutError(words) from None

    def _end_of(self, reply: Reply | None) -> Died:
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
        if self._interpreter is not None:
            self._interpreter._end()
        if self.process is not None:
            if self._shared and self._busy:
                self.process.end_gpu_work()
            self.process.end()
            self.process = None


def _earlier(limit: float, deadline: float | None) -> float:
    return limit if deadline is None else min(limit, deadline)


def _failed(kind: Kind, message: str) -> Answer:
    return Answer(Verdict("oracle", kind, message))
