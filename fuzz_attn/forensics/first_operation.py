"""First operation: where a kernel computes its first value that a healthy kernel computes otherwise.

Both kernels run the failing case in the simulator, once to record a digest of each value and once more for the two
values at the place found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.forensics.explanation import FirstOperation, count
from fuzz_attn.forensics.lab import Array
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.check import all_failures
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.simulator.recorder import Comparison, Difference, Launch, Place, Recorder, Site, compare, text_of
from fuzz_attn.targets.target import Target
from fuzz_attn.ttir.ir import Location, Operation

MOST_LINES: Final = 3
"""Changed lines that are named, of each kernel; the nearest to the operation come first."""
MOST_ARGUMENTS: Final = 3
FEWEST_PARTNERS: Final = 0.5
"""Share of a kernel's operations that must have a partner for the comparison to say anything."""
Within: TypeAlias = Callable[[], AbstractContextManager[None]]
_NAMES: Final = {
    "tt.load": "load",
    "tt.store": "store",
    "tt.dot": "dot product",
    "tt.reduce": "reduction",
    "tt.addptr": "address",
    "tt.get_program_id": "program id",
    "tt.splat": "value",
    "tt.broadcast": "value",
    "tt.expand_dims": "value",
    "scf.for": "loop",
    "scf.if": "branch",
    "arith.cmpi": "comparison",
    "arith.cmpf": "comparison",
    "arith.select": "selection",
    "arith.andi": "conjunction",
    "arith.extsi": "value",
    "arith.sitofp": "value",
    "arith.extf": "value",
    "arith.truncf": "rounding",
    "tt.fp_to_fp": "conversion",
    "tt.bitcast": "conversion",
    "tt.clampf": "clamp",
    "arith.addi": "sum",
    "arith.addf": "sum",
    "arith.subi": "difference",
    "arith.subf": "difference",
    "arith.muli": "product",
    "arith.mulf": "product",
    "arith.divsi": "quotient",
    "arith.divf": "quotient",
    "arith.remsi": "remainder",
    "arith.minsi": "minimum",
    "arith.minnumf": "minimum",
    "arith.maxsi": "maximum",
    "arith.maxnumf": "maximum",
    "math.exp": "exponential",
    "math.exp2": "exponential",
}
"""Operations of the IR in words; the others are named as the IR names them."""


class _Run:
    """A kernel's run of the case, which comes again for one value; its launches happen within a context."""

    def __init__(self, experiment: Experiment, relation: str | None, within: Within) -> None:
        self.recorder = Recorder()
        self._experiment = experiment
        self._relation = relation
        self._within = within

    def failures(self) -> list[Verdict]:
        """Judge the case afresh while its launches are recorded, those of its relation too; return the failures."""
        afresh = self._experiment.with_target(self._experiment.case, self._experiment.target)
        assert isinstance(afresh.backend, SimulatorBackend)
        with self._within(), afresh.backend.recorded(self.recorder):
            return [verdict for verdict in all_failures(afresh, self._relation) if not verdict.passed]

    def value(self, place: Place | None) -> Array | None:
        """Return the value at a place from another run; None where the kernel has none."""
        if place is None:
            return None
        self.recorder.run_again_for(place)
        self.failures()
        return self.recorder.found


def first_operation(
    experiment: Experiment, relation: str | None, healthy: Target, within: Within = nullcontext
) -> FirstOperation:
    """Return the first operation of a failing case whose value is another one in a kernel that is right on it.

    The healthy kernel is called ``within`` a context, which may provide its modules. Where no operation can be named,
    the answer has no site, and its words say why.
    """
    if not isinstance(experiment.backend, SimulatorBackend):
        name = experiment.backend.name
        return FirstOperation(f"only the simulator records operations, and this ran with backend={name!r}")
    own = _Run(experiment, relation, nullcontext)
    other = _Run(experiment.with_target(experiment.case, healthy), relation, within)
    try:
        own.failures()
        failures = other.failures()
        if failures:
            return FirstOperation(f"the healthy kernel fails this case too: {failures[0].message}")
        return _compared(own, other)
    except FuzzAttnError as error:
        return FirstOperation(f"the kernels could not be compared: {error}")


def _compared(run: _Run, other: _Run) -> FirstOperation:
    own, healthy = run.recorder, other.recorder
    found = compare(own, healthy)
    notes = tuple(_notes(own.launches, healthy.launches, found))
    if found.pairs < FEWEST_PARTNERS * found.sites:
        words = f"only {found.pairs} of {count(found.sites, 'operation')} have a partner in the healthy kernel"
        return FirstOperation(f"the kernels are too different: {words}", notes=notes)
    difference = found.difference
    if difference is None:
        return FirstOperation(_no_difference(own, healthy, found), notes=notes)
    sides = (
        _Side(own, difference.site, run.value(difference.place)),
        _Side(healthy, difference.healthy, other.value(difference.healthy_place)),
    )
    return _described(difference, *sides, notes)


def _no_difference(own: Recorder, healthy: Recorder, found: Comparison) -> str:
    """Return that nothing differs in words."""
    if not own.launches or not healthy.launches:
        which = "this kernel" if not own.launches else "the healthy kernel"
        return f"{which} was not launched, so there is nothing to compare"
    late = ", as far as the memory for it went" if own.truncated or healthy.truncated else ""
    some = f"{found.pairs} of {count(found.sites, 'value')}"
    return f"no operation differs: {some} in the kernel's text can be compared, and are the same each time{late}"


