"""Reduction: replaces the case of one failure by simpler ones that show it, finds what it needs, and checks the result.

On a GPU, a case that needs a new kernel costs seconds. There it first tries the cases whose kernels are compiled, and
then lets the rest compile a bounded number of kernels.
"""

from __future__ import annotations

import contextlib
from typing import Final, Protocol

import msgspec

from fuzz_attn.case.domain import Domain
from fuzz_attn.case.traits import needed_by
from fuzz_attn.counterexamples.counterexample import Counterexample
from fuzz_attn.engine.failures import confirmation
from fuzz_attn.engine.failures.confirmation import Launches, order_of
from fuzz_attn.engine.failures.records import Records
from fuzz_attn.engine.failures.share import Share
from fuzz_attn.engine.failures.simplification import simplify
from fuzz_attn.engine.failures.triage import HANG, KnownFailure, KnownFailures, class_of, failures_of
from fuzz_attn.engine.failures.trigger import Shown, trigger_of
from fuzz_attn.engine.messages import Answer, Order
from fuzz_attn.errors import ShareSpentInterrupt
from fuzz_attn.oracle.verdict import Verdict

MOST_KERNELS: Final = 24
"""The reduction of one failure on a GPU may compile so many kernels: at about half a second each, twelve seconds."""
_SHRUNK: Final = ("case", "relation", "verdict", "also", "trigger", "shrunk")


class Lives(Launches, Protocol):
    """What a reduction needs of the lives of a shard's failures."""

    known: KnownFailures
    records: Records

    @property
    def domain(self) -> Domain:
        """What the target promises."""

    def also(self, failure: KnownFailure, order: Order, answer: Answer) -> tuple[str, ...]:
        """Return the classes of what follows from a failure."""


class Reduction:
    """The reduction of one failure, which may take a ``share`` of the campaign; ``steps`` are its cases, one by one.

    With ``few_kernels`` it compiles few. What it skips for that is not tried, so that the failure is not shrunk fully.
    """

    def __init__(self, failure: KnownFailure, lives: Lives, share: Share, *, few_kernels: bool = False) -> None:
        self.failure = failure
        self.steps = [failure.found]
        self._lives = lives
        self._share = share
        self._few_kernels = few_kernels
        self._kernels = 0
        self._skipped = False
        """Whether a case was not tried because one of its kernels is not compiled."""
        self._answers: dict[Order, Answer] = {}

    def run(self) -> None:
        """Shrink and check the failure. A hang that the end of the campaign leaves without a check is not shrunk."""
        first = self.failure.found
        try:
            with contextlib.suppress(ShareSpentInterrupt):
                self._shrink()
            self._check(first)
        except BaseException:
            if self.failure.failure_class == HANG:
                restore(self.failure, first, self._lives.records)
            raise

    def _shrink(self) -> None:
        """Replace the case by simpler ones that show the same failure, then find what it needs."""
        failure, lives = self.failure, self._lives
        lives.records.change(failure, trigger=needed_by(failure.found.case, failure.found.relation))
        if self._few_kernels:
            self._simplify(compiled=True)
        self._skipped = False
        self._simplify(compiled=False)
        trigger = trigger_of(order_of(failure.found), self._judged, lives.domain)
        lives.records.change(failure, trigger=trigger, shrunk=not self._skipped)

    def _simplify(self, *, compiled: bool) -> None:
        def is_smaller(order: Order) -> bool:
            return self._is_smaller(order, compiled=compiled)

        first = order_of(self.failure.found)
        harmless = self._lives.known.beside(first, self.failure.failure_class)
        if harmless != first:
            is_smaller(harmless)
        simplify(order_of(self.failure.found), is_smaller, self._lives.domain)

    def _is_smaller(self, order: Order, *, compiled: bool) -> bool:
        """Return whether an order shows the failure, which it is the case of from then on."""
        answer = self._answer(order, compiled=compiled)
        verdict = None if answer is None else self._shown(order, answer)
        if answer is None or verdict is None:
            return False
        also = self._lives.also(self.failure, order, answer)
        case = {"case": order.case, "relation": order.relation}
        self._lives.records.change(self.failure, **case, verdict=verdict, also=also)
        self.steps.append(self.failure.found)
        return True

    def _judged(self, order: Order) -> Shown:
        """Return what an order shows; one that was not tried counts as passing, so that what it lacks is needed."""
        answer = self._answer(order, compiled=False)
        if answer is None:
            return "passes"
        if self._shown(order, answer) is not None:
            return "fails"
        return "other" if confirmation.shows(answer, self.failure.failure_class) else "passes"

    def _answer(self, order: Order, *, compiled: bool) -> Answer | None:
        """Return the answer to an order, None where it needs a kernel that may not be compiled; a ``compiled`` one."""
        if order not in self._answers:
            self._share.spend()
            compiled = compiled or (self._few_kernels and self._kernels >= MOST_KERNELS)
            answer = self._lives.judge(msgspec.structs.replace(order, compiled=compiled), "shrink")
            self._kernels += answer.compiled
            if self._is_known_elsewhere(order_of(self.failure.found), self.failure.found.verdict):
                raise ShareSpentInterrupt  # another shard has found it too
            if answer.missing:
                self._skipped = True
                return None
            self._answers[order] = answer
        return self._answers[order]

    def _shown(self, order: Order, answer: Answer) -> Verdict | None:
        """Return the verdict that shows the failure, None where a known failure may have caused it."""
        for verdict in failures_of(answer):
            if self.failure.shows(verdict):
                return None if self._is_known_elsewhere(order, verdict) else verdict
        return None

    def _is_known_elsewhere(self, order: Order, verdict: Verdict) -> bool:
        """Return whether a verdict shows another known failure."""
        return self._lives.known.matching(order, verdict, there=self.failure.there) not in (None, self.failure)

    def _check(self, first: Counterexample) -> None:
        """Run the shrunk case in fresh processes, a hang with the full limit.

        A case that fails only sometimes is flaky. Where it never fails, shrinking has followed what earlier cases left
        in the process, or the case is only slow; then it stays as it was first.
        """
        failure, lives = self.failure, self._lives
        order, hang = order_of(failure.found), failure.failure_class == HANG
        if hang and order == order_of(first):
            return
        checks = 1 if failure.failure_class in ("crash", HANG) else confirmation.CHECKS
        answers = [confirmation.in_fresh_process(order, lives) for _ in range(checks)]
        failed = sum(confirmation.shows(answer, failure.failure_class) for answer in answers)
        if failed == checks:
            if hang:
                (verdict,) = (verdict for verdict in failures_of(answers[0]) if class_of(verdict) == HANG)
                lives.records.change(failure, verdict=verdict)
            return
        if not failed:
            restore(failure, first, lives.records)
            self.steps = [first]
            if hang:
                return
            failed = confirmation.repeated(order_of(first), failure.failure_class, lives)
            checks = confirmation.TRIES
        if failed < checks:
            lives.records.change(failure, confirmation="flaky", failed=failed + 1, tries=checks + 1)


def restore(failure: KnownFailure, before: Counterexample, records: Records) -> None:
    """Give a failure the case back that it had before."""
    records.change(failure, **{name: getattr(before, name) for name in _SHRUNK})
