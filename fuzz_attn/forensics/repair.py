"""Repair: one small change after which a failing kernel is right on every case that was tried, if there is one.

The kernel runs in the simulator with a switch at each of its values (:mod:`fuzz_attn.simulator.switches`), so that a
change costs one launch. What mends the smallest failing case is tried on others near it, some of which failed before,
and then on further ones. An argument that the launcher passes may be the mistake too.
"""

from __future__ import annotations

import linecache
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.forensics.candidates import (
    AtPlace,
    Candidate,
    OfArguments,
    OfConstant,
    OfGrid,
    OfLaunch,
    OfTensor,
    along,
    in_all_kernels,
    of_arguments,
    of_constants,
    of_grids,
    of_padded_constants,
    of_shared_arguments,
    of_unlike_numbers,
    passed_with,
    programs,
    telling_call,
)
from fuzz_attn.forensics.explanation import Explanation, Repair
from fuzz_attn.forensics.near_cases import Kind, healthy_cases, near_cases
from fuzz_attn.oracle.reference import Reference
from fuzz_attn.properties.experiment import Experiment, Launch
from fuzz_attn.simulator.condition_changes import Change
from fuzz_attn.simulator.formulas import Array, Read, kind_of
from fuzz_attn.simulator.kernel_changes import LIKE_ITS_OWN, OTHER_LOAD, changes_of
from fuzz_attn.simulator.range_changes import FROM_BEGIN
from fuzz_attn.simulator.switches import NOT_HERE, Grid, Key, Site, Switches
from fuzz_attn.ttir.ir import UNKNOWN_LOCATION, Location

LAUNCHES: Final = 2500
"""Launches in which changes are tried, some 3 ms each."""
MORE_LAUNCHES: Final = 600
"""Launches after the first change that makes all right, in which others are looked for."""
SECONDS: Final = 20.0
"""Processor time after which no more changes are tried, for launches that take longer."""
SECONDS_OF_CONSTANTS: Final = 15.0
"""The same for constants, each of whose numbers needs a new program."""
NEAR: Final = 8
"""Near cases on which a change is tried at once."""
FRESH: Final = 12
"""Further ones on which it is confirmed."""
MORE_NEAR: Final = 40
"""More of them, where hardly any of those fails."""
HEALTHY: Final = 10
"""Launches that pass without a change and must pass with it, where there are as many."""
PLAIN_CASES: Final = 40
"""Cases without what the failure needs among which they are looked for."""
FEWEST_FAILED: Final = 3
"""Launches that must have failed before, for a change to be no coincidence."""
MOST_CONFIRMED: Final = 5
"""Changes that mend the near cases and are tried on further ones."""
IN_A_CALL: Final = 1.5
"""Added to the rank of a change that is made for one call only: the line is right for the other calls."""
VISITS: Final = 6
"""Values at a site by which changes are told apart: of those that give the same, only one is tried where it fails."""
SLIGHTLY: Final = 0.5
"""How much longer programs may run that were right, with a change that mends a loop and does not avoid one."""
LIKELIEST: Final = 1.0
"""The rank below which a change, such as < for <=, is shown beside a sure cause though few launches were right."""
AS_LIKELY: Final = 0.5
"""How much higher the rank of another change may be, for it to be named too."""
OBSERVED: Final = 5.0
"""What it falls by at a line where a sanitizer found something, which few changes are at."""
FLOATS_LATER: Final = 3.0
"""What the rank of a change of a float grows by where a kernel reads or writes outside of a tensor."""
INTEGERS_LATER: Final = 1.5
"""What the rank of a change of an integer grows by where the keys are right and their weights are not."""
MOST_PROGRAMS: Final = 32
"""Up to so many more programs are tried one by one, to find the fewest that make a launch right."""
BY_SURPLUS: Final = frozenset({"out_of_bounds", "uninitialised", "race", "overflow"})
"""What sanitizers find of a program that has no row."""
PLACES: Final = frozenset({"page", "address", "head mapping", "foreign sequence"})
OF_PLACES: Final = PLACES | {"segment", "tail", "unknown", "unwritten"}
"""Reasons that a constant which addresses are made of may have."""
OF_NUMBERS: Final = frozenset({"sink", "slope", "soft cap", "scale", "denominator"})
"""What is read from numbers, which other mistakes may give too."""
OF_SUMS: Final = frozenset({"segment", "tile", "arithmetic"})
"""What sums of weights tell where the keys are right."""
LOOPS: Final = 8
"""How many times as many values a changed launch may compute."""
LOOPS_OF_GRIDS: Final = 64
"""The same for one with more programs."""