def _notes(launches: list[Launch], others: list[Launch], found: Comparison) -> Iterator[str]:
    """Yield what differs outside of the kernels: how many are launched, on which grid, with which arguments."""
    if len(launches) != len(others):
        ours, theirs = (", ".join(launch.kernel for launch in each) or "none" for each in (launches, others))
        yield f"kernels launched: {ours}; by the healthy kernel: {theirs}"
    last = len(launches) if found.difference is None else found.difference.launch + 1
    for launch, other in zip(launches[:last], others, strict=False):
        changed = list(_changed_arguments(launch, other))
        if changed:
            yield f"launched in {_short(launch.location)} with {'; '.join(changed[:MOST_ARGUMENTS])}"
            return


def _changed_arguments(launch: Launch, other: Launch) -> Iterator[str]:
    if launch.grid != other.grid:
        yield f"the grid {launch.grid}, in the healthy kernel {other.grid}"
    for name, words in launch.arguments.items():
        healthy = other.arguments.get(name, words)
        if healthy != words:
            yield f"`{name}` {words}, in the healthy kernel {healthy}"


@dataclass(frozen=True)
class _Side:
    """One of both kernels: its records, its site, and the value there; None where it computes none."""

    recorder: Recorder
    site: Site
    value: Array | None

    def lines(self, launch: int) -> set[str]:
        """Return the texts of all lines of the kernel."""
        sites = self.recorder.sites_of(self.recorder.launches[launch]).values()
        return {text_of(place) for site in sites for place in _places(site.operation)}

    def element(self, index: tuple[int, ...], launch: int) -> str:
        """Return one element of the value in words."""
        assert self.value is not None
        number = self.value[index]
        if self.site.value.type.pointer:
            return f"element {number} of `{self.recorder.launches[launch].tensor(self.site.base)}`"
        return str(number.item()) if number.dtype.kind != "f" else f"{number:.9g}"


def _described(difference: Difference, own: _Side, healthy: _Side, notes: tuple[str, ...]) -> FirstOperation:
    """Return a difference in words."""
    place = difference.place or difference.healthy_place
    assert place is not None
    launch, other = (side.recorder.launches[difference.launch] for side in (own, healthy))
    if not (launch.has(place.program) and other.has(place.program)):
        return _extra_program(launch, other, place, notes)
    again = f", run {place.occurrence + 1} of it" if place.occurrence else ""
    return FirstOperation(
        words=_sentence(own, healthy, difference.launch),
        site=str(own.site.operation.location),
        source=text_of(own.site.operation.location),
        where=f"{_called(own.site.operation)}kernel {launch.kernel}, program {place.program}{again}",
        own_lines=_changed(own, healthy, difference.own_only, difference.own_near, difference.launch),
        healthy_lines=_changed(healthy, own, difference.healthy_only, difference.healthy_near, difference.launch),
        notes=notes,
    )


def _extra_program(launch: Launch, other: Launch, place: Place, notes: tuple[str, ...]) -> FirstOperation:
    """Return that a program is in one of both grids only; the line is that of the launch."""
    which = "only in this kernel" if launch.has(place.program) else "only in the healthy kernel"
    return FirstOperation(
        words=f"program {place.program} runs {which}, whose grid is larger",
        site=str(launch.location),
        source=text_of(launch.location),
        where=f"kernel {launch.kernel}",
        notes=notes,
    )


def _sentence(own: _Side, healthy: _Side, launch: int) -> str:
    """Return what an operation gives in both kernels."""
    name, part = _name(own.site.operation), own.site.part
    what = f"the {part} of the {name}" if part else f"the {name}"
    if own.value is None or healthy.value is None:
        runs, other = ("", "not ") if healthy.value is None else ("not ", "")
        return f"{what} is {runs}computed here, and {other}in the healthy kernel"
    verb = "is" if part or name.startswith("value") else "gives"
    same = (own.value == healthy.value) | ((own.value != own.value) & (healthy.value != healthy.value))
    places = np.argwhere(~same | (np.signbit(own.value) != np.signbit(healthy.value)))
    index = tuple(int(axis) for axis in places[0])
    where = f" at {list(index)}" if index else ""
    many = f" ({len(places)} of {own.value.size} elements differ)" if own.value.size > 1 else ""
    numbers = own.element(index, launch), healthy.element(index, launch)
    return f"{what} {verb} {numbers[0]}{where}, in the healthy kernel {numbers[1]}{many}"


def _called(operation: Operation) -> str:
    """Return in words where the function is called that has an operation's line; empty in the kernel itself."""
    callers = ", ".join(_short(place) for place in operation.callers)
    return f"called from {callers}, " * bool(callers)


def _name(operation: Operation) -> str:
    """Return an operation in words, with its name in the IR."""
    words = _NAMES.get(operation.name)
    return f"operation {operation.name}" if words is None else f"{words} ({operation.name})"


def _changed(
    side: _Side, other: _Side, only: Sequence[Operation], near: Sequence[Operation], launch: int
) -> tuple[str, ...]:
    """Return the lines that a value comes from whose text is not in the other kernel, with those of calls to them.

    Without any, it is the line of the nearest operation that the other kernel does not have.
    """
    known = other.lines(launch)
    places = [place for operation in (side.site.operation, *only, *near) for place in _places(operation)]
    changed = [place for place in places if text_of(place) not in known]
    nearest = [operation.location for operation in only[:1]]
    return tuple(dict.fromkeys(f"{place}: {text_of(place)}" for place in changed or nearest))[:MOST_LINES]


def _places(operation: Operation) -> tuple[Location, ...]:
    """Return the line of an operation and those of the calls that lead to it."""
    return operation.location, *operation.callers


def _short(location: Location) -> str:
    return str(location).rpartition("/")[2]
