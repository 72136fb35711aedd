"""Campaign: one shard of a fuzz test. Cases are drawn, an isolated worker judges them, a failure is shrunk.

Rounds follow each other until the budget of time or cases is spent or a failure is found. A shard ends with its first
failure, shrunk within what is left of the time; what it has by then is saved. While it shrinks, another kind of failure
counts as a pass, so that what is saved is the bug that was found; the others are named.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from hypothesis.errors import FlakyFailure

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.counterexamples import counterexample
from fuzz_attn.counterexamples.counterexample import Counterexample, environment_of
from fuzz_attn.engine.isolation import LAUNCH_SECONDS, IsolatedWorker, OutOfTime
from fuzz_attn.engine.journal import Journal
from fuzz_attn.engine.messages import Order, Setup
from fuzz_attn.engine.schedule import ON_CPU, ON_GPU, FoundError, derived_seed, play
from fuzz_attn.engine.statistics import Statistics, Tally, write
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.relations import RELATIONS

PROGRESS_SECONDS: Final = 0.5
SHORTEST_HANG: Final = 20.0
LEFT_BEHIND: Final = Verdict("oracle", "crash", "the campaign itself ended while this case was running")
"""What the journal says of the case in it."""


@dataclass(frozen=True)
class Plan:
    """What one shard is to do. ``max_time`` in seconds and ``max_cases`` are the shard's own; None has no limit.

    ``run_folder`` takes statistics and the journal, ``fixtures`` the folder of counterexamples, target by target.
    """

    setup: Setup
    shard: int
    shards: int
    seed: int
    max_time: float | None
    max_cases: int | None
    run_folder: Path
    fixtures: Path


@dataclass(frozen=True)
class Outcome:
    """What one shard did and, if it failed, the shrunk counterexample and the file that holds it.

    ``also_seen`` names other kinds of failure met while shrinking, which were not followed.
    """

    statistics: Statistics
    failure: Counterexample | None = None
    path: Path | None = None
    also_seen: tuple[str, ...] = ()


class BudgetSpentError(BaseException):
    """Ends a round at once: a BaseException, because an Exception would be taken for a failure to shrink."""


class Campaign:
    """One shard. :meth:`run` does all of it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tally = Tally()
        self._deadline: float | None = None
        self._started = 0.0
        self._reported = 0.0
        self._answers: dict[bytes, Verdict] = {}
        self._best: Counterexample | None = None
        self._also_seen: dict[str, None] = {}

    def run(self) -> Outcome:
        """Fuzz until the budget is spent or a failure is found and shrunk; save what was found, interrupted or not."""
        limit = launch_limit(self.plan.max_time)
        with IsolatedWorker(self.plan.setup, launch_seconds=limit, index=self.plan.shard) as self.worker:
            self._started = time.monotonic()
            if self.plan.max_time is not None:
                self._deadline = self._started + self.plan.max_time
            self._report()
            self._journal = Journal(self.plan.run_folder / f"journal-{self.plan.shard}.json")
            broken = False
            try:
                self._search()
            except BaseException as error:
                broken = isinstance(error, Exception)  # by the case in the journal, and by no interrupt
                self._outcome()
                raise
            finally:
                self._journal.close(keep=broken or self.tally.unfinished > 0)
            return self._outcome()

    def _search(self) -> None:
        number = 0
        while self._best is None and self._has_budget():
            self._round(number)
            number += 1

    def _has_budget(self) -> bool:
        """Return whether to go on: the time holds while shrinking too, the number of cases only for the search."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return False
        return self._best is not None or self.plan.max_cases is None or self.tally.cases < self.plan.max_cases

    def _round(self, number: int) -> None:
        """Try the cases of one round; returns when they or the budget are spent, or a failure is shrunk."""
        ready = self.worker.ready
        size = ON_CPU if ready.device == "cpu" else ON_GPU
        ahead = size.cases if self.plan.max_cases is None else self.plan.max_cases - self.tally.cases
        round_seed = derived_seed(self.plan.seed, self.plan.shard, number)
        # The failure, if there is one, is in self._best with the verdict that it got.
        with contextlib.suppress(FoundError, FlakyFailure, BudgetSpentError):
            play(ready.domain, round_seed, min(size.cases, ahead), self._try, size)

    def _try(self, case: AttentionCase, relation: str | None) -> None:
        order = Order(case, relation)
        verdict = self._verdict(order)
        if not verdict.passed and self._is_followed(verdict):
            self._keep(order, verdict)
            raise FoundError(verdict.message)

    def _verdict(self, order: Order) -> Verdict:
        """Return the verdict on an order, from memory if it was asked before: a shrinker asks again."""
        encoded = msgspec.json.encode(order)
        known = self._answers.get(encoded)
        if known is not None:
            return known
        if not self._has_budget():
            raise BudgetSpentError
        self._journal.write(msgspec.json.encode(self._signed(order, LEFT_BEHIND)))
        verdict = self._judged(order)
        if self._best is not None:
            self.tally.shrinking += 1
        else:
            self.tally.count(order.case, order.relation, verdict)
        if self._best is not None or not verdict.passed:
            self._answers[encoded] = verdict
        if time.monotonic() - self._reported >= PROGRESS_SECONDS:
            self._report()
        return verdict

    def _judged(self, order: Order) -> Verdict:
        started = time.monotonic()
        try:
            answer = self.worker.judge(order, deadline=self._deadline)
        except OutOfTime:
            self.tally.unfinished += 1
            self.tally.unfinished_seconds = time.monotonic() - started
            raise BudgetSpentError from None
        self.tally.see(answer.masks)
        self.tally.kernels_compiled += answer.compiled
        self.tally.kernels_loaded += answer.loaded
        return answer.verdict

    def _is_followed(self, verdict: Verdict) -> bool:
        """Return whether a failure is of the kind that was found first; remember it if not."""
        if self._best is None or _bug(verdict) == _bug(self._best.verdict):
            return True
        self._also_seen.setdefault(_bug(verdict))
        return False

    def _keep(self, order: Order, verdict: Verdict) -> None:
        """Keep a failure if it is the smallest so far, complete, so that nothing is left to do when the time is up."""
        found = self._signed(order, verdict)
        if self._best is None or found.size < self._best.size:
            self._best = msgspec.structs.replace(found, digest=self._digest(order))

    def _signed(self, order: Order, verdict: Verdict) -> Counterexample:
        """Return a counterexample of an order; the relation stays only where the failure may come of it."""
        ready = self.worker.ready
        relation = verdict.property_name if verdict.property_name in RELATIONS else None
        if verdict.kind in ("crash", "timeout"):
            relation = order.relation
        found = counterexample.signed(self.plan.setup.target, ready.family, relation, order.case, verdict)
        return msgspec.structs.replace(found, environment=environment_of(ready.backend, ready.shims))

    def _digest(self, order: Order) -> str:
        """Return the digest of the case's tensors; nothing where there is no time or no worker left for it."""
        with contextlib.suppress(OutOfTime, FuzzAttnError):
            return self.worker.judge(Order(order.case, digest=True), deadline=self._deadline).digest
        return ""

    def _outcome(self) -> Outcome:
        if self._best is None:
            return Outcome(self._report(last=True))
        path = counterexample.save(self._best, self.plan.fixtures / self.worker.ready.slug)
        statistics = self._report(last=True, counterexamples=(str(path),))
        return Outcome(statistics, self._best, path, tuple(self._also_seen))

    def _report(self, *, last: bool = False, counterexamples: tuple[str, ...] = ()) -> Statistics:
        """Write the shard's statistics for whoever watches; return them."""
        now = time.monotonic()
        plan, ready = self.plan, self.worker.ready
        statistics = Statistics(
            target=plan.setup.target,
            backend=ready.backend,
            seed=plan.seed,
            seconds=now - self._started,
            deaths=self.worker.deaths,
            shims=ready.shims,
            fallback=self.worker.fallback,
            counterexamples=counterexamples,
            state="done" if last else "searching" if self._best is None else "shrinking",
            **self.tally.fields(),
        )
        self._reported = now
        write(statistics, plan.run_folder / f"shard-{ready.slug}-{plan.shard}.json")
        return statistics


def _bug(verdict: Verdict) -> str:
    """Return what tells one bug from another while shrinking."""
    return f"{verdict.property_name} ({verdict.kind.replace('_', ' ')})"


def launch_limit(max_time: float | None) -> float:
    """Return after how many seconds a launch counts as hanging: a campaign of a minute must still see one hang."""
    return LAUNCH_SECONDS if max_time is None else min(LAUNCH_SECONDS, max(max_time / 3, SHORTEST_HANG))