@dataclass(eq=False)
class Trial:
    """A case that was launched as it is, whether it failed, and how many values its programs computed."""

    experiment: Experiment
    failed: bool
    values: int = 0
    relation: str | None = None

    @property
    def size(self) -> int:
        """Its keys and query tokens."""
        case: Any = self.experiment.case
        elements: int = case.total_keys if isinstance(case, AttentionCase) else case.num_elements
        tokens: int = case.num_tokens
        return tokens + elements


Differing: TypeAlias = dict[Site, dict[str, Change]]


def _by_likelihood(candidate: Candidate) -> tuple[int, int, float, int, float]:
    """Return the key by which changes that make all launches right are sorted.

    Likely changes come first, and of equally likely ones the change that touches the fewest launches which were right.
    Changes with which loops run longer come last.
    """
    order = candidate.order + _is_guess(candidate)
    if candidate.steps or is_of_loop(candidate):
        return (int(not candidate.steps), 0, order, candidate.touched, candidate.by)
    return (2, candidate.values, order, candidate.touched, candidate.by)


def is_of_loop(candidate: Candidate) -> bool:
    """Return whether a change corrects a loop. Else the loop may only run in a way that avoids the mistake.

    If launches that were right run longer or shorter with it, it must be a likely change, by one step.
    """
    likely = candidate.order <= LIKELIEST and (candidate.by <= 1 or candidate.restores)
    return not candidate.longer or (likely and candidate.longer <= SLIGHTLY)


def _is_guess(candidate: Candidate) -> bool:
    """Return whether a change is one of an argument that its own tensor does not tell: the kernel may be wrong too."""
    if not isinstance(candidate, OfArguments):
        return False
    return not all(isinstance(other, (OfTensor, OfLaunch)) for _, other in candidate.others)


