"""The examiner: walks through the stream with a batch of subjects until each is killed or the cases are spent."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

import torch

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.errors import UnsupportedByBackendError
from fuzz_attn.mutation.case_stream import Stream
from fuzz_attn.mutation.ir.mutants import Rewrite, mutants_of
from fuzz_attn.mutation.ir.probes import Probes
from fuzz_attn.mutation.prepared_case import Bench, SharedExperiment
from fuzz_attn.mutation.results import Evidence, Outcome, State
from fuzz_attn.mutation.subjects import Mutant, Subject
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.check import RELATIONS, check
from fuzz_attn.properties.experiment import Experiment, Launch
from fuzz_attn.targets.target import Target

SHORTEST_HANG: Final = 3.0
LONGEST_HANG: Final = 30.0
HANG: Final = 20
"""A subject hangs when it takes this many times the processor time of the healthy target, and the shortest at least."""


class HangError(BaseException):
    """The processor time of one launch is up; not an Exception, which would be taken for the target's own."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise :class:`HangError` in the middle of whatever Python does when the time is up."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise HangError

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@dataclass
class Candidate:
    """A subject while it is examined. ``seconds`` are its own, without what its cases cost everybody."""

    subject: Subject
    target: Target
    undecided: set[str]
    """Who has not yet found it: the properties ("") and the rules by name."""
    seconds: float = 0.0
    cases: int = 0
    reached: int = 0
    differed: int = 0
    changed: int = 0
    ratio: float = 0.0
    verdict: Verdict | None = None
    case: int = 0
    until: float = 0.0
    rules: dict[str, int] = field(default_factory=dict)
    invalid: str = ""

    def outcome(self) -> Outcome:
        """Return what came of it so far."""
        evidence = Evidence(self.cases, self.reached, self.differed, self.changed, self.ratio)
        if self.verdict is None:
            state: State = "invalid" if self.invalid else "survived"
            return Outcome(self.subject, state, message=self.invalid, rules=self.rules, evidence=evidence)
        found = self.verdict
        return Outcome(
            self.subject,
            "killed",
            found.property_name,
            found.kind,
            found.message,
            self.case,
            self.until,
            self.rules,
            evidence,
        )


