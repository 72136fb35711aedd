"""Campaign: one shard of a fuzz test. Cases are drawn and judged by an isolated worker; a failure is shrunk.

Rounds follow each other until the budget of time or cases is spent or a failure is found. A shard ends with its first
failure, shrunk in what is left of the time, and saves the smallest case so far. While it shrinks, another kind of
failure counts as a pass, so that the saved case shows the bug that was found; the outcome names the others.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from hypothesis.errors import FlakyFailure

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.counterexamples import counterexample
from fuzz_attn.counterexamples.counterexample import Counterexample, environment_of
from fuzz_attn.engine.events import (
    CaseJudged,
    CaseRefused,
    CaseUnfinished,
    CaseUnsupported,
    Emit,
    FailureChanged,
    FailureFound,
    Finished,
    News,
    Note,
    Phase,
    RefusalReduced,
    WorkerLost,
    WorkerReady,
    ignore,
    no_news,
)
from fuzz_attn.engine.isolated_worker import LAUNCH_SECONDS, IsolatedWorker
from fuzz_attn.engine.journal import Journal
from fuzz_attn.engine.messages import Answer, Order, Ready, Setup
from fuzz_attn.engine.refusals.rules import Refusals
from fuzz_attn.engine.schedule import ON_CPU, ON_GPU, derived_seed, play_round
from fuzz_attn.errors import (
    BudgetSpentInterrupt,
    CounterexampleError,
    FoundError,
    FuzzAttnError,
    OutOfProbesError,
    OutOfTimeError,
)
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.refusal import Refusal
from fuzz_attn.properties.relations import RELATIONS

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


class Campaign:
    """One shard, run once by :meth:`run`, which emits an event for all that happens.

    ``worker`` judges its cases, by default one for the plan's set-up. ``news`` returns failures of other shards.
    """

    def __init__(
        self, plan: Plan, emit: Emit = ignore, worker: IsolatedWorker | None = None, news: News = no_news
    ) -> None:
        self.plan = plan
        self.emit = emit
        self.news = news
        limit = launch_limit(plan.max_time)
        self.worker = worker or IsolatedWorker(plan.setup, launch_seconds=limit, index=plan.shard)
        self.cases = 0
        """Cases judged in the search, which the limit of cases counts."""
        self._deadline: float | None = None
        self._started = 0.0
        self._ready: Ready | None = None
        self._unfinished = False
        self._answers: dict[bytes, Verdict] = {}
        self._refusals = Refusals(Domain())
        self._best: Counterexample | None = None
        self._path: Path | None = None
        self._first: Counterexample | None = None
        self._also_seen: dict[str, None] = {}

    def run(self) -> None:
        """Fuzz until the budget is spent or a failure is found and shrunk; save the failure, also on an interrupt."""
        self._started = time.monotonic()
        try:
            with self.worker:
                self._run()
        except BaseException as error:
            self._finish(str(error) or type(error).__name__)
            raise
        self._finish("")

    def _finish(self, error: str) -> None:
        self.emit(Finished(self.plan.shard, time.monotonic() - self._started, error))

    def _run(self) -> None:
        self._started = time.monotonic()
        if self.plan.max_time is not None:
            self._deadline = self._started + self.plan.max_time
        self._introduce()
        self._refusals = Refusals(self.worker.ready.domain)
        self._journal = Journal(self.plan.run_folder / f"journal-{self.plan.shard}.json")
        broken = False
        try:
            self._search()
        except BaseException as error:
            broken = isinstance(error, Exception)  # the case in the journal caused it, unlike an interrupt
            raise
        finally:
            self._journal.close(keep=broken or self._unfinished)
            self._complete()

    def _introduce(self) -> None:
        """Emit that the worker is ready, and again when another one has replaced it."""
        if self.worker.ready is not self._ready:
            self._ready = self.worker.ready
            self.emit(WorkerReady(self.plan.shard, self._ready))
            for note in self._ready.notes:
                self.emit(Note(self.plan.shard, note))

    def _search(self) -> None:
        number = 0
        while self._best is None and self._has_budget() and not self._refusals.hopeless(number):
            self._round(number)
            number += 1

    def _has_budget(self) -> bool:
        """Return whether to go on: the time limits the shrinking too, the number of cases only the search."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return False
        return self._best is not None or self.plan.max_cases is None or self.cases < self.plan.max_cases

    def _round(self, number: int) -> None:
        """Try the cases of one round; returns when they or the budget are spent, or a failure is shrunk."""
        ready = self.worker.ready
        size = ON_CPU if ready.device == "cpu" else ON_GPU
        left = size.cases if self.plan.max_cases is None else self.plan.max_cases - self.cases
        round_seed = derived_seed(self.plan.seed, self.plan.shard, number)
        # A failure is in self._best, with its verdict.
        with contextlib.suppress(FoundError, FlakyFailure, BudgetSpentInterrupt):
            excludes = self._refusals.excludes_key
            play_round(self._refusals.domain, round_seed, min(size.cases, left), self._try, size, excludes)

    def _try(self, case: AttentionCase, relation: str | None) -> None:
        order = Order(case, relation)
        if self._best is None and self._refusals.excludes(case):
            return
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
        if self._best is not None or not verdict.passed:
            self._answers[encoded] = verdict
        return verdict

    def _judge(self, order: Order) -> Verdict:
        phase: Phase = "search" if self._best is None else "shrink"
        self.cases += phase == "search"
        deaths, started = self.worker.deaths, time.monotonic()
        try:
            answer = self.worker.judge(order, deadline=self._deadline)
        except OutOfTimeError:
            self._unfinished = True
            self.cases -= phase == "search"
            self.emit(CaseUnfinished(self.plan.shard, order, time.monotonic() - started))
            raise BudgetSpentInterrupt from None
        self._introduce()
        if self.worker.deaths > deaths:
            self.emit(WorkerLost(self.plan.shard, answer.verdict.message))
        if answer.refusal:
            self._refuse(order, phase, answer.refusal)
        if answer.unsupported:
            self.emit(CaseUnsupported(self.plan.shard, phase, order, answer.unsupported, answer.instead))
        if answer.judged:
            self._refusals.judged(order.case)
            self.emit(self._judged(order, phase, answer, time.monotonic() - started))
        return answer.verdict

    def _refuse(self, order: Order, phase: Phase, refusal: Refusal) -> None:
        """Emit that a case is refused; a case of the search also shows what else is."""
        self.emit(CaseRefused(self.plan.shard, phase, order, refusal))
        if phase == "search":
            self.cases -= 1
            rule = self._refusals.refused(order.case, refusal, self._probe)
            if rule is not None:
                self.emit(RefusalReduced(self.plan.shard, refusal, rule.words(self._refusals.full)))

    def _probe(self, cases: Sequence[AttentionCase]) -> Sequence[Refusal | None]:
        """Return the refusals of cases; raises OutOfProbesError when the time is up or the target dies."""
        try:
            answer = self.worker.judge(Order(cases[0], probes=tuple(cases)), deadline=self._deadline)
        except OutOfTimeError:
            raise OutOfProbesError from None
        if len(answer.refusals) != len(cases):
            raise OutOfProbesError
        return answer.refusals

    def _judged(self, order: Order, phase: Phase, answer: Answer, seconds: float) -> CaseJudged:
        verdicts = (answer.verdict, *answer.others)
        return CaseJudged(
            self.plan.shard, phase, order, verdicts, seconds, answer.masks, answer.compiled, answer.loaded
        )

    def _is_followed(self, verdict: Verdict) -> bool:
        """Return whether a failure is of the kind that was found first; record its kind if not."""
        if self._best is None or _kind_of_failure(verdict) == _kind_of_failure(self._best.verdict):
            return True
        self._also_seen.setdefault(_kind_of_failure(verdict))
        return False

    def _keep(self, order: Order, verdict: Verdict) -> None:
        """Keep a failure if it is the smallest so far, complete, so that it can be saved at any time."""
        found = self._signed(order, verdict)
        if self._best is None:
            self._best = msgspec.structs.replace(found, digest=self._digest(order))
            self._path, self._first = self._saved(), self._best
            seconds = time.monotonic() - self._started
            self.emit(FailureFound(self.plan.shard, 0, self._best, str(self._path), seconds))
        elif found.size < self._best.size:
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

    def _saved(self) -> Path:
        assert self._best is not None
        return counterexample.save(self._best, self.plan.fixtures / self.worker.ready.slug)

    def _complete(self) -> None:
        """Save the smallest failure in place of the first, and emit that it is complete."""
        if self._best is None:
            return
        first, self._path = self._path, self._saved()
        if first is not None and first != self._path and self._is_own(first):
            first.unlink(missing_ok=True)
        self.emit(FailureChanged(self.plan.shard, 0, self._best, str(self._path), done=True))
        if self._also_seen:
            self.emit(Note(self.plan.shard, f"Other failures seen while shrinking: {', '.join(self._also_seen)}"))

    def _is_own(self, path: Path) -> bool:
        """Return whether a file holds the failure as it was found, and not a smaller one that was there before."""
        try:
            return counterexample.load(path) == self._first
        except CounterexampleError:
            return False


def _kind_of_failure(verdict: Verdict) -> str:
    """Return the kind of a failure, which stays the same while it is shrunk."""
    return f"{verdict.property_name} ({verdict.kind.replace('_', ' ')})"


def launch_limit(max_time: float | None) -> float:
    """Return after how many seconds a launch counts as a hang; a campaign of a minute must have time to see one."""
    return LAUNCH_SECONDS if max_time is None else min(LAUNCH_SECONDS, max(max_time / 3, SHORTEST_HANG))