class RepairSearch:
    """The search for changes that mend a failing case; ``launches`` counts those with a change."""

    def __init__(
        self, experiment: Experiment, relation: str | None, kind: Kind, found: Explanation | None = None
    ) -> None:
        self._is_outside = any(each.kind == "out_of_bounds" for each in experiment.first.observations)
        # Loops that read outside read too much, though what rows attend may be right.
        self.keys_are_right = found is not None and found.keys_are_right and not self._is_outside
        self.of_numbers = self.keys_are_right and found is not None and found.reason in OF_NUMBERS | OF_SUMS
        self.of_places = found is not None and found.reason in OF_PLACES
        self.experiment = experiment
        self.kind = kind
        self.relation = relation
        self.launches = 0
        self._switches = Switches()
        self._switches.parsed = self._parsed
        self._sites: dict[Key, list[Site]] = {}
        self._changes: dict[Site, dict[str, Change]] = {}
        self._effects: dict[tuple[Site, str], int] = {}
        self._chosen: Candidate | None = None
        self._kernels: set[str] = set()
        self._observed = {each.site for each in experiment.first.observations}
        self._differs, self._by = False, 0.0
        self.found: list[Candidate] = []

    def repair(self) -> Repair | None:
        """Return the likeliest change that mends everything, with how many launches it was tried on; None for none."""
        backend = self.experiment.backend
        if not isinstance(backend, SimulatorBackend):
            return None
        trials = [Trial(self.experiment, True, relation=self.relation), *self._trials(1, NEAR + 1)]
        with backend.switched(self._switches):
            trials = [trial for trial in trials if self._agrees(trial)]
            trials += self._more_failing(FEWEST_FAILED - sum(trial.failed for trial in trials))
            failing = [trial for trial in trials if trial.failed]
            if not failing:
                return None
            trials += self._healthy(HEALTHY - len(trials) + len(failing))
            smallest = min(failing, key=lambda trial: trial.size)
            found = self._mending(smallest, trials) or (self._constants(smallest, trials) if self.of_places else [])
        if not found:
            return None
        fresh = self._trials(NEAR + 1, NEAR + FRESH + 1)
        with backend.switched(self._switches):
            fresh = [trial for trial in fresh if self._agrees(trial)]
            found = [each for each in found[:MOST_CONFIRMED] if all(self._mends_there(each, trial) for trial in fresh)]
        failed = sum(trial.failed for trial in (*trials, *fresh))
        self.found = found
        if not found or failed < FEWEST_FAILED:
            return None
        first = found[0]
        if isinstance(first, OfGrid) and first.size is None:
            with backend.switched(self._switches):
                first.new = programs(self._least_grid(first, smallest))
        as_likely = AS_LIKELY if first.order >= 0 else 0.0  # a like name is no coincidence
        likely = [each for each in found[1:] if each.steps == first.steps and each.order <= first.order + as_likely]
        others = [each for each in likely if place_of(each) != place_of(first)]
        told = Repair(
            *_described(found[0]),
            launches=len(trials) + len(fresh),
            failed=failed,
            called_at=_called_at(found[0]),
            alternatives=tuple(_in_short(each) for each in others[:1]),
        )
        mends = first.steps or (told.is_confirmed and is_of_loop(first))
        return msgspec.structs.replace(told, avoids=not mends or self._only_reads_less(first, others))

    def _only_reads_less(self, candidate: Candidate, others: Sequence[Candidate]) -> bool:
        """Return whether a change may only keep a kernel from reading what no kernel has written.

        An integer gives other loops or offsets. That helps in the kernel that reads and in the one that writes, and
        outputs do not tell which of them is wrong. A constant of a like name is, if no other change helps.
        """
        seen = self.experiment.first.observations
        of_program = candidate.counts or isinstance(candidate, OfConstant)
        integer = of_program or (isinstance(candidate, AtPlace) and candidate.element in ("i32", "i64"))
        likely = candidate.order <= LIKE_ITS_OWN and not others
        return integer and not likely and any(each.kind == "uninitialised" for each in seen)

    def _least_grid(self, found: OfGrid, smallest: Trial) -> Grid:
        """Return the grid with the fewest programs along an axis with which the smallest failing case is right."""
        axis, before, grown = found.axis, found.before, found.grid(found.before, {})
        for number in range(before[axis] + 1, min(grown[axis], before[axis] + MOST_PROGRAMS)):
            tried = replace(found, times=1, more=number - before[axis])
            if self._mends(tried, smallest):
                return along(before, axis, number)
        return grown

    # Cases.

    def _trials(self, first: int, last: int) -> list[Trial]:
        cases = near_cases(self.kind, self.experiment.case, first, last)
        return [trial for case in cases if (trial := self._trial(case, self.relation)) is not None]

    def _trial(self, case: Any, relation: str | None) -> Trial | None:
        """Return a case as the target is; None where it cannot be launched, or is not promised."""
        other = self.experiment.with_target(case, self.experiment.target)
        try:
            if self.kind.unpromised(case, other.target.domain) or other.first.error:
                return None
            failed = any(not verdict.passed for verdict in self.kind.failures(other, relation))
            return Trial(other, failed, relation=relation)
        except FuzzAttnError:
            return None

    def _more_failing(self, number: int) -> list[Trial]:
        """Return up to so many more near cases that fail, if few of the first ones do."""
        found: list[Trial] = []
        for first in range(NEAR + FRESH + 1, NEAR + FRESH + MORE_NEAR + 1):
            if len(found) >= number:
                break
            found += [trial for trial in self._trials(first, first + 1) if trial.failed and self._agrees(trial)]
        return found

    def _healthy(self, number: int) -> list[Trial]:
        """Return at most so many launches that pass as the kernel is, of cases without what the failure needs."""
        found: list[Trial] = []
        for case in healthy_cases(self.kind, self.experiment.case, PLAIN_CASES):
            if len(found) >= number:
                break
            trial = self._trial(case, None)
            if trial is not None and not trial.failed and self._agrees(trial):
                found.append(trial)
        return found

    def _agrees(self, trial: Trial) -> bool:
        """Return whether a case is right or wrong with switches as it is without."""
        right = self._mends(None, trial)
        trial.values = self._switches.calls
        return right != trial.failed

    # Launches.

    def _mends(self, candidate: Candidate | None, trial: Trial) -> bool:
        """Return whether a case is right with a change."""
        self._choose(candidate)
        self._switches.calls, self._switches.widens, self._differs, self._by = 0, False, False, 0.0
        loops = LOOPS_OF_GRIDS if isinstance(candidate, OfGrid) else LOOPS
        self._switches.most_calls = loops * trial.values + 1000 if candidate is not None and trial.values else 0
        self.launches += 1
        before = trial.experiment
        try:
            launch = before.launch_tensors(before.again())
            if launch.error or launch.observations or not _is_right(launch, before.reference):
                return False
            return all(verdict.passed for verdict in self.kind.failures(before.seen(launch), trial.relation))
        except FuzzAttnError:
            return False
        finally:
            self._choose(None)

    def _mends_there(self, candidate: Candidate, trial: Trial) -> bool:
        """Return whether a case is right with a change at its place, or at another such operation of its line.

        Which comparison of a line is the first one depends on what the kernel's constants leave of it. A grid may be
        that of another kernel, which only other cases launch.
        """
        if (right := self._mends(candidate, trial)) or not isinstance(candidate, (AtPlace, OfGrid)):
            return right
        if isinstance(candidate, OfGrid):
            return self._mends(replace(candidate, shared=True), trial)
        key = candidate.key
        others = [other for other in self._sites if other != key and other._replace(ordinal=key.ordinal) == key]
        return any(self._mends(replace(candidate, key=other), trial) for other in others)

    def _choose(self, candidate: Candidate | None) -> None:
        """Let the next launch have a change, also in kernels that are seen then for the first time."""
        self._chosen, switches = candidate, self._switches
        switches.chosen, switches.passing, switches.growing, switches.making = {}, None, None, None
        if isinstance(candidate, OfArguments):
            others, apart = candidate.others, self._kernels - {candidate.kernel, *candidate.kernels}
            latest = switches.latest
            switches.passing = lambda name, passed: passed if name in apart else passed_with(passed, others, latest)
        elif isinstance(candidate, OfConstant):
            kernel = None if candidate.everywhere else candidate.kernel
            switches.making = kernel, candidate.name, partial(candidate.of, latest=switches.latest)
        elif isinstance(candidate, OfGrid):
            switches.growing = partial(self._grown, candidate)
        elif isinstance(candidate, AtPlace):
            for site in self._sites_of(candidate):
                if candidate.callers is None or candidate.callers == site.callers:
                    switches.chosen[site] = partial(self._changed_at, site, candidate.name)

    def _grown(self, candidate: OfGrid, name: str, grid: Grid, arguments: dict[str, Any]) -> Grid:
        """Return the programs that a kernel has with a change, which may be one of kernels that only others launch."""
        changes = name == candidate.kernel or (candidate.shared and name not in self._kernels)
        return candidate.grid(grid, arguments) if changes else grid

    def _changed_at(self, site: Site, name: str, read: Read, value: Array) -> Array:
        """Return what a change gives in place of a value at a site, or that value where the site has no such change.

        Only here are the changes of the site made: most are tried in one of the twenty kernels of the cases.
        """
        change = self._changes_of(site).get(name)
        return value if change is None else self._changed(change, read, value)

    def _sites_of(self, candidate: AtPlace) -> list[Site]:
        """Return the sites of a change: one place of the source, or all of its line where the name says so."""
        key = candidate.key
        if not candidate.name.startswith(OTHER_LOAD):
            return self._sites[key]
        like = (sites for other, sites in self._sites.items() if other._replace(ordinal=key.ordinal) == key)
        return [site for sites in like for site in sites]

    def _changed(self, change: Change, read: Read, value: Array) -> Array:
        """Return what a change gives in place of a value, and note whether that is another one."""
        new = change.compute(read, value)
        whole = np.broadcast_to(new, value.shape)
        self._differs = self._differs or not _same_values(whole, value)
        if value.dtype.kind == "i" and value.size:
            self._by = max(self._by, float(np.abs(np.maximum(whole, 0) - np.maximum(value, 0)).max()))
        return new

    def _parsed(self, sites: Sequence[Site]) -> None:
        for site in sites:
            self._sites.setdefault(site.key, []).append(site)
        if self._chosen is not None:
            self._choose(self._chosen)

    def _changes_of(self, site: Site) -> dict[str, Change]:
        if site not in self._changes:
            self._changes[site] = {change.name: change for change in changes_of(site, self._switches)}
        return self._changes[site]

    # The search.

    def _mending(self, smallest: Trial, trials: list[Trial]) -> list[Candidate]:
        """Return the changes that mend all cases, the likeliest first."""
        others = sorted(
            (trial for trial in trials if trial is not smallest), key=lambda one: (not one.failed, -one.size)
        )
        found: list[Candidate] = []
        useless: set[object] = set()
        until, last = time.process_time() + SECONDS, self.launches + LAUNCHES
        for candidate in self._candidates(smallest):
            later = found and self._order_of(candidate) > max(found[0].order, self._order_of(found[0])) + 1
            if self.launches > last or time.process_time() > until or (later and found[-1].steps):
                break
            effect = self._effect_of(candidate)
            if effect in useless:
                continue
            if not self._mends(candidate, smallest):
                useless |= {effect} if effect else set()
            elif all(self._mends_with_steps(candidate, one) for one in others):
                if candidate.is_detour(self.keys_are_right):
                    continue
                if candidate.steps and not any(each.steps for each in found):
                    last = min(last, self.launches + MORE_LAUNCHES)
                found.append(candidate)
        return sorted(found, key=_by_likelihood)

    def _constants(self, smallest: Trial, trials: list[Trial]) -> list[Candidate]:
        """Return constants that mend all cases with another number. Each number is first tried on the smallest case."""
        self._switches.launched = []
        self._mends(None, smallest)
        tried: dict[tuple[str, str, int | None], bool] = {}
        found: list[Candidate] = []
        until = time.process_time() + SECONDS_OF_CONSTANTS
        for launched in list(self._switches.launched):
            arguments = {name: value for (name, _), value in launched.arguments.items()}
            for candidate in sorted(of_constants(launched), key=lambda one: one.order):
                key = candidate.kernel, candidate.name, candidate.of(arguments, {})
                if time.process_time() < until and key not in tried:
                    tried[key] = self._mends(candidate, smallest)
                tries = (candidate, in_all_kernels(candidate)) if tried.get(key) else ()
                found += [one for one in tries if all(self._mends(one, trial) for trial in trials)][:1]
        return sorted(found, key=lambda one: one.order)

    def _effect_of(self, candidate: Candidate) -> object:
        """Return what tells changes apart at one place in the first values that it has in the smallest case."""
        if not isinstance(candidate, AtPlace):
            return None
        sites = (
            site
            for site in self._sites[candidate.key]
            if candidate.callers is None or candidate.callers == site.callers
        )
        effects = tuple(self._effects.get((site, candidate.name)) for site in sites)
        return candidate.key, candidate.callers, effects

    def _mends_with_steps(self, candidate: Candidate, trial: Trial) -> bool:
        right = self._mends_there(candidate, trial) if isinstance(candidate, OfGrid) else self._mends(candidate, trial)
        other_programs = isinstance(candidate, (OfGrid, OfConstant)) or self._switches.widens
        if other_programs or (isinstance(candidate, OfArguments) and candidate.is_of_stages):
            return right  # programs that are not needed compute that, and stages that agree do other work
        candidate.steps &= self._switches.calls == trial.values
        candidate.by = max(candidate.by, self._by)
        candidate.right += not trial.failed
        candidate.touched += not trial.failed and self._differs
        if not trial.failed and trial.values:
            candidate.longer = max(candidate.longer, abs(self._switches.calls / trial.values - 1.0))
        candidate.values += self._switches.calls
        return right

    def _candidates(self, smallest: Trial) -> list[Candidate]:
        """Return all changes that make a difference in a case, the likeliest first."""
        self._switches.launched = []
        differing = self._differing(smallest)
        places: dict[Key, set[tuple[Location, ...]]] = {}
        for site in differing:
            places.setdefault(site.key, set()).add(site.callers)
        found: dict[tuple[Key, str, object], Candidate] = {}
        for site, changes in differing.items():
            several = len(places[site.key]) > 1
            for name, change in changes.items():
                for callers in (None, site.callers) if several else (None,):
                    order = change.rank + (IN_A_CALL if callers else 0.0)
                    whole = (change.place,) if change.place else (site.operation.location, *site.callers)
                    at = AtPlace(order, change.old, change.new, key=site.key, name=name, callers=callers, places=whole)
                    at.element, at.loads = site.value.type.element, site.operation.name == "tt.load"
                    at.counts = kind_of(site.value.type) == "int" and not site.value.type.shape
                    at.restores, at.called = name.startswith(FROM_BEGIN), telling_call(callers, places[site.key])
                    found.setdefault((site.key, name, callers), at)
        launches = list(self._switches.launched)  # a property may launch more of them
        self._kernels = {launched.kernel for launched in launches}
        surplus = self._may_be_surplus()
        arguments = [each for launched in launches for each in of_arguments(launched)]
        grids = [each for launched in launches for each in of_grids(launched, surplus=surplus)]
        shared = of_shared_arguments(arguments)
        unlike = [
            *of_unlike_numbers(launches),
            *(each for launched in launches for each in of_padded_constants(launched)),
        ]
        return sorted([*found.values(), *arguments, *shared, *grids, *unlike], key=self._order_of)

    def _may_be_surplus(self) -> bool:
        """Return whether programs without a row may run: a finding names one, or memory of no row is written."""
        failures = self.kind.failures(self.experiment, self.relation)
        outside = any(verdict.kind == "written_outside" for verdict in failures)
        return outside or any(each.kind in BY_SURPLUS for each in self.experiment.first.observations)

    def _order_of(self, candidate: Candidate) -> float:
        """Return when a change is tried: an integer later where only numbers are wrong, a line with a finding first."""
        if not isinstance(candidate, AtPlace):
            fewer = isinstance(candidate, OfGrid) and candidate.fewer
            return candidate.order - OBSERVED * fewer
        integer = candidate.element in ("i32", "i64")
        if candidate.element == "f32" and self._is_outside:
            return candidate.order + FLOATS_LATER
        places = (Location(candidate.key.file, candidate.key.line), *candidate.places)
        seen = any(f"{place.file}:{place.line}" in self._observed for place in places)
        return candidate.order + INTEGERS_LATER * (integer and self.of_numbers) - OBSERVED * seen

    def _differing(self, trial: Trial) -> Differing:
        """Return the changes of each site that would give another value in a launch that has none of them."""
        visits: dict[Site, int] = {}
        differing: Differing = {}

        def watch(site: Site, read: Read, value: Array) -> None:
            known, visit = differing.setdefault(site, {}), visits.get(site, 0)
            visits[site] = visit + 1
            for name, change in self._changes_of(site).items():
                if name in known and visit >= VISITS:
                    continue
                effect = _effect(change, read, value)
                if effect:
                    known[name] = change
                if visit < VISITS:
                    self._effects[site, name] = hash((self._effects.get((site, name)), effect))

        self._switches.watching = watch
        try:
            with np.errstate(all="ignore"):
                self._mends(None, trial)
        finally:
            self._switches.watching = None
        return differing


