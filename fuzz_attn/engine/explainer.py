"""Explainer: a second worker of a shard, on the simulator, that judges what a worker on a GPU has found.

It starts with the first failure. What it cannot judge is said in words and never ends the shard: a target that does not
load there, an operation that the simulator does not know, a launch that takes too long or too much memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from fuzz_attn.engine.events import CaseJudged, CaseUnfinished, Emit, Phase
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.orders import Answer, Order, Ready
from fuzz_attn.errors import BudgetSpentInterrupt, FuzzAttnError, OutOfTimeError
from fuzz_attn.workers.fork import EXCEEDED

EXPLAINING: Final = "simulator"
"""The backend that explains what a worker on a GPU has found."""
LAUNCH_SECONDS: Final = 20.0
"""A launch that takes longer there is given up: on a GPU it took milliseconds, and the case may be too large."""
MEMORY: Final = 8 * 2**30
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
        worker.setup = msgspec.structs.replace(worker.setup, memory=worker.setup.memory or MEMORY)
        self.worker.launch_seconds = min(worker.launch_seconds, LAUNCH_SECONDS)
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
