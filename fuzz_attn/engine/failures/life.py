"""The life of a failure: saved at once, confirmed in a fresh process, shrunk, and classified.

Each smaller case replaces the file. So whatever ends the campaign, the file holds the smallest failure so far.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from fuzz_attn.case.traits import needed_by
from fuzz_attn.counterexamples import counterexample
from fuzz_attn.counterexamples.counterexample import Counterexample, Step
from fuzz_attn.counterexamples.signature import signature_of
from fuzz_attn.engine.events import Emit, FailureChanged, FailureFound, FailureSeenAgain, Note
from fuzz_attn.engine.failures import confirmation
from fuzz_attn.engine.failures.confirmation import Launches
from fuzz_attn.engine.failures.share import Share
from fuzz_attn.engine.failures.simplicity import simplicity
from fuzz_attn.engine.failures.simplification import allowed, second_order, simplify
from fuzz_attn.engine.failures.triage import (
    HANG,
    OUTPUT,
    UNWRITTEN,
    KnownFailure,
    KnownFailures,
    class_of,
    failures_of,
    has_place,
    is_same,
    trigger_in,
)
from fuzz_attn.engine.failures.trigger import Shown, trigger_of
from fuzz_attn.engine.judges.explanation import explained, in_words
from fuzz_attn.engine.messages import Answer, Order, Ready
from fuzz_attn.errors import BudgetSpentInterrupt, ShareSpentInterrupt
from fuzz_attn.oracle.verdict import Verdict

MOST_FAILURES: Final = 40
"""A shard follows this many failures; a target with more of them fails in every case."""


class Shard(Launches, Protocol):
    """What a failure's life needs of the campaign."""

    emit: Emit

    @property
    def launch_seconds(self) -> float:
        """After how many seconds a launch counts as a hang."""

    @property
    def ready(self) -> Ready:
        """What the worker said when it was ready."""

    def signed(self, order: Order, verdict: Verdict) -> Counterexample:
        """Return a new counterexample of an order."""

    def digest(self, order: Order) -> str:
        """Return the digest of an order's tensors, empty where it cannot be computed."""

    def learn(self) -> None:
        """Learn what other shards have found."""


