"""Campaign: one shard of a fuzz test. Cases are drawn and judged by an isolated worker; a failure is shrunk.

Rounds follow each other until the budget of time or cases is spent or a failure is found. A shard ends with its first
failure, shrunk in what is left of the time, and saves the smallest case so far. While it shrinks, another kind of
failure counts as a pass, so that the saved case shows the bug that was found; the outcome names the others.
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
from fuzz_attn.engine.isolated_worker import LAUNCH_SECONDS, IsolatedWorker
from fuzz_attn.engine.journal import Journal
from fuzz_attn.engine.messages import Order, Setup
from fuzz_attn.engine.schedule import ON_CPU, ON_GPU, derived_seed, play_round
from fuzz_attn.engine.statistics import Statistics, Tally, write
from fuzz_attn.errors import BudgetSpentInterrupt, FoundError, FuzzAttnError, OutOfTimeError
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.relations import RELATIONS

PROGRESS_SECONDS: Final = 0.5
SHORTEST_HANG: Final = 20.0
UNFINISHED: Final = Verdict("oracle", "crash", "the campaign itself ended while this case was running")
"""The verdict on a case in the journal."""


@dataclass(frozen=True)
class Plan:
    """The work of one shard. ``max_time`` in seconds and ``max_cases`` are the shard's own; None has no limit.

    ``run_folder`` is for statistics and the journal, ``fixtures`` for counterexamples, with a folder for each target.
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
    """The statistics of one shard and, if it failed, the shrunk counterexample and its file.

    ``also_seen`` names other kinds of failure met while shrinking, which were not followed.
    """

    statistics: Statistics
    failure: Counterexample | None = None
    path: Path | None = None
    also_seen: tuple[str, ...] = ()


class Campaign:
    """One shard, run once by :meth:`run`; ``worker`` judges its cases, by default one for the plan's set-up."""

    def __init__(self, plan: Plan, worker: IsolatedWorker | None = None) -> None:
        self.plan = plan
        self.tally = Tally()
        limit = launch_limit(plan.max_time)
        self.worker = worker or IsolatedWorker(plan.setup, launch_seconds=limit, index=plan.shard)
        self._deadline: float | None = None
        self._started = 0.0
        self._reported = 0.0
        self._answers: dict[bytes, Verdict] = {}
        self._best: Counterexample | None = None
        self._also_seen: dict[str, None] = {}

    def run(self) -> Outcome:
        """Fuzz until the budget is spent or a failure is found and shrunk; save the failure, also on an interrupt."""
        with self.worker:
            self._started = time.monotonic()
            if self.plan.max_time is not None:
                self._deadline = self._started + self.plan.max_time
            self._report()
            self._journal = Journal(self.plan.run_folder / f"journal-{self.plan.shard}.json")
            broken = False
            try:
                self._search()
            except BaseException as error:
                broken = isinstance(error, Exception)  # the case in the journal caused it, unlike an interrupt
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
        """Return whether to go on: the time limits the shrinking too, the number of cases only the search."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return False
        return self._best is not None or self.plan.max_cases is None or self.tally.cases < self.plan.max_cases

    def _round(self, number: int) -> None:
        """Try the cases of one round; returns when they or the budget are spent, or a failure is shrunk."""
        ready = self.worker.ready
        size = ON_CPU if ready.device == "cpu" else ON_GPU
        left = size.cases if self.plan.max_cases is None else self.plan.max_cases - self.tally.cases
        round_seed = derived_seed(self.plan.seed, self.plan.shard, number)
        # A failure is in self._best, with its verdict.
        with contextlib.suppress(FoundError, FlakyFailure, BudgetSpentInterrupt):
            play_round(ready.domain, round_seed, min(size.cases, left), self._try, size)

    def _try(self, case: AttentionCase, relation: str | None) -> None:
        order = Order(case, relation)
        verdict = self._verdict(order)
        if not verdict.passed and self._is_followed(verdict):
            self._keep(order, verdict)
            raise FoundError(verdict.message)

    def _verdict(self, order: Order) -> Verdict:
        """Return the verdict on an order; while shrinking, an order seen before is not launched again."""
        encoded = msgspec.json.encode(order)
        known = self._answers.get(encoded)
        if known is not None:
            return known
        if not self._has_budget():
            raise BudgetSpentInterrupt
        self._journal.write(msgspec.json.encode(self._signed(order, UNFINISHED)))
        verdict = self._judge(order)
        if self._best is not None:
            self.tally.shrinking += 1
        else:
            self.tally.add_case(order.case, order.relation, verdict)
        if self._best is not None or not verdict.passed:
            self._answers[encoded] = verdict
        if time.monotonic() - self._reported >= PROGRESS_SECONDS:
            self._report()
        return verdict

    def _judge(self, order: Order) -> Verdict:
        started = time.monotonic()
        try:
            answer = self.worker.judge(order, deadline=self._deadline)
        except OutOfTimeError:
            self.tally.unfinished += 1
            self.tally.unfinished_seconds = time.monotonic() - started
            raise BudgetSpentInterrupt from None
        self.tally.add_masks(answer.masks)
        self.tally.kernels_compiled += answer.compiled
        self.tally.kernels_loaded += answer.loaded
        return answer.verdict

    def _is_followed(self, verdict: Verdict) -> bool:
        """Return whether a failure is of the kind that was found first; record its kind if not."""
        if self._best is None or _kind_of_failure(verdict) == _kind_of_failure(self._best.verdict):
            return True
        self._also_seen.setdefault(_kind_of_failure(verdict))
        return False

    def _keep(self, order: Order, verdict: Verdict) -> None:
        """Keep a failure if it is the smallest so far, complete, so that it can be saved at any time."""
        found = self._signed(order, verdict)
        if self._best is None or found.size < self._best.size:
            self._best = msgspec.structs.replace(found, digest=self._digest(order))

    def _signed(self, order: Order, verdict: Verdict) -> Counterexample:
        """Return a counterexample of an order, with its relation only where that may have caused the failure."""
        ready = self.worker.ready
        relation = verdict.property_name if verdict.property_name in RELATIONS else None
        if verdict.kind in ("crash", "timeout"):
            relation = order.relation
        found = counterexample.signed(self.plan.setup.target, ready.family, relation, order.case, verdict)
        return msgspec.structs.replace(found, environment=environment_of(ready.backend, ready.shims))

    def _digest(self, order: Order) -> str:
        """Return the digest of the case's tensors; empty where there is no time or no worker left for it."""
        with contextlib.suppress(FuzzAttnError):
            return self.worker.judge(Order(order.case, digest=True), deadline=self._deadline).digest
        return ""

    def _outcome(self) -> Outcome:
        if self._best is None:
            return Outcome(self._report(last=True))
        path = counterexample.save(self._best, self.plan.fixtures / self.worker.ready.slug)
        statistics = self._report(last=True, counterexamples=(str(path),))
        return Outcome(statistics, self._best, path, tuple(self._also_seen))

    def _report(self, *, last: bool = False, counterexamples: tuple[str, ...] = ()) -> Statistics:
        """Write the shard's statistics into the run's folder and return them."""
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


def _kind_of_failure(verdict: Verdict) -> str:
    """Return the kind of a failure, which stays the same while it is shrunk."""
    return f"{verdict.property_name} ({verdict.kind.replace('_', ' ')})"


def launch_limit(max_time: float | None) -> float:
    """Return after how many seconds a launch counts as a hang; a campaign of a minute must have time to see one."""
    return LAUNCH_SECONDS if max_time is None else min(LAUNCH_SECONDS, max(max_time / 3, SHORTEST_HANG))
