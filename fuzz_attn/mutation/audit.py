"""A whole audit: chooses the mutants, judges them under every seed, shows a table meanwhile and saves the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.live import Live

from fuzz_attn.counterexamples.counterexample import environment_of
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.inputs.random_bits import Stream
from fuzz_attn.mutation import audit_results
from fuzz_attn.mutation.audit_messages import AuditSetup, Batch
from fuzz_attn.mutation.audit_pool import AuditPool
from fuzz_attn.mutation.audit_report import LiveTable
from fuzz_attn.mutation.audit_results import RULES, Audit, Mutant, Outcome, State
from fuzz_attn.mutation.seeded_bugs import load_seeded_bugs
from fuzz_attn.mutation.survivors import Reason, with_equivalents
from fuzz_attn.operations.registry import FamilyName, operation_of_family
from fuzz_attn.report.printing import PIPE_SECONDS, show, whole

SURVEY_CASES: Final = 480
"""Two rounds of a campaign: mutants come from the kernels of their compile keys, however few cases are judged."""

CASES_FOR_EACH: Final = 12
"""A second examination takes at most this many cases of the stream for each case that must run the changed operation: a
feature is in one case of five, and half of the cases run another kernel."""

_SAMPLE: Final = 61


@dataclass(frozen=True)
class Request:
    """The options of the command line.

    ``seeded_bugs`` is a folder of seeded bugs; None changes the IR instead. ``only`` are parts of names: a mutant's
    name must contain one of them, if there are any. ``sample`` limits the mutants and ``max_cases`` the cases of each
    under each of the ``seeds``. A change that no seed found is examined in ``enough`` cases that run it; 0 is none.
    ``reasons`` say which changes are equivalent. The kernels of the first ``survey_cases`` are changed, or of the first
    ``max_cases`` where these are more.
    """

    target: str
    family: FamilyName | None
    seeded_bugs: Path | None
    only: tuple[str, ...]
    sample: int | None
    max_cases: int
    enough: int
    rules: bool
    seeds: tuple[int, ...]
    workers: int
    folder: Path
    reasons: tuple[Reason, ...] = ()
    survey_cases: int = SURVEY_CASES


def audit(request: Request, console: Console) -> Audit:
    """Run an audit, show it while it runs, save and return it.

    Raises :class:`FuzzAttnError` where the target cannot be set up or there is no mutant.
    """
    started = time.monotonic()
    setup = AuditSetup(request.target, request.family, str(request.seeded_bugs or ""))
    with AuditPool(setup, request.workers) as pool:
        mutants = _mutants(request, pool)
        table = LiveTable(len(mutants) * len(request.seeds))
        with _shown(table, console) as refresh:
            judging = _Judging(pool, table, refresh)
            ruled = request.rules and operation_of_family(pool.ready.family).has_tolerances
            rules = RULES if ruled else ()
            batches = [Batch(tuple(mutants), seed, request.max_cases, rules) for seed in request.seeds]
            found = judging.outcomes(batches)
            found |= judging.second_outcomes(found, mutants, request.seeds, request.enough)
        order = [(seed, mutant) for seed in request.seeds for mutant in mutants]
        done = Audit(
            target=pool.ready.target,
            family=pool.ready.family,
            seeds=request.seeds,
            cases=request.max_cases,
            seconds=time.monotonic() - started,
            workers=request.workers,
            versions=environment_of("simulator", ()).versions,
            outcomes=with_equivalents([found[key] for key in order], request.reasons),
            ruled=ruled,
            false_alarms=tuple(sorted(pool.false_alarms)),
            healthy_cases=sum(pool.healthy_cases.values()),
        )
    audit_results.save(done, request.folder / "audit.json")
    return done


def _mutants(request: Request, pool: AuditPool) -> Sequence[Mutant]:
    if request.seeded_bugs is None:
        cases = max(request.max_cases, request.survey_cases)
        named = {mutant.name: mutant for seed in request.seeds for mutant in pool.survey(seed, cases)}
        mutants: tuple[Mutant, ...] = tuple(named[name] for name in sorted(named))
    else:
        bugs = (bug for bug in load_seeded_bugs(request.seeded_bugs) if pool.ready.family in bug.families)
        mutants = tuple(Mutant(bug.name) for bug in bugs)
    if not mutants:
        raise FuzzAttnError(f"target={request.target!r} has no mutant: no seeded bug, or no Triton kernel")
    for part in request.only:
        if not any(part in mutant.name for mutant in mutants):
            raise FuzzAttnError(f"only={part!r} is in no mutant's name")
    if request.only:
        mutants = tuple(mutant for mutant in mutants if any(part in mutant.name for part in request.only))
    return sampled(mutants, request.sample, request.seeds[0])


def sampled(mutants: Sequence[Mutant], sample: int | None, seed: int) -> Sequence[Mutant]:
    """Return that many mutants, chosen by the seed, in their own order; all of them for None."""
    if sample is None or sample >= len(mutants):
        return mutants
    chosen = sorted(Stream(seed, _SAMPLE).permutation(len(mutants))[:sample].tolist())
    return [mutants[index] for index in chosen]


@dataclass
class _Judging:
    """Judges batches on a pool and keeps the table up to date."""

    pool: AuditPool
    table: LiveTable
    refresh: Callable[[], None]

    def outcomes(self, batches: Sequence[Batch]) -> dict[tuple[int, Mutant], Outcome]:
        """Return the outcome of every seed and mutant of some batches."""
        found = {}
        for outcome in self.pool.judge(batches):
            if outcome is not None:
                found[outcome.seed, outcome.mutant] = outcome
                self.table.add(outcome)
            self.table.progress = [(worker.progress.case, worker.progress.left) for worker in self.pool.workers]
            self.refresh()
        return found

    def second_outcomes(
        self, found: dict[tuple[int, Mutant], Outcome], mutants: Sequence[Mutant], seeds: Sequence[int], enough: int
    ) -> dict[tuple[int, Mutant], Outcome]:
        """Return the first seed's outcomes of changes of the IR that no seed found, with more evidence."""
        missed = tuple(
            mutant
            for mutant in mutants
            if mutant.ir_change and all(found[seed, mutant].state in ("survived", "unobserved") for seed in seeds)
        )
        if not enough or not missed:
            return {}
        self.table.examine_again(len(missed))
        second = self.outcomes([Batch(missed, seeds[0], CASES_FOR_EACH * enough, enough=enough)])
        return {key: combined(found[key], outcome) for key, outcome in second.items()}


def combined(first: Outcome, second: Outcome) -> Outcome:
    """Return the outcome of a mutant that was not found, with the evidence of its second examination."""
    evidence, message = second.evidence, second.message
    state: State = "survived" if evidence.changed or second.state == "killed" else first.state
    if second.state == "killed":
        message = f"found by {second.property_name} ({second.kind}) after {second.case} cases: {second.message}"
    return msgspec.structs.replace(first, state=state, message=message, evidence=evidence)


@contextmanager
def _shown(table: LiveTable, console: Console) -> Iterator[Callable[[], None]]:
    """Show the table while the context lasts; yield a function to call often, which prints lines on a plain pipe."""
    if console.is_terminal:
        with Live(console=console, transient=True, refresh_per_second=4, get_renderable=table.render):
            yield lambda: None
        return
    printed = time.monotonic()

    def print_line() -> None:
        nonlocal printed
        if time.monotonic() - printed > PIPE_SECONDS:
            printed = time.monotonic()
            show(console, whole(table.line()))

    yield print_line