class Place:
    """Where the examiner is, in a file that outlives it: the number of the case and of the subject."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def note(self, case: int, subject: int) -> None:
        """Write the place down."""
        os.pwrite(self._descriptor, struct.pack("<qq", case, subject), 0)


class Examiner:
    """Examines subjects on the cases of one stream. The backend is this process's own."""

    def __init__(self, target: Target, backend: SimulatorBackend, stream: Stream, place: Place) -> None:
        self._target = target
        self._backend = backend
        self._stream = stream
        self._place = place
        self._probes = Probes()
        backend.extend(self._probes.extension)
        self.false_alarms: dict[str, set[int]] = {}
        self.drawn = 0
        """How many cases of the stream the healthy target was judged on."""

    def survey(self, cases: int) -> list[Subject]:
        """Return every mutant of the kernels that the first cases launch, a compile key at a time."""
        keys, names = set(), {}
        for number in range(cases):
            drawn = self._stream[number]
            if drawn.case.compile_key not in keys:
                keys.add(drawn.case.compile_key)
                self._backend.rewrite(Rewrite())
                _ = Experiment(drawn.case, self._target, self._backend).first
                for function in self._backend.parsed:
                    names.update(dict.fromkeys(mutants_of(function)))
        return [Subject(mutant.name, mutant) for mutant in sorted(names)]

    def examine(
        self,
        candidates: Sequence[Candidate],
        cases: int,
        *,
        enough: int = 0,
        told: Callable[[int, list[Candidate]], None],
    ) -> None:
        """Walk through the first cases; after each, ``told`` hears its number from 1 and who is not yet decided.

        With ``enough``, changed operations are watched, no relation is asked, and a mutant leaves once it ran its own
        in so many cases.
        """
        shared = 0.0
        alive = [*enumerate(candidates)]
        for number in range(cases):
            if not alive:
                return
            self._place.note(number, -1)
            started = time.perf_counter()
            healthy = self._healthy(number, any(candidate.undecided - {""} for _, candidate in alive))
            shared += time.perf_counter() - started
            if healthy is not None:
                for index, candidate in alive:
                    self._place.note(number, index)
                    self._tried(candidate, healthy, number, shared, enough)
            alive = [(index, candidate) for index, candidate in alive if candidate.undecided]
            told(number + 1, [candidate for _, candidate in alive])

    def _healthy(self, number: int, ruled: bool) -> _Healthy | None:
        """Return the case as the healthy target leaves it; None, and a false alarm, where that fails."""
        bench = Bench(self._stream[number], self._target, self._backend)
        bench.refer(ruled=ruled)
        self.drawn = max(self.drawn, number + 1)
        started = time.perf_counter()
        self._backend.rewrite(Rewrite())
        experiment = SharedExperiment(bench, self._target)
        verdict = check(experiment, bench.drawn.relation)
        seconds = time.perf_counter() - started
        if not verdict.passed:
            self.false_alarms.setdefault("", set()).add(number + 1)
            return None
        launch = experiment.first
        accepting = {rule for rule, stick in bench.yardsticks.items() if stick.accepts(launch.tensors.output)}
        for rule in bench.yardsticks.keys() - accepting:
            self.false_alarms.setdefault(rule, set()).add(number + 1)
        known = {mutant for function in self._backend.parsed for mutant in mutants_of(function)}
        return _Healthy(bench, verdict, launch.output_after.clone(), accepting, known, seconds)

    def _tried(self, candidate: Candidate, healthy: _Healthy, number: int, shared: float, enough: int) -> None:
        """Judge one subject on one case."""
        mutant = candidate.subject.mutant
        if mutant is not None and mutant not in healthy.known:
            return
        candidate.cases += 1
        self._probes.reset()
        started = time.perf_counter()
        verdict, launch = self._judged(candidate, healthy, Rewrite(mutant, probed=enough > 0))
        candidate.seconds += time.perf_counter() - started
        candidate.reached += self._probes.tally.reached > 0
        candidate.differed += self._probes.tally.differed > 0
        if verdict is None:
            candidate.undecided.clear()
            return
        if launch is not None and not torch.equal(launch.output_after, healthy.output):
            candidate.changed += 1
        if verdict.passed:
            candidate.ratio = max(candidate.ratio, verdict.ratio or 0.0)
        elif "" in candidate.undecided:
            candidate.undecided.remove("")
            candidate.verdict, candidate.case, candidate.until = verdict, number + 1, shared + candidate.seconds
        self._ruled(candidate, healthy, launch, number)
        if enough and candidate.reached >= enough:
            candidate.undecided.clear()

    def _judged(
        self, candidate: Candidate, healthy: _Healthy, rewrite: Rewrite
    ) -> tuple[Verdict | None, Launch | None]:
        """Return the verdict and the first launch, where there was one; no verdict on what cannot run at all."""
        self._backend.rewrite(rewrite)
        experiment = SharedExperiment(healthy.bench, candidate.target)
        hang = min(max(SHORTEST_HANG, HANG * healthy.seconds), LONGEST_HANG)
        relation = None if "" not in candidate.undecided or rewrite.probed else healthy.bench.drawn.relation
        try:
            with limited(hang):
                verdict = healthy.judged(experiment, relation)
        except HangError:
            return Verdict("oracle", "timeout", f"the launch did not end within {hang:.0f} s"), None
        except UnsupportedByBackendError as error:
            if candidate.subject.mutant is not None:
                candidate.invalid = str(error)
                return None, None
            return Verdict("oracle", "exception", str(error)), None
        except Exception as error:  # noqa: BLE001 - a mutated kernel is any program at all; what it breaks is found
            return Verdict("oracle", "crash", f"{type(error).__name__}: {error}"), None
        if candidate.subject.mutant is not None and verdict.kind == "exception":
            candidate.invalid = verdict.message  # the launcher is healthy, so it is the changed IR that is no kernel
            return None, None
        return verdict, None if experiment.first.error else experiment.first

    def _ruled(self, candidate: Candidate, healthy: _Healthy, launch: Launch | None, number: int) -> None:
        """Ask the rules that have not found it yet, and that let the healthy output of this case pass."""
        for rule in candidate.undecided & healthy.accepting:
            if launch is None or not healthy.bench.yardsticks[rule].accepts(launch.tensors.output):
                candidate.undecided.remove(rule)
                candidate.rules[rule] = number + 1


@dataclass(frozen=True)
class _Healthy:
    """One case as the healthy target leaves it.

    With the verdict, its output's memory, the rules that accept it, the possible mutants and how long it took.
    """

    bench: Bench
    verdict: Verdict
    output: torch.Tensor
    accepting: set[str]
    known: set[Mutant]
    seconds: float

    def judged(self, experiment: Experiment, relation: str | None) -> Verdict:
        """Return the verdict on an experiment with this case: the same bits need not be looked at again."""
        first = experiment.first
        if first.error or first.observations or not torch.equal(first.output_after, self.output):
            return check(experiment, relation)
        if experiment.changed_inputs:
            return check(experiment, relation)
        verdict = RELATIONS[relation](experiment) if relation else self.verdict
        return self.verdict if verdict.passed else verdict
