"""IsolatedWorker: judges cases in a child process, so that a crash, a hang or a broken device becomes a verdict.

An explainer is a second one of a shard, on the simulator, that judges what a worker on a GPU has found.

It starts with the first failure. What it cannot judge is said in words and never ends the shard: a target that does not
load there, an operation that the simulator does not know, a launch that takes too long or too much memory.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal, TypeAlias

import msgspec

from fuzz_attn.engine.events import CaseJudged, CaseUnfinished, Emit, Phase
from fuzz_attn.engine.orders import Answer, Order, Ready, Setup
from fuzz_attn.errors import BudgetSpentInterrupt, FuzzAttnError, OutOfTimeError
from fuzz_attn.operations.registry import FAMILIES, operation_of
from fuzz_attn.oracle.verdict import Kind, Verdict
from fuzz_attn.workers.fork import EXCEEDED
from fuzz_attn.workers.messages import (
    DEVICE_FULL,
    DEVICE_LOST,
    Compiling,
    DeviceStarted,
    Died,
    HarnessFailed,
    Refused,
    Unsupported,
)
from fuzz_attn.workers.sharing import ORDERS_APART
from fuzz_attn.workers.worker_process import SupervisedWorker

LAUNCH_SECONDS: Final = 120.0
"""A launch that takes longer counts as a hang."""
LEAST_PATIENCE: Final = 3.0
PATIENCE: Final = 10
"""An order that takes so many times as long as any before it, and so many seconds, may be a hang."""

COMMAND: Final = (sys.executable, "-P", "-m", "fuzz_attn.engine.case_judge")

Word: TypeAlias = Ready | Answer | Refused | Unsupported | Died | HarnessFailed | Compiling | DeviceStarted
Wait: TypeAlias = Literal["full", "short", "short, then full"]
"""How long an order may take: the full limit, or :attr:`IsolatedWorker.patience`, after which it is a hang, or after
which it is judged again with the full limit, in a new process."""
DECODER: Final = msgspec.json.Decoder[Word](Word)

FULL_TRIES: Final = 6
FULL_SECONDS: Final = 0.5
"""An order that finds no memory left on the GPU is tried so often again, after so many seconds more each time."""
COPIED: Final = "the target took too much memory, as for a copy of a tensor most of whose addresses have none"
FULL: Final = "the GPU had no memory left, in six tries: use fewer --workers, or a larger GPU"
OTHERS_FAULT: Final = (
    "a worker lost the GPU that it shares, or got no answer from it, and the case that it was judging passes apart "
    "from the others, so that no case is blamed for it"
)


class IsolatedWorker(SupervisedWorker[Ready, Answer]):
    """Judges cases in a child process that is replaced when it dies.

    A case that the simulator cannot run is judged in the interpreter, by a second child that is started for the first
    such case, unless the set-up names the backend.

    A launch that has not ended after ``launch_seconds`` is a hang. ``index`` spreads workers over the GPUs. Where they
    share one through MPS, a lost GPU or a hang is a verdict only if it recurs apart from the others
    (:mod:`fuzz_attn.workers.sharing`). Raises :class:`FuzzAttnError` on entering where the target or the backend
    cannot be set up.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        launch_seconds: float = LAUNCH_SECONDS,
        index: int = 0,
        command: Sequence[str] = COMMAND,
    ) -> None:
        super().__init__(setup.target, command, DECODER, Ready, index, setup.backend != "interpreter")
        self.setup = setup
        self.launch_seconds = launch_seconds
        self.unsupported: Counter[str] = Counter()
        """What the backend could not run, with the number of cases."""
        self._interpreter: IsolatedWorker | None = None
        self._full = 0
        """How often an order has found no memory left, one after the other."""
        self._longest = 0.0
        """How many seconds the longest order took that was answered."""

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
        return self._died(died, order)

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

    def _judge_apart(self, order: Order, deadline: float | None, wait: Wait, *, shared: bool) -> Answer:
        """Judge an order again, apart from the other workers on the GPU: what failed while ``shared`` may be theirs."""
        answer = self._judge(order, deadline, "short" if wait == "short" else "full", apart=True)
        if shared and answer.verdict.passed:
            self._notes.append(OTHERS_FAULT)
        return answer

    def _died(self, died: Died, order: Order) -> Answer:
        """Return the answer to an order where the process that was to give it has died."""
        if died.reason.startswith(EXCEEDED) and operation_of(order.case).is_mostly_virtual(order.case):
            self._forget(died)
            return Answer(unsupported=COPIED)
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
        if self.setup.target in FAMILIES:
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

    def _first_message(self) -> Setup:
        """Return the set-up, for every start after the first with the binding that that one has found."""
        return self._complete_setup

    def _end(self) -> None:
        if self._interpreter is not None:
            self._interpreter._end()
        super()._end()


