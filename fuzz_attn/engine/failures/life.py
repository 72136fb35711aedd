"""The life of a failure: saved at once, confirmed in a fresh process, shrunk, and classified.

Each smaller case replaces the file. So whatever ends the campaign, the file holds the smallest failure so far.

What a GPU finds is replayed in the simulator first (:class:`fuzz_attn.engine.isolated_worker.Explainer`). If it fails
there in the same way, it goes on there, *there* in this package, and a launch *here*, on the GPU, checks the shrunk
case.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from fuzz_attn.counterexamples import Counterexample, Elsewhere, environment_of
from fuzz_attn.engine.events import FailureChanged, FailureFound, Phase
from fuzz_attn.engine.failures import confirmation
from fuzz_attn.engine.failures.confirmation import Dependent, Here, Launches, Shard, order_of, steps_of
from fuzz_attn.engine.failures.other_shards import OtherShards, Waiting, WaitingFailures
from fuzz_attn.engine.failures.records import Records, Unfollowed
from fuzz_attn.engine.failures.reduction import (
    Reduction,
    Share,
    allowed,
    is_simpler,
    name_cause,
    restated,
    restore,
    second_order,
    shown_together,
)
from fuzz_attn.engine.failures.suspected_calls import as_sequence, is_of_second_launch, needing_earlier_call
from fuzz_attn.engine.failures.triage import (
    HANG,
    KnownFailure,
    KnownFailures,
    class_of,
    does_without,
    failures_of,
    has_place,
    is_finding,
    is_same,
    shown_in_same_way,
    traits_of_both,
    trigger_in,
)
from fuzz_attn.engine.orders import Answer, Order
from fuzz_attn.errors import BudgetSpentInterrupt, ShareSpentInterrupt
from fuzz_attn.operations.registry import AnyDomain, operation_of
from fuzz_attn.oracle.verdict import Verdict

MOST_FAILURES: Final = 40
"""A shard follows this many failures of its own; a target with more of them fails in every case."""
EXCUSED: Final = 2
"""So many failures of a class that do not recur in a fresh process may be chance; one more depends on earlier cases."""
LAST_PART: Final = 0.75
"""From then on what is left of the time goes to failures whose shrinking is not complete."""
MOST_SLOW: Final = 2
"""So many launches that took long while a failure was shrunk are run again, to see whether they hang."""


class FailureLives:
    """Follows every failure of one shard.

    What a failing case shows is saved at once: also what shows beside a failure while that is confirmed or shrunk, and
    what the shard has no room to follow. :meth:`answered` says that a case failed and :meth:`meet` what becomes of it;
    whatever ends the shard between them, :meth:`close` saves the failure.
    """

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
        self.records = Records(number, shard.emit, folder, elapsed)
        self._here = Here(shard, self.records, self._look_beside)
        self._max_time = float("inf") if max_time is None else max_time
        self._elapsed = elapsed
        self._open: list[KnownFailure] = []
        self._resumed: list[KnownFailure] = []
        self._longest = 0.0
        self._unmet: tuple[Order, Answer] | None = None
        """A failing case of the search or of a file that nothing has become of yet."""
        self._living: KnownFailure | None = None
        """The failure that is being confirmed or shrunk."""
        self._is_beside = False
        """Whether it showed beside another one."""
        self._in_fresh = False
        """Whether each of its cases needs a process that has judged none."""
        self._beside: list[tuple[KnownFailure, Answer]] = []
        """What showed beside it, to be followed next."""
        self.waiting = WaitingFailures(number)
        self._slow: Order | None = None
        self._slow_checks = 0
        self._others = OtherShards(number, self.known, self.waiting, lambda: self._living, self._end_as)
        self._unfollowed = Unfollowed(self._saved_as_seen, self.records.seen_again)
        self._excused: Counter[str] = Counter()

    def limit_to(self, seconds: float) -> None:
        """Let failures be followed for so many seconds of the campaign."""
        self._max_time = seconds

    @property
    def longest(self) -> float:
        """The seconds that following a failure has taken at most, here or in another shard, that of a hang aside."""
        return max(self._longest, self.waiting.longest)

    @property
    def may_follow(self) -> bool:
        """Whether another failure would be followed; saved ones and those of other shards take no room."""
        own = sum(known.shard == self.shard and not known.saved for known in self.known)
        return own + len(self._open) < MOST_FAILURES

    def judge(self, order: Order, phase: Phase) -> Answer:
        """Return the shard's answer to an order, and save what it shows beside the failure that is being followed."""
        living = self._living
        there = living is not None and living.there
        if self._in_fresh:
            self.renew()
        answer = self._place(there=there).judge(order, phase)
        if living is not None and order.only_judges and not answer.killed and not answer.missing:
            self._look_beside(living, order, answer, phase, there=there)
        return answer

    def renew(self) -> None:
        """Let the next order be judged by a process that has judged none."""
        self._place(there=self._living is not None and self._living.there).renew()

    def _place(self, *, there: bool) -> Launches:
        """Return what judges cases: the shard, or ``there`` what explains them."""
        explainer = self._shard.explainer if there else None
        return explainer or self._shard

    @property
    def backend(self) -> str:
        """The name of the finding backend."""
        return self._shard.ready.backend

    @property
    def domain(self) -> AnyDomain:
        """What the target promises."""
        return self._shard.ready.domain

    def answered(self, order: Order, answer: Answer) -> None:
        """Note that a case failed, so that it is saved even if the shard ends before :meth:`meet`."""
        self._unmet = order, answer

    def take_unmet(self) -> tuple[Order, Answer] | None:
        """Return a failing case that nothing has become of yet, and leave it to the caller."""
        unmet, self._unmet = self._unmet, None
        return unmet

    def meet(self, order: Order, answer: Answer, before: Sequence[Order]) -> None:
        """Count the known failures of an answer, and follow the new ones.

        ``before`` are the cases that ran in the same process before this one.
        """
        self._unmet = order, answer
        if answer.killed:
            killed, answer = answer.verdict, confirmation.in_fresh_process(order, self)
            if not confirmation.shows(answer, class_of(killed)):
                self._meet_instead(order, killed, answer, before)
                return
            self._unmet = order, answer
        kept = needing_earlier_call(order, answer, self.known)
        if kept is not None:
            self.records.seen_again(kept)
            answer = confirmation.in_fresh_process(order, self)
            self._unmet = order, answer
        failures = failures_of(answer)
        shown, new = self._sorted(order, failures)
        explainer = self._shard.explainer
        if explainer is None or explainer.unusable:  # else it looks at second launches, which would compile here
            second, new = self._of_second_launch(order, new)
            shown += second
        for known in shown:
            self.records.seen_again(known)
        started = [self._started(order, verdict) for verdict in new if self._may_start(order, verdict)]
        self._unmet = None
        for failure in started:
            explained = self._explanation(order, failures, failure)
            if explained is None:
                self._live_or_wait(Waiting(failure, answer, before))
            else:
                self._end_as(failure, explained)
        for known in shown:
            self._look_behind(known, order, answer, before)
        self._follow_beside()

    def _look_behind(self, known: KnownFailure, order: Order, answer: Answer, before: Sequence[Order]) -> None:
        """Follow a bug of logic that a case has where it shows a known failure of the finding backend only."""
        explainer, traits = self._shard.explainer, traits_of_both(order)
        verdicts = [each for each in failures_of(answer) if known.shown_by(class_of(each), traits)]
        if explainer is None or explainer.unusable or not verdicts or not known.may_hide(order):
            return
        explainer.renew()
        there = explainer.judge(order, "confirm")
        _, new = self._sorted(order, shown_in_same_way(verdicts[0], there, order), there=True)
        if not new:
            self._look_beside(known, order, there, "confirm", there=True)
        elif self._may_start(order, verdicts[0]):
            self._live(Waiting(self._started(order, verdicts[0]), answer, before))

    def excuse(self, order: Order, verdict: Verdict, before: Sequence[Order], *, judged: bool = False) -> None:
        """Count a failure that did not recur in a fresh process; after some of a class, follow the next as dependent.

        ``before`` are the cases that ran in the process that failed, and ``judged`` says whether the failed verdict was
        reported.
        """
        if self._are_too_many(verdict, judged=judged):
            self._follow_excused(order, verdict, before)

    def _meet_instead(self, order: Order, killed: Verdict, answer: Answer, before: Sequence[Order]) -> None:
        """Meet the answer of another worker to a case whose worker was killed, which is excused."""
        how = "passes" if answer.verdict.passed else "fails in another way"
        text = f"a worker was ended from outside, and the case that it was running {how} in another"
        self.records.note(text)
        too_many = self._are_too_many(killed, judged=True)
        if not answer.verdict.passed:
            self.meet(order, answer, ())
        if too_many:
            self._follow_excused(order, killed, before)

    def _are_too_many(self, verdict: Verdict, *, judged: bool) -> bool:
        """Count a failure that did not recur in a fresh process; return whether there were too many for chance."""
        failure_class = class_of(verdict)
        known = self.known.of_used_process(failure_class)
        if known is not None:
            self._unmet = None
            self.records.seen_again(known)
            return False
        self.records.excused(verdict, judged=judged)
        self._unmet = None
        self._excused[failure_class] += 1
        return self._excused[failure_class] > EXCUSED

    def _follow_excused(self, order: Order, verdict: Verdict, before: Sequence[Order]) -> None:
        if self._may_start(order, verdict):
            self._follow_dependent(order, verdict, before)
            self._follow_beside()

    def _follow_dependent(self, order: Order, verdict: Verdict, before: Sequence[Order]) -> None:
        """Follow a failure that has not recurred in a fresh process several times; it counts if the time is up first.

        Where it recurs neither after the cases before it nor in some tries, something else was the cause.
        """
        failure_class = class_of(verdict)
        share = Share.of_time(self._max_time, hang=failure_class == HANG)
        checks = 1 if failure_class == HANG else confirmation.CHECKS
        try:
            found = confirmation.dependent(order, failure_class, self, before, checks)
        except BaseException:
            sequence = tuple(before[-confirmation.LAST_CASES[0] :])
            self.records.change(self._started(order, verdict), confirmation="state", sequence=steps_of(sequence))
            raise
        if found.confirmation == "flaky" and found.failed == 1:
            self._excused[failure_class] = 0
            text = f"{verdict.message}, and not again after the same cases before it: the machine may be the cause"
            self.records.note(text)
            return
        self._settle_dependent(self._started(order, verdict), found, share)

    def _may_start(self, order: Order, verdict: Verdict) -> bool:
        """Return whether there is room to follow a new failure; if not, save it as it was seen, or count it."""
        if self.may_follow:
            return True
        self._unfollowed.add(order, verdict)
        return False

    def _look_beside(
        self, failure: KnownFailure, order: Order, answer: Answer, phase: Phase, *, there: bool = False
    ) -> None:
        """Save each new failure that a case shows beside the one that is followed, and that does not follow from it."""
        failures = failures_of(answer)
        own = any(failure.shows(verdict) for verdict in failures)
        _, new = self._sorted(order, failures, there=there)
        waiting = {known.failure_class for known in self._open}
        for verdict in new:
            name = class_of(verdict)
            follows = name in failure.found.also or (own and not has_place(name))
            if failure.shows(verdict) or follows or name in waiting or self._alternates(name):
                continue
            if name == HANG and phase == "shrink":  # it had only a short time
                self._slow = self._slow or order
            elif self._may_start(order, verdict):
                self._beside.append((self._started(order, verdict, there=there), answer))

    def _alternates(self, failure_class: str) -> bool:
        """Return whether a class is known as flaky that shows beside a failure which showed beside another one.

        Two flaky failures of one case would otherwise be followed in turn without end.
        """
        return self._is_beside and self.known.of_confirmation(failure_class, "state", "flaky") is not None

    def _follow_beside(self) -> None:
        """Follow what was saved while other failures were followed."""
        self._judge_slow()
        while self._beside:
            failure, answer = self._beside.pop(0)
            known = self.known.matching(order_of(failure.found), failure.found.verdict, there=failure.there)
            if known is None:
                self._live_or_wait(Waiting(failure, answer, beside=True))
                self._judge_slow()
            else:
                self._end_as(failure, known)

    def _live_or_wait(self, waiting: Waiting) -> None:
        if not self.waiting.takes(waiting, self._max_time, self._max_time - self._elapsed()):
            self._live(waiting)

    def follow_waiting(self) -> None:
        """Follow what no longer waits for other shards, or end it as what they told."""
        for waiting in self.waiting.leaving():
            failure = waiting.failure
            known = self.known.matching(order_of(failure.found), failure.found.verdict, there=failure.there)
            if known is None:
                self._live(waiting)
                self._follow_beside()
            else:
                self._end_as(failure, known)

    def _judge_slow(self) -> None:
        """Run a launch that took long while a failure was shrunk with the full limit, where no hang is known."""
        order, self._slow = self._slow, None
        known = any(known.failure_class == HANG for known in (*self.known, *self._open))
        if order is None or known or self._slow_checks >= MOST_SLOW:
            return
        self._slow_checks += 1
        answer = confirmation.in_fresh_process(order, self)
        for verdict in failures_of(answer):
            if class_of(verdict) == HANG and self._may_start(order, verdict):
                answer = msgspec.structs.replace(answer, fresh=True)
                self._beside.append((self._started(order, verdict), answer))

    def _sorted(
        self, order: Order, failures: Sequence[Verdict], *, there: bool = False
    ) -> tuple[list[KnownFailure], list[Verdict]]:
        """Return the known failures, and the verdicts that are none and follow from none."""
        matches = [(verdict, self.known.matching(order, verdict, there=there)) for verdict in failures]
        shown = [known for _, known in matches if known is not None]
        following = {name for known in shown for name in known.found.also}
        return shown, [verdict for verdict, known in matches if known is None and class_of(verdict) not in following]

    def _of_second_launch(
        self, order: Order, new: list[Verdict], *, there: bool = False
    ) -> tuple[list[KnownFailure], list[Verdict]]:
        """Return the known failures that a relation's second launch shows as a case of its own, and what else is new.

        A relation on a wrong launch says nothing more.
        """
        related = [verdict for verdict in new if verdict.property_name == order.relation]
        second = second_order(order) if related and len(self.known) else None
        shown: list[KnownFailure] = []
        if second is not None and allowed(second, self._shard.ready.domain):
            with contextlib.suppress(BudgetSpentInterrupt):
                answer = self._place(there=there).judge(second, "shrink")
                shown, _ = self._sorted(second, failures_of(answer), there=there)
        classes = {name for known in shown for name in (known.failure_class, *known.found.also)}
        return shown, [verdict for verdict in new if verdict not in related or class_of(verdict) not in classes]

    def _explanation(self, order: Order, failures: Sequence[Verdict], failure: KnownFailure) -> KnownFailure | None:
        """Return the known failure that a new one is, or follows from, now that others of the same case are known."""
        shown, _ = self._sorted(order, failures)
        name = failure.failure_class
        return next((known for known in shown if known.failure_class == name or name in known.found.also), None)

    def _started(self, order: Order, verdict: Verdict, *, there: bool = False) -> KnownFailure:
        """Save a new failure as it was found."""
        failure = self.records.save(self._signed(order, verdict, confirmation.NOT_REPLAYED, there=there))
        failure.there = there
        self._open.append(failure)
        return failure

    def _saved_as_seen(self, order: Order, verdict: Verdict) -> KnownFailure:
        """Save a failure that is not followed, as it was found."""
        failure = self.records.save(self._signed(order, verdict, confirmation.ONLY_SEEN), followed=False)
        self.records.report(failure, done=True)
        return failure

    def _signed(self, order: Order, verdict: Verdict, reason: str, *, there: bool = False) -> Counterexample:
        """Return a new counterexample, with the ``reason`` why it was not explained so far, or found ``there``."""
        found, explainer = self._shard.signed(order, verdict), self._shard.explainer
        if explainer is None:
            return found
        if there:
            ready = explainer.ready
            return msgspec.structs.replace(found, environment=environment_of(ready.backend, ready.shims))
        elsewhere = Elsewhere(explainer.backend, reason=reason, found_as=(class_of(verdict),))
        return msgspec.structs.replace(found, elsewhere=elsewhere)

    def learn(self, news: Sequence[FailureFound | FailureChanged]) -> None:
        """Learn the failures of other shards; one of this shard that is the same bug as an earlier one ends."""
        self._others.learn(news)

    def close(self) -> None:
        """Save what the end left unsaved, and report what it interrupted as it is, or as a bug that is known by now."""
        self._living = None
        if unmet := self.take_unmet():
            self.see(*unmet)
        for failure in tuple(self._open):
            seen_only = failure.found.confirmation == "unconfirmed"
            if known := seen_only and self.known.matching(order_of(failure.found), failure.found.verdict):
                self._end_as(failure, known)
            else:
                self._end(failure)

    def see(self, order: Order, answer: Answer) -> None:
        """Count the known failures of an answer, and save the new ones without following them now.

        A case whose worker was killed is only counted.
        """
        if answer.killed:
            self.records.excused(answer.verdict, judged=True)
            self.records.note("a worker was ended from outside, and no time was left to run its case again")
            return
        shown, new = self._sorted(order, failures_of(answer))
        for known in shown:
            self.records.seen_again(known)
        started = {known.failure_class for known in self._open if known.found.case == order.case}
        for verdict in new:
            if class_of(verdict) not in started and self._may_start(order, verdict):
                failure = self._started(order, verdict)
                if answer.fresh:
                    self.records.change(failure, confirmation="confirmed")

    def _live(self, waiting: Waiting) -> None:
        """Confirm, shrink and classify one failure, and look at what shows beside it."""
        failure, answer, before = waiting.failure, waiting.answer, waiting.before
        started = time.monotonic()
        with self._followed(failure, beside=waiting.beside):
            if not self._live_there(failure):
                self._confirm(failure, answer, before)
        if failure.failure_class != HANG:
            self._longest = max(self._longest, time.monotonic() - started)

    def _live_there(self, failure: KnownFailure) -> bool:
        """Replay a failure on the explaining backend, and follow it there if it fails in the same way.

        Return whether it did. What else the case shows there is a failure of its own.
        """
        explainer, order = self._shard.explainer, order_of(failure.found)
        if explainer is None or failure.there:
            return False
        explainer.renew()
        answer = explainer.judge(order, "confirm")
        if not answer.judged:
            self._here.say(failure, outcome="unknown", reason=answer.unsupported)
            return False
        same = shown_in_same_way(failure.found.verdict, answer, order)
        if not same:
            failure.replayed.append(operation_of(order.case).aspects.core(traits_of_both(order)))
            self._here.say(failure, outcome="passes", reason="")
            self._look_beside(failure, order, answer, "confirm", there=True)
            return False
        failure.there = True
        self._follow_findings(order, answer, same)
        earlier = self._cause_there(order, answer, same)
        if earlier is None:
            self._begin_there(failure, answer, same[-1])
            self._finish(failure, Share.of_time(self._max_time, hang=failure.failure_class == HANG))
        else:
            self._end_as(failure, earlier)
            self._here.take_from(failure, earlier, self._digest)
        return True

    def _follow_findings(self, order: Order, answer: Answer, same: Sequence[Verdict]) -> None:
        """Follow the findings of sanitizers first that may be the cause of a failure that also shows without them."""
        findings = [verdict for verdict in same if is_finding(verdict)]
        if len(findings) == len(same):
            return
        _, new = self._sorted(order, findings, there=True)
        for verdict in new:
            if self._may_start(order, verdict):
                self._beside.append((self._started(order, verdict, there=True), answer))
        self._follow_beside()

    def _cause_there(self, order: Order, answer: Answer, same: Sequence[Verdict]) -> KnownFailure | None:
        """Return the known failure that the last of some verdicts of the explaining backend is, or follows from."""
        shown, new = self._sorted(order, failures_of(answer), there=True)
        second, _ = self._of_second_launch(order, [verdict for verdict in new if verdict in same], there=True)
        name = class_of(same[-1])
        return next((known for known in (*shown, *second) if name in (known.failure_class, *known.found.also)), None)

    def _begin_there(self, failure: KnownFailure, answer: Answer, verdict: Verdict) -> None:
        """Let a failure be what the explaining backend shows, and look at what else it shows."""
        order = order_of(failure.found)
        failure.found = msgspec.structs.replace(failure.found, verdict=verdict)
        self._here.say(failure, outcome="fails", reason="")
        self.records.change(failure, confirmation="confirmed", also=self.also(failure, order, answer), shrunk=False)
        self._look_beside(failure, order, answer, "confirm", there=True)

    @contextmanager
    def _followed(self, failure: KnownFailure, *, beside: bool = False) -> Iterator[None]:
        before = self._living, self._is_beside, self._in_fresh
        self._living, self._is_beside = failure, beside
        found = failure.found
        self._in_fresh = order_of(found).in_fresh_process and found.confirmation != "state"
        try:
            yield
        finally:
            self._living, self._is_beside, self._in_fresh = before

    def _confirm(self, failure: KnownFailure, answer: Answer, before: Sequence[Order]) -> None:
        """Confirm a failure and what comes after; a hang in a fresh process is confirmed by that."""
        share = Share.of_time(self._max_time, hang=failure.failure_class == HANG)
        order = order_of(failure.found)
        if not answer.fresh:
            answer = confirmation.in_fresh_process(order, self)
        alone = confirmation.shows(answer, failure.failure_class)
        second = self._shard.keeps and is_of_second_launch(order, failure.found.verdict)
        kept = self.known.needing_earlier_call if second or not alone else None
        if kept is not None:
            self._end_as(failure, kept)
            return
        shown = None
        self._in_fresh = self._in_fresh or second
        if self._shard.ready.calls and (second or not alone):
            found_as, domain, keeps = failure.failure_class, self.domain, self._shard.keeps
            shown = as_sequence(order, found_as, answer, self._shard, before, share, domain, keeps=keeps)
        if shown is not None:
            order, answer, verdict = shown
            self._in_fresh = True
            self.records.change(failure, case=order.case, relation=None, verdict=verdict)
        elif not alone:
            self._in_fresh = False  # it needs a used process, whatever its case
            self._classify_dependent(failure, before, share)
            return
        self.records.change(failure, confirmation="confirmed", also=self.also(failure, order, answer), shrunk=False)
        self._finish(failure, share)

    def _finish(self, failure: KnownFailure, share: Share) -> None:
        """Shrink and classify a confirmed failure; another case may say better what it is, or that it is known."""
        better = restated(failure, self._place(there=failure.there), self.domain)
        if better is not None:
            order, verdict = better
            self.records.change(failure, case=order.case, relation=None, verdict=verdict, also=())
            known = self.known.matching(order, verdict, there=failure.there)
            if known is not None:
                self._end_as(failure, known)
                self._here.take_from(failure, known, self._digest)
                return
        self._reduce(failure, share)
        self._settle(failure)

    def _reduce(self, failure: KnownFailure, share: Share) -> None:
        """Shrink and check a failure."""
        there = failure.there
        if failure.failure_class == HANG:
            seconds = self._max_time - self._elapsed()
            limit = self._shard.launch_seconds
            share.leave(seconds, limit)
        few_kernels, first = self._shard.explainer is not None and not there, failure.found
        reduction = Reduction(failure, self, share, few_kernels=few_kernels)
        reduction.run()
        if failure.found.confirmation == "flaky" and self._shard.keeps and not self._in_fresh:
            self._in_fresh = True  # shrinking has followed what earlier cases left in the process
            self.records.change(failure, **{name: getattr(first, name) for name in ("confirmation", "failed", "tries")})
            restore(failure, first, self.records)
            share = Share.of_time(self._max_time, hang=False)
            reduction = Reduction(failure, self, share, few_kernels=few_kernels)
            reduction.run()
        failure.steps = reduction.steps

    def _settle(self, failure: KnownFailure) -> None:
        """End a failure as itself, or as the known failure that it is."""
        failure.trigger, failure.complete = trigger_in(failure.found), failure.found.shrunk
        if self.known.same_as(failure) is None:
            self._here.check(failure)
        name_cause(failure, self)
        self.learn(self._shard.news())
        earlier = self.known.same_as(failure) or shown_together(failure, self)
        if earlier is None:
            self.known.add(failure)
            self._end(failure, self._digest(failure))
            for chance in self.known.by_chance(self.shard) if failure.is_kept else ():
                self.known.remove(chance)
                self._end_as(chance, failure)
            return
        earlier.widen(failure)
        if earlier.shard == self.shard and not earlier.saved:
            self._take_from(failure, earlier)
        self._end_as(failure, earlier)

    def _take_from(self, failure: KnownFailure, earlier: KnownFailure) -> None:
        """Let a known failure have what another case of the same bug says better, or besides."""
        name = failure.failure_class
        if is_simpler(failure.found, earlier.found) or does_without(failure, earlier):
            self._replace(earlier, failure)
        elif has_place(name) and name != earlier.failure_class:
            self.records.change(earlier, also=(*earlier.found.also, name))
            self.records.finish(earlier, self._digest(earlier))

    def _replace(self, earlier: KnownFailure, simpler: KnownFailure) -> None:
        """Let a known failure have the simpler case in which the same bug was found again."""
        earlier.seen_as |= earlier.found_as
        earlier.other_classes |= {earlier.failure_class}
        earlier.found, earlier.trigger, earlier.complete = simpler.found, simpler.trigger, simpler.complete
        earlier.there = simpler.there
        self.records.finish(earlier, self._digest(earlier))
        for other in self.known:
            if other is not earlier and other.shard == self.shard and not other.saved and is_same(earlier, other):
                self.known.remove(other)
                self._end_as(other, earlier)

    def resume(self, seconds: float) -> None:
        """Go on, once, with shrinking each failure that its share did not complete, for so many seconds in all."""
        if seconds <= 0.0:
            return
        own = [known for known in self.known if known.shard == self.shard and not known.complete]
        waiting = [known for known in own if known not in self._resumed]
        self._resumed += waiting
        for failure in waiting:
            if failure not in tuple(self.known):  # what another shard has told meanwhile is the same bug
                continue
            failure.complete = True
            with self._followed(failure):
                self._reduce(failure, Share(time.monotonic() + seconds / (len(waiting) + 1)))
                self._here.check(failure)
                failure.trigger, failure.complete = trigger_in(failure.found), failure.found.shrunk
                name_cause(failure, self)
            earlier = self.known.same_as(failure)
            if earlier is None:
                self.records.finish(failure, self._digest(failure))
            else:
                self.known.remove(failure)
                self._end_as(failure, earlier)
        self._follow_beside()

    def also(self, failure: KnownFailure, order: Order, answer: Answer) -> tuple[str, ...]:
        """Return the classes of what follows from a failure: that no line and no known failure explains."""
        there = failure.there
        unknown = (each for each in failures_of(answer) if self.known.matching(order, each, there=there) is None)
        classes = (class_of(verdict) for verdict in unknown)
        return tuple(name for name in classes if name != failure.failure_class and not has_place(name))

    def _classify_dependent(self, failure: KnownFailure, before: Sequence[Order], share: Share) -> None:
        """Classify a failure that did not recur in a fresh process: it needs earlier cases, or chance."""
        earlier = self.known.of_confirmation(failure.failure_class, "state", "flaky")
        if earlier is not None:
            self._end_as(failure, earlier)
            return
        found = confirmation.dependent(order_of(failure.found), failure.failure_class, self, before)
        self._settle_dependent(failure, found, share)

    def _settle_dependent(self, failure: KnownFailure, found: Dependent, share: Share) -> None:
        """Let a failure say what it depends on, and end it."""
        sequence = steps_of(found.sequence)
        fields = {"confirmation": found.confirmation, "failed": found.failed, "tries": found.tries}
        self.records.change(failure, sequence=sequence, **fields)
        if sequence:
            self._here.say(failure, outcome="unknown", reason=confirmation.AFTER_OTHERS)
        with self._followed(failure):
            if sequence:
                self._shorten(failure, found.sequence, share)
            self._settle(failure)

    def _shorten(self, failure: KnownFailure, sequence: tuple[Order, ...], share: Share) -> None:
        order = order_of(failure.found)

        def fails(shorter: tuple[Order, ...]) -> bool:
            share.spend()
            failed = confirmation.after(shorter, order, failure.failure_class, self)
            if failed:
                self.records.change(failure, sequence=steps_of(shorter))
            return failed

        with contextlib.suppress(ShareSpentInterrupt):
            confirmation.shortened(sequence, fails)

    def _digest(self, failure: KnownFailure) -> str:
        return self._shard.digest(order_of(failure.found))

    def _end(self, failure: KnownFailure, digest: str = "") -> None:
        """Write and report a failure for the last time, its file named by its signature."""
        if failure in self._open:
            self._open.remove(failure)
        self.records.finish(failure, digest)

    def _end_as(self, failure: KnownFailure, earlier: KnownFailure) -> None:
        """End a failure that is the same bug as an earlier one."""
        if failure in self._open:
            self._open.remove(failure)
        self._here.note(earlier, failure.found_as)
        self.records.end_as(failure, earlier)
