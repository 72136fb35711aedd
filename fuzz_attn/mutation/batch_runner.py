"""BatchRunner: judges a batch of mutants on case after case, until each is killed or the cases are spent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.errors import HangInterrupt, UnsupportedByBackendError
from fuzz_attn.mutation.case_stream import CaseStream, DrawnCase
from fuzz_attn.mutation.ir.mutants import Rewrite, changes_in
from fuzz_attn.mutation.ir.probes import Probes
from fuzz_attn.mutation.mutant import IrChange, Mutant
from fuzz_attn.mutation.mutant_run import MutantRun, limited_processor_time
from fuzz_attn.mutation.position import NO_MUTANT, PositionFile
from fuzz_attn.mutation.prepared_case import PreparedCase, SharedExperiment
from fuzz_attn.mutation.results import PROPERTIES, FalseAlarm
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.check import check, check_relation
from fuzz_attn.properties.experiment import Experiment, Launch
from fuzz_attn.targets.target import Target

SHORTEST_HANG: Final = 3.0
LONGEST_HANG: Final = 30.0
HANG: Final = 20
"""A mutant hangs when it takes this many times the processor time of the healthy target, within the two limits."""


class BatchRunner:
    """Runs mutants of one target on the cases of any seed, in this process."""

    def __init__(self, target: Target, backend: SimulatorBackend, position: PositionFile) -> None:
        self._target = target
        self._backend = backend
        self._streams: dict[int, CaseStream] = {}
        self._position = position
        self._probes = Probes()
        backend.extend(self._probes.extension)
        self.false_alarms: set[FalseAlarm] = set()
        self.healthy_cases: dict[int, int] = {}
        """How many cases of each seed the healthy target was judged on."""

    def survey(self, seed: int, cases: int) -> list[Mutant]:
        """Return every change of the IR of the kernels that a seed's first cases launch, one case for each key."""
        keys, changes = set(), {}
        for number in range(cases):
            drawn = self._drawn(seed, number)
            if drawn.case.compile_key not in keys:
                keys.add(drawn.case.compile_key)
                self._backend.rewrite(Rewrite())
                _ = Experiment(drawn.case, self._target, self._backend).first
                for function in self._backend.parsed:
                    changes.update(dict.fromkeys(changes_in(function)))
        return [Mutant(change.name, change) for change in sorted(changes)]

    def run(
        self,
        runs: Sequence[MutantRun],
        seed: int,
        cases: int,
        *,
        enough: int = 0,
        after_case: Callable[[int, list[MutantRun]], None],
    ) -> None:
        """Judge mutants on a seed's first cases.

        ``after_case`` is called with the number of each case, from 1, and the mutants that are not yet decided. With
        ``enough``, changed operations are watched, no metamorphic relation is checked, and a mutant is decided once
        it ran its own in that many cases.
        """
        shared = 0.0
        left = [*enumerate(runs)]
        for number in range(cases):
            if not left:
                return
            self._position.write(number, NO_MUTANT)
            started = time.perf_counter()
            healthy = self._healthy(seed, number, any(run.undecided - {PROPERTIES} for _, run in left))
            shared += time.perf_counter() - started
            if healthy is not None:
                for index, run in left:
                    self._position.write(number, index)
                    self._judge_mutant(run, healthy, number, shared, enough)
            left = [(index, run) for index, run in left if run.undecided]
            after_case(number + 1, [run for _, run in left])

    def _drawn(self, seed: int, number: int) -> DrawnCase:
        if seed not in self._streams:
            self._streams[seed] = CaseStream(self._target.domain, seed)
        return self._streams[seed][number]

    def _healthy(self, seed: int, number: int, with_tolerances: bool) -> _HealthyCase | None:
        """Return the case with the healthy target's results; None, and a false alarm, where that fails."""
        prepared = PreparedCase(self._drawn(seed, number), self._target, self._backend)
        prepared.compute_reference(with_tolerances=with_tolerances)
        self.healthy_cases[seed] = max(self.healthy_cases.get(seed, 0), number + 1)
        started = time.perf_counter()
        self._backend.rewrite(Rewrite())
        experiment = SharedExperiment(prepared, self._target)
        verdict = check(experiment, prepared.drawn.relation)
        seconds = time.perf_counter() - started
        if not verdict.passed:
            self.false_alarms.add(FalseAlarm(PROPERTIES, seed, number + 1))
            return None
        launch = experiment.first
        rules = {name for name, rule in prepared.allowed_errors.items() if rule.accepts(launch.tensors.output)}
        for rule in prepared.allowed_errors.keys() - rules:
            self.false_alarms.add(FalseAlarm(rule, seed, number + 1))
        changes = {change for function in self._backend.parsed for change in changes_in(function)}
        return _HealthyCase(prepared, verdict, launch.output_after.clone(), rules, changes, seconds)

    def _judge_mutant(self, run: MutantRun, healthy: _HealthyCase, number: int, shared: float, enough: int) -> None:
        """Judge one mutant on one case."""
        change = run.mutant.ir_change
        if change is not None and change not in healthy.changes:
            return
        run.cases += 1
        self._probes.reset()
        started = time.perf_counter()
        verdict, launch = self._verdict(run, healthy, Rewrite(change, probed=enough > 0))
        run.seconds += time.perf_counter() - started
        run.reached += self._probes.tally.reached > 0
        run.differed += self._probes.tally.differed > 0
        if verdict is None:
            run.undecided.clear()
            return
        if launch is not None and not torch.equal(launch.output_after, healthy.output):
            run.changed += 1
        if verdict.passed:
            run.ratio = max(run.ratio, verdict.ratio or 0.0)
        elif PROPERTIES in run.undecided:
            run.found(verdict, number + 1, shared + run.seconds)
        _apply_rules(run, healthy, launch, number)
        if enough and run.reached >= enough:
            run.undecided.clear()

    def _verdict(self, run: MutantRun, healthy: _HealthyCase, rewrite: Rewrite) -> tuple[Verdict | None, Launch | None]:
        """Return the verdict and the first launch, if there was one; no verdict on a change that is no kernel."""
        self._backend.rewrite(rewrite)
        experiment = SharedExperiment(healthy.prepared, run.target)
        limit = min(max(SHORTEST_HANG, HANG * healthy.seconds), LONGEST_HANG)
        relation = None if PROPERTIES not in run.undecided or rewrite.probed else healthy.prepared.drawn.relation
        try:
            with limited_processor_time(limit):
                verdict = healthy.judge(experiment, relation)
        except HangInterrupt:
            return Verdict("oracle", "timeout", f"the launch did not end within {limit:.0f} s"), None
        except UnsupportedByBackendError as error:
            if run.mutant.ir_change is not None:
                run.invalid = str(error)
                return None, None
            return Verdict("oracle", "exception", str(error)), None
        except Exception as error:  # noqa: BLE001 - a mutated kernel is any program at all; what it breaks is found
            return Verdict("oracle", "crash", f"{type(error).__name__}: {error}"), None
        if run.mutant.ir_change is not None and verdict.kind == "exception":
            run.invalid = verdict.message  # the launcher is healthy, so the changed IR is no kernel
            return None, None
        return verdict, None if experiment.first.error else experiment.first


def _apply_rules(run: MutantRun, healthy: _HealthyCase, launch: Launch | None, number: int) -> None:
    """Apply the fixed tolerances that have not found the mutant yet and that accept the healthy output."""
    for rule in run.undecided & healthy.rules:
        if launch is None or not healthy.prepared.allowed_errors[rule].accepts(launch.tensors.output):
            run.undecided.remove(rule)
            run.rules[rule] = number + 1


@dataclass(frozen=True)
class _HealthyCase:
    """One case with the results of the healthy target.

    These are its verdict, the memory of its output, the fixed tolerances that accept it, the changes that its kernels
    allow, and the seconds it took.
    """

    prepared: PreparedCase
    verdict: Verdict
    output: torch.Tensor
    rules: set[str]
    changes: set[IrChange]
    seconds: float

    def judge(self, experiment: Experiment, relation: str | None) -> Verdict:
        """Return the verdict on an experiment with this case; an output of the same bits needs no new judgement."""
        first = experiment.first
        if first.error or first.observations or not torch.equal(first.output_after, self.output):
            return check(experiment, relation)
        if experiment.changed_inputs:
            return check(experiment, relation)
        verdict = check_relation(relation, experiment) if relation else self.verdict
        return self.verdict if verdict.passed else verdict