def _effect(change: Change, read: Read, value: Array) -> int:
    """Return a number that tells what a change gives from what others give; 0 where it gives the same value."""
    try:
        new = np.broadcast_to(np.asarray(change.compute(read, value)), value.shape).astype(value.dtype, copy=False)
    except NOT_HERE:
        return 0
    return 0 if _same_values(new, value) else hash(new.tobytes()) or 1


def _same_values(new: Array, value: Array) -> bool:
    """Return whether two arrays are equal; any NaN equals any other."""
    return bool(((new == value) | ((new != new) & (value != value))).all())  # noqa: PLR0124 - NaN


def _is_right(launch: Launch, reference: Reference) -> bool:
    """Return whether all outputs are within their bounds, at a tenth of the time that a verdict in words takes."""
    for name, expected in reference.items():
        output = launch.tensors.outputs[name]
        elements = output.elements.double()
        error = (elements - expected.value).abs()
        inside = (error <= expected.bound) | expected.bound.isinf() | (elements == expected.value) | ~expected.judged
        if not bool((inside if output.live is None else inside | ~output.live).all()):
            return False
    return True


# Words.


def place_of(candidate: Candidate) -> Location:
    """Return the line of a change: the innermost that has a name in it which only the changed value has, or has not."""
    if isinstance(candidate, (OfArguments, OfGrid, OfConstant)):
        return candidate.place
    assert isinstance(candidate, AtPlace)
    changed = names_in(candidate.new) ^ names_in(candidate.old)
    lines = candidate.places
    return next((place for place in lines if changed & names_in(text_of(place))), lines[0])