def _failed(kind: Kind, message: str) -> Answer:
    return Answer(Verdict("oracle", kind, message))


EXPLAINING: Final = "simulator"
"""The backend that explains what a worker on a GPU has found."""
EXPLAINING_SECONDS: Final = 20.0
"""A launch that takes longer there is given up: on a GPU it took milliseconds, and the case may be too large."""
EXPLAINING_MEMORY: Final = 8 * 2**30
"""A launch that takes more memory there is given up, unless the user has set another limit."""
LEAST_SECONDS: Final = 10.0
"""With less time left the worker is not started: it has to import Triton and the target."""
NO_TIME: Final = "there was no time left to start its process"
REFUSED: Final = "the target or the compiler refuses the case there"


class Explainer:
    """Judges cases on the explaining backend as a campaign does on its own; each verdict is an event.

    ``worker`` starts with the first order. ``deadline`` returns when the time of a phase is up, a time of
    ``time.monotonic``, and raises :class:`BudgetSpentInterrupt` when that was before.
    """

    def __init__(
        self,
        worker: IsolatedWorker,
        shard: int,
        emit: Emit,
        deadline: Callable[[Phase], float | None],
        learn: Callable[[], None],
    ) -> None:
        self.worker = worker
        worker.setup = msgspec.structs.replace(worker.setup, memory=worker.setup.memory or EXPLAINING_MEMORY)
        self.worker.launch_seconds = min(worker.launch_seconds, EXPLAINING_SECONDS)
        self.unusable = ""
        """Why the worker cannot judge anything, in words; empty while it can."""
        self._shard = shard
        self._emit = emit
        self._deadline = deadline
        self._learn = learn
        self._answered = False

    @property
    def backend(self) -> str:
        """The name of the explaining backend."""
        return self.worker.setup.backend

    @property
    def ready(self) -> Ready:
        """What the worker said when it was ready."""
        return self.worker.ready

    @property
    def launch_seconds(self) -> float:
        """After how many seconds a launch is given up."""
        return self.worker.launch_seconds

    def renew(self) -> None:
        """Let the next order be judged by a process that has judged none."""
        if self._answered:
            self.worker.renew()

    def end(self) -> None:
        """End the worker."""
        self.worker.__exit__(None, None, None)

    def judge(self, order: Order, phase: Phase) -> Answer:
        """Return the answer to an order; one without a verdict says in ``unsupported`` why there is none."""
        deadline = self._deadline(phase)
        self._learn()
        began = time.monotonic()
        try:
            answer = self._answer(order, deadline, phase)
        except OutOfTimeError:
            self._emit(CaseUnfinished(self._shard, order, time.monotonic() - began))
            raise BudgetSpentInterrupt from None
        if answer.judged:
            verdicts = (answer.verdict, *answer.others)
            seconds = time.monotonic() - began
            self._emit(CaseJudged(self._shard, phase, order, verdicts, seconds, backend=self.backend))
        return answer

    def _answer(self, order: Order, deadline: float | None, phase: Phase) -> Answer:
        if not self._answered and deadline is not None and deadline - time.monotonic() < LEAST_SECONDS:
            return Answer(unsupported=NO_TIME)
        if self.unusable:
            return Answer(unsupported=self.unusable)
        try:
            answer = self.worker.judge(order, deadline=deadline, wait="short" if phase == "shrink" else "full")
        except OutOfTimeError:
            raise
        except FuzzAttnError as error:
            self.unusable = str(error)
            return Answer(unsupported=self.unusable)
        self._answered = True
        reason = _without_verdict(answer, self.launch_seconds)
        return Answer(unsupported=reason) if reason else answer


def _without_verdict(answer: Answer, seconds: float) -> str:
    """Return why an answer says nothing about the kernel, an empty string where it does.

    The simulator has its own limit for loops without end. A worker that does not answer in time may only be slow.
    """
    if answer.refusal is not None:
        return REFUSED
    if answer.unsupported:
        return answer.unsupported
    verdict = answer.verdict
    if verdict.kind == "timeout" and verdict.property_name == "oracle":
        return f"the launch takes more than {seconds:.0f} s there"
    if answer.killed:
        return "its process was ended from outside there"
    if verdict.kind == "crash" and EXCEEDED in verdict.message:
        return "the launch takes too much memory there"
    return ""