class FailureLives:
    """Follows every failure of one shard."""

    def __init__(
        self,
        shard: Shard,
        number: int,
        folder: Callable[[], Path],
        max_time: float | None,
        elapsed: Callable[[], float],
    ) -> None:
        self.known = KnownFailures()
        self._shard = shard
        self.shard = number
        self.emit = shard.emit
        self._folder = folder
        self._max_time = float("inf") if max_time is None else max_time
        self._elapsed = elapsed
        self._count = 0
        self._open: list[KnownFailure] = []
        self._resumed = False

    def limit_to(self, seconds: float) -> None:
        """Let failures be followed for so many seconds of the campaign."""
        self._max_time = seconds

    @property
    def may_follow(self) -> bool:
        """Whether another failure would be followed."""
        return len(self.known) + len(self._open) < MOST_FAILURES

    def meet(self, order: Order, answer: Answer, before: Sequence[Order]) -> None:
        """Count the known failures of an answer, and follow the new ones.

        ``before`` are the cases that ran in the same process before this one.
        """
        if answer.killed:
            answer = confirmation.in_fresh_process(order, self._shard)
            if answer.verdict.passed:
                text = "a worker was ended from outside, and the case that it was running passes in another"
                self.emit(Note(self.shard, text))
                return
        failures = failures_of(answer)
        shown, new = self._sorted(order, failures)
        second, new = self._of_second_launch(order, new)
        for known in (*shown, *second):
            self.emit(FailureSeenAgain(self.shard, known.path))
        if not self.may_follow:
            return
        for failure in [self._started(order, verdict) for verdict in new]:
            explained = self._explanation(order, failures, failure)
            if explained is None:
                self._live(failure, answer, before)
            else:
                self._end_as(failure, explained)

    def _sorted(self, order: Order, failures: Sequence[Verdict]) -> tuple[list[KnownFailure], list[Verdict]]:
        """Return the known failures, and the verdicts that are none and follow from none."""
        matches = [(verdict, self.known.matching(order, verdict)) for verdict in failures]
        shown = [known for _, known in matches if known is not None]
        following = {name for known in shown for name in known.found.also}
        return shown, [verdict for verdict, known in matches if known is None and class_of(verdict) not in following]

    def _of_second_launch(self, order: Order, new: list[Verdict]) -> tuple[list[KnownFailure], list[Verdict]]:
        """Return the known failures that a relation's second launch shows as a case of its own, and what else is new.

        A relation on a wrong launch says nothing more.
        """
        related = [verdict for verdict in new if verdict.property_name == order.relation]
        second = second_order(order) if related and len(self.known) else None
        shown: list[KnownFailure] = []
        if second is not None and allowed(second, self._shard.ready.domain):
            with contextlib.suppress(BudgetSpentInterrupt):
                shown, _ = self._sorted(second, failures_of(self._judge(second)))
        classes = {name for known in shown for name in (known.failure_class, *known.found.also)}
        return shown, [verdict for verdict in new if verdict not in related or class_of(verdict) not in classes]

    def _explanation(self, order: Order, failures: Sequence[Verdict], failure: KnownFailure) -> KnownFailure | None:
        """Return the known failure that a new one is, or follows from, now that others of the same case are known."""
        shown, _ = self._sorted(order, failures)
        name = failure.failure_class
        return next((known for known in shown if known.failure_class == name or name in known.found.also), None)

    def _started(self, order: Order, verdict: Verdict) -> KnownFailure:
        """Save a new failure as it was found."""
        found, path = self._shard.signed(order, verdict), ""
        try:
            path = str(counterexample.save(found, self._folder()))
        except OSError as error:
            self._cannot_save(error)
        failure = self.enter(found, path)
        self._open.append(failure)
        return failure

    def enter(self, found: Counterexample, path: str, *, saved: bool = False) -> KnownFailure:
        """Report a failure of this run."""
        failure = KnownFailure(self.shard, self._count, found, path, saved=saved)
        self._count += 1
        self.emit(FailureFound(self.shard, failure.number, found, path, self._elapsed(), saved))
        return failure

    def learn(self, news: Sequence[FailureFound | FailureChanged]) -> None:
        """Learn the failures of other shards; one of this shard that is the same bug as an earlier one ends.

        News that comes twice changes nothing, and what came first of a failure is replaced by what comes later.
        """
        for event in news:
            done = isinstance(event, FailureChanged) and event.done and not event.same_as
            if not done or event.shard == self.shard:
                continue
            before = self._told(event)
            if before is not None and before.found == event.counterexample:
                continue
            if before is not None:
                self.known.remove(before)
            other = KnownFailure(event.shard, event.failure, event.counterexample, event.path)
            other.trigger, other.complete = trigger_in(other.found), other.found.shrunk
            self._learn(other)

    def _told(self, event: FailureChanged | FailureFound) -> KnownFailure | None:
        """Return what is known already of a failure of another shard."""
        told = (known for known in self.known if (known.shard, known.number) == (event.shard, event.failure))
        return next(told, None)

    def _learn(self, other: KnownFailure) -> None:
        """Add a failure of another shard, unless it is one of this shard, which then stays or ends."""
        for own in self.known:
            if own.shard != self.shard:
                continue
            lost, won = is_same(other, own), is_same(own, other)
            if won and (own.saved or not lost or own.shard < other.shard):
                return
            if lost and not own.saved:
                self.known.remove(own)
                self._end_as(own, other)
        self.known.add(other)

    def close(self) -> None:
        """Report the failures that the end of the campaign interrupted as they are."""
        for failure in tuple(self._open):
            self._end(failure)

    def _live(self, failure: KnownFailure, answer: Answer, before: Sequence[Order]) -> None:
        """Confirm, shrink and classify one failure; a hang in a fresh process is confirmed by that."""
        share = Share.of_time(self._max_time, hang=failure.failure_class == HANG)
        order = order_of(failure.found)
        if not answer.fresh:
            answer = confirmation.in_fresh_process(order, self._shard)
        if not confirmation.shows(answer, failure.failure_class):
            self._classify_dependent(failure, before, share)
            return
        self._change(failure, confirmation="confirmed", also=self._also(failure, order, answer), shrunk=False)
        self._reduce(failure, share)
        self._settle(failure)

    def _reduce(self, failure: KnownFailure, share: Share) -> None:
        """Shrink and check a failure. A hang that the end of the campaign leaves without a check is not shrunk."""
        first, hang = failure.found, failure.failure_class == HANG
        if hang:
            share.leave(self._max_time - self._elapsed(), self._shard.launch_seconds)
        try:
            with contextlib.suppress(ShareSpentInterrupt):
                self._shrink(failure, share)
            self._check(failure, first)
        except BaseException:
            if hang:
                self._restore(failure, first)
            raise

    def _settle(self, failure: KnownFailure) -> None:
        """End a failure as itself, or as the known failure that it is."""
        failure.trigger, failure.complete = trigger_in(failure.found), failure.found.shrunk
        self._explain(failure)
        self._shard.learn()
        earlier = self.known.same_as(failure)
        if earlier is None:
            self.known.add(failure)
            self._end(failure, self._shard.digest(order_of(failure.found)))
            return
        earlier.widen(failure)
        if _is_simpler(failure, earlier) and earlier.shard == self.shard and not earlier.saved:
            self._replace(earlier, failure)
        self._end_as(failure, earlier)

    def _replace(self, earlier: KnownFailure, simpler: KnownFailure) -> None:
        """Let a known failure have the simpler case in which the same bug was found again."""
        earlier.found, earlier.trigger, earlier.complete = simpler.found, simpler.trigger, simpler.complete
        self._finish(earlier, self._shard.digest(order_of(earlier.found)))
        for other in self.known:
            if other is not earlier and other.shard == self.shard and not other.saved and is_same(earlier, other):
                self.known.remove(other)
                self._end_as(other, earlier)

    def resume(self, seconds: float) -> None:
        """Go on with the shrinking of each failure that its share did not complete, for so many seconds together."""
        if seconds <= 0.0 or self._resumed:
            return
        self._resumed = True
        waiting = [known for known in self.known if known.shard == self.shard and not known.complete]
        for failure in waiting:
            failure.complete = True
            self._reduce(failure, Share(time.monotonic() + seconds / (len(waiting) + 1)))
            failure.trigger, failure.complete = trigger_in(failure.found), failure.found.shrunk
            self._explain(failure)
            earlier = self.known.same_as(failure)
            if earlier is None:
                self._finish(failure, self._shard.digest(order_of(failure.found)))
            else:
                self.known.remove(failure)
                self._end_as(failure, earlier)

    def _also(self, failure: KnownFailure, order: Order, answer: Answer) -> tuple[str, ...]:
        """Return the classes of what follows from a failure: that no line and no known failure explains."""
        unknown = (verdict for verdict in failures_of(answer) if self.known.matching(order, verdict) is None)
        classes = (class_of(verdict) for verdict in unknown)
        return tuple(name for name in classes if name != failure.failure_class and not has_place(name))

    def _classify_dependent(self, failure: KnownFailure, before: Sequence[Order], share: Share) -> None:
        """Classify a failure that did not recur in a fresh process: it needs earlier cases, or chance."""
        earlier = self.known.of_confirmation(failure.failure_class, "state", "flaky")
        if earlier is not None:
            self._end_as(failure, earlier)
            return
        found = confirmation.dependent(order_of(failure.found), failure.failure_class, self._shard, before)
        sequence = _steps(found.sequence)
        fields = {"confirmation": found.confirmation, "failed": found.failed, "tries": found.tries}
        self._change(failure, sequence=sequence, **fields)
        if sequence:
            self._shorten(failure, found.sequence, share)
        self._settle(failure)

    def _shorten(self, failure: KnownFailure, sequence: tuple[Order, ...], share: Share) -> None:
        order = order_of(failure.found)

        def fails(shorter: tuple[Order, ...]) -> bool:
            share.spend()
            failed = confirmation.after(shorter, order, failure.failure_class, self._shard)
            if failed:
                self._change(failure, sequence=_steps(shorter))
            return failed

        with contextlib.suppress(ShareSpentInterrupt):
            confirmation.shortened(sequence, fails)

    def _shrink(self, failure: KnownFailure, share: Share) -> None:
        """Replace the case by simpler ones that show the same failure, then find what it needs."""
        answers: dict[Order, Answer] = {}

        def shown(order: Order) -> Verdict | None:
            if order not in answers:
                share.spend()
                self._shard.learn()
                answers[order] = self._shard.judge(order, "shrink")
                if self._known_elsewhere(failure, order_of(failure.found), failure.found.verdict):
                    raise ShareSpentInterrupt  # another shard has found it too
            return self._shown(failure, order, answers[order])

        def is_smaller(order: Order) -> bool:
            verdict = shown(order)
            if verdict is None:
                return False
            also = self._also(failure, order, answers[order])
            self._change(failure, case=order.case, relation=order.relation, verdict=verdict, also=also)
            return True

        def judge(order: Order) -> Shown:
            verdict = shown(order)
            if verdict is not None:
                return "fails"
            return "other" if confirmation.shows(answers[order], failure.failure_class) else "passes"

        domain = self._shard.ready.domain
        self._change(failure, trigger=needed_by(failure.found.case, failure.found.relation))
        first = order_of(failure.found)
        harmless = self.known.beside(first, failure.failure_class)
        if harmless != first:
            is_smaller(harmless)
        simplify(order_of(failure.found), is_smaller, domain)
        trigger = trigger_of(order_of(failure.found), judge, domain)
        self._change(failure, trigger=trigger, shrunk=True)

    def _shown(self, failure: KnownFailure, order: Order, answer: Answer) -> Verdict | None:
        """Return the verdict that shows a failure, None where a known failure may have caused it."""
        for verdict in failures_of(answer):
            same_place = bool(verdict.site) and verdict.site == failure.found.verdict.site
            if class_of(verdict) == failure.failure_class or same_place:
                return None if self._known_elsewhere(failure, order, verdict) else verdict
        return None

    def _known_elsewhere(self, failure: KnownFailure, order: Order, verdict: Verdict) -> bool:
        """Return whether a verdict shows another known failure."""
        return self.known.matching(order, verdict) not in (None, failure)

    def _check(self, failure: KnownFailure, first: Counterexample) -> None:
        """Run the shrunk case in fresh processes, a hang with the full limit.

        A case that fails only sometimes is flaky. Where it never fails, shrinking has followed what earlier cases left
        in the process, or the case is only slow; then it stays as it was first.
        """
        order, hang = order_of(failure.found), failure.failure_class == HANG
        if hang and order == order_of(first):
            return
        checks = 1 if failure.failure_class in ("crash", HANG) else confirmation.CHECKS
        answers = [confirmation.in_fresh_process(order, self._shard) for _ in range(checks)]
        failed = sum(confirmation.shows(answer, failure.failure_class) for answer in answers)
        if failed == checks:
            if hang:
                (verdict,) = (verdict for verdict in failures_of(answers[0]) if class_of(verdict) == HANG)
                self._change(failure, verdict=verdict)
            return
        if not failed:
            self._restore(failure, first)
            if hang:
                return
            failed = confirmation.repeated(order_of(first), failure.failure_class, self._shard)
            checks = confirmation.TRIES
        if failed < checks:
            self._change(failure, confirmation="flaky", failed=failed + 1, tries=checks + 1)

    def _restore(self, failure: KnownFailure, first: Counterexample) -> None:
        """Give a failure the case back that it had before it was shrunk."""
        self._change(failure, **{name: getattr(first, name) for name in _SHRUNK})

    def _explain(self, failure: KnownFailure) -> None:
        """Let the failure name poison that reaches the output, or a rounding, if there is time left."""
        found = failure.found
        if found.confirmation != "confirmed" or failure.failure_class not in (OUTPUT, UNWRITTEN):
            return
        with contextlib.suppress(BudgetSpentInterrupt):
            verdict = explained(self._judge, order_of(found), found.verdict)
            failure.found = msgspec.structs.replace(found, verdict=verdict)
            verdict = in_words(self._judge, order_of(found), verdict)
            failure.found = msgspec.structs.replace(found, verdict=verdict)

    def _judge(self, order: Order) -> Answer:
        return self._shard.judge(order, "shrink")

    def _change(self, failure: KnownFailure, **fields: object) -> None:
        """Change the counterexample, in its file too, and report it."""
        found: Counterexample = msgspec.structs.replace(failure.found, digest="", **fields)
        if not found.shrunk and found.confirmation == "confirmed":
            found = msgspec.structs.replace(found, trigger=needed_by(found.case, found.relation))
        failure.found = msgspec.structs.replace(found, signature=signature_of(found.case, found.verdict))
        self._write(failure)
        self._report(failure)

    def _write(self, failure: KnownFailure) -> None:
        try:
            if failure.path:
                counterexample.overwrite(failure.found, Path(failure.path))
        except OSError as error:
            self._cannot_save(error)

    def _report(self, failure: KnownFailure, *, done: bool = False, same_as: str = "") -> None:
        number, found, path = failure.number, failure.found, failure.path
        self.emit(FailureChanged(self.shard, number, found, path, done=done, same_as=same_as))

    def _end(self, failure: KnownFailure, digest: str = "") -> None:
        """Write and report a failure for the last time, its file named by its signature."""
        self._open.remove(failure)
        self._finish(failure, digest)

    def _finish(self, failure: KnownFailure, digest: str) -> None:
        failure.found = msgspec.structs.replace(failure.found, digest=digest)
        self._write(failure)
        with contextlib.suppress(OSError):
            failure.path = failure.path and str(counterexample.rename(Path(failure.path), failure.found))
        self._report(failure, done=True)

    def _end_as(self, failure: KnownFailure, earlier: KnownFailure) -> None:
        """End a failure that is the same bug as an earlier one: its file goes."""
        if failure in self._open:
            self._open.remove(failure)
        if failure.path:
            Path(failure.path).unlink(missing_ok=True)
        self._report(failure, done=True, same_as=earlier.path)

    def _cannot_save(self, error: OSError) -> None:
        self.emit(Note(self.shard, f"a failure cannot be saved: {error}"))


_SHRUNK: Final = ("case", "relation", "verdict", "also", "trigger", "shrunk")


def _is_simpler(failure: KnownFailure, other: KnownFailure) -> bool:
    one, two = failure.found, other.found
    return simplicity(one.case, one.relation) < simplicity(two.case, two.relation)


def order_of(found: Counterexample) -> Order:
    """Return the order that repeats the case of a counterexample."""
    return Order(found.case, found.relation)


def _steps(sequence: Sequence[Order]) -> tuple[Step, ...]:
    return tuple(Step(order.case, order.relation) for order in sequence)