_NAME: Final = re.compile(r"[A-Za-z_]\w+")


def names_in(words: str) -> set[str]:
    """Return the names in a source line that are not those of operations."""
    return set(_NAME.findall(words)) - {"load", "where", "sum", "max", "min", "maximum", "minimum"}


def text_of(place: Location) -> str:
    """Return the source line of a place."""
    return linecache.getline(place.file, place.line).strip()


def _described(candidate: Candidate) -> tuple[str, str, str, str]:
    """Return site, source, and what stands there and what should, in words."""
    place = place_of(candidate)
    old = candidate.old
    if isinstance(candidate, OfArguments):
        old = f"argument {old} of {' and '.join(candidate.kernels or (candidate.kernel,))}"
    if isinstance(candidate, OfConstant):
        old = f"constant {old} of {candidate.kernel}" + " and other kernels" * candidate.everywhere
    if isinstance(candidate, OfGrid):
        old = f"{old} of {candidate.kernel}"
    return str(place), text_of(place), old, candidate.new


def _called_at(candidate: Candidate) -> str:
    """Return the line of the call where a change is made only there; empty for others."""
    if not isinstance(candidate, AtPlace) or candidate.called in (UNKNOWN_LOCATION, place_of(candidate)):
        return ""
    return f"{Path(candidate.called.file).name}:{candidate.called.line}"


def _in_short(candidate: Candidate) -> str:
    site, _, old, new = _described(candidate)
    return f"{site.rpartition('/')[2]}, `{old}` to `{new}`"
