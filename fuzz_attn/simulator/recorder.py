"""Recorder: makes a simulator's programs record the values of their operations, and keeps the digests of each launch.

By them two kernels are compared: the difference is the first operation that computes otherwise.

Only the programs of a simulator that has a recorder's extension call it; all other programs are as they were.

Operations are paired by what they do and by the text of their lines.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import partial
from itertools import islice
from types import FrameType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fuzz_attn.owners import owner_of
from fuzz_attn.simulator.codegen.access_plans import offset_of
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.codegen.generator import HANDLERS, Extension
from fuzz_attn.simulator.codegen.program import Program
from fuzz_attn.simulator.codegen.source_tree import Do, Name, call, constant
from fuzz_attn.simulator.codegen.terms import Term, Val
from fuzz_attn.simulator.runtime.float_formats import CONTAINER
from fuzz_attn.simulator.simulator import Simulator
from fuzz_attn.ttir.ir import UNKNOWN_LOCATION, Location, Operation, Type, Value
from fuzz_attn.ttir.lowering import Bound, element_names

Array = npt.NDArray[Any]

MOST_DIGESTS: Final = 1 << 23
"""Digests kept of one run of a target, 8 bytes each; what comes after them is not compared."""


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A place where a kernel records: an operation of its IR, and which of its values.

    ``part`` is what the value is to the operation, empty for its result. ``base`` names a pointer's tensor as the
    generated code does. ``arguments`` are the names of the operands that are arguments of the kernel, else empty.
    """

    operation: Operation
    part: str
    value: Value
    base: str = ""
    arguments: tuple[str, ...] = ()


@dataclass(slots=True)
class Entry:
    """One record: a site's number, the programs that ran it, and a digest for each, or one for all of them."""

    site: int
    lanes: Array
    digests: Array


@dataclass(slots=True)
class Launch:
    """One launch: its kernel, where the target launches it, its arguments in words, and its records in order.

    ``passed`` are the names of the arguments that are no constants.
    """

    kernel: str
    location: Location = UNKNOWN_LOCATION
    grid: tuple[int, int, int] = (1, 1, 1)
    arguments: dict[str, str] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    entries: list[Entry] = field(default_factory=list)

    def position(self, programs: Array) -> tuple[Array, Array, Array]:
        """Return the x, y and z of programs' numbers."""
        _, ny, nz = self.grid
        return programs // (ny * nz), programs // nz % ny, programs % nz

    def has(self, position: tuple[int, int, int]) -> bool:
        """Return whether the grid has a program at (x, y, z)."""
        return all(axis < extent for axis, extent in zip(position, self.grid, strict=True))

    def tensor(self, base: str) -> str:
        """Return the name of the tensor that the generated code calls `A3`, for example."""
        return self.passed[int(base[1:])]

    def number(self, position: tuple[int, int, int]) -> int:
        """Return the number of the program at (x, y, z)."""
        x, y, z = position
        _, ny, nz = self.grid
        return (x * ny + y) * nz + z


def launch_of(program: Program, bound: Bound, grid: tuple[int, int, int], location: Location) -> Launch:
    """Return a launch without records."""
    arguments = dict(words for name, value in bound.values.items() for words in _named(name, value))
    return Launch(program.name, location, grid, arguments, tuple(name for name, _ in program.parameters))


def _named(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the name of an argument and the argument in words; those of each element of a tuple."""
    if isinstance(value, tuple):
        for part, element in zip(element_names(name, value), value, strict=True):
            yield from _named(part, element)
    else:
        yield name, _in_words(value)


def _in_words(value: Any) -> str:
    """Return an argument in words: a number, or the type, the shape and the strides of a tensor."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} with strides {tuple(value.stride())}"
    return str(getattr(value, "__name__", repr(value)))


_WEIGHTS: Final = np.random.Generator(np.random.Philox(20261122)).integers(0, 1 << 63, 1 << 16, np.uint64) * 2 + 1
"""Odd numbers, so that a digest differs for sure where one element does."""


def digests_of(rows: Array) -> Array:
    """Return 64 bits for each row; any NaN counts as any other, since its bits say nothing of the arithmetic."""
    if rows.dtype.kind == "f":
        rows = np.where(np.isnan(rows), np.array(np.nan, rows.dtype), rows)
    size = rows[0].size if len(rows) else 0
    bits = np.ascontiguousarray(rows).reshape(len(rows), size).view(f"u{rows.dtype.itemsize}")
    weights = _WEIGHTS if size <= _WEIGHTS.size else np.resize(_WEIGHTS, size)
    digests: Array = (bits.astype(np.uint64) * weights[:size]).sum(axis=1, dtype=np.uint64)
    return digests


_BUILTIN: Final = "record_value"
_USED: Final[dict[str, tuple[str, ...]]] = {
    "tt.load": ("address", "mask"),
    "tt.store": ("address", "value", "mask"),
    "tt.atomic_rmw": ("address", "value", "mask"),
    "scf.for": ("first number", "end", "step"),
    "scf.if": ("condition",),
}
"""Operations whose operands are recorded before they run, and what each operand is to the operation."""
_SILENT: Final = frozenset({"arith.constant", "scf.for", "scf.if", "scf.while"})
"""Operations whose results are not recorded: what numbers and loops result in shows where it is used first."""


class Place(NamedTuple):
    """One value of a run: launch, site, how often its program had run it before, and the program's (x, y, z)."""

    launch: int
    site: int
    occurrence: int
    program: tuple[int, int, int]


@dataclass
class Recorder:
    """Records the launches of one run of a target, and in a second run one value as a whole: ``wanted`` is ``found``.

    Sites have the same numbers in both runs. ``truncated`` says that there was no room for all digests.
    """

    simulator: Simulator = field(init=False)
    launches: list[Launch] = field(default_factory=list)
    truncated: bool = False
    wanted: Place | None = None
    found: Array | None = None
    _sites: list[Site] = field(default_factory=list)
    _numbers: dict[tuple[Operation, str], int] = field(default_factory=dict)
    _kernels: dict[int, Emitter] = field(default_factory=dict)
    _absolute: set[Value] = field(default_factory=set)
    """Integers made of addresses in memory, which differ from run to run."""
    _digests: int = 0
    _passed: int = 0
    _current: int = -1

    def __post_init__(self) -> None:
        """Make the simulator, which keeps the programs for a second run."""
        handlers = {name: partial(self._emit, handler) for name, handler in HANDLERS.items()}
        self.simulator = Simulator(extension=Extension(handlers, {_BUILTIN: self._record}))

    def run_again_for(self, wanted: Place) -> None:
        """Keep one value of the same run, which is to come again; the records stay as they are."""
        self.wanted, self.found = wanted, None
        self._passed, self._current = 0, -1

    def launching(self, program: Program, bound: Bound, grid: tuple[int, int, int]) -> None:
        """Begin the records of a launch."""
        self._current += 1
        if self.wanted is None:
            self.launches.append(launch_of(program, bound, grid, launch_line()))

    def sites_of(self, launch: Launch) -> dict[int, Site]:
        """Return the sites of a launch's kernel by their numbers, in the order of its text."""
        recorded = {entry.site for entry in launch.entries}
        emitters = {id(self._kernels[number]) for number in recorded}
        return {number: site for number, site in enumerate(self._sites) if id(self._kernels[number]) in emitters}

    # While a program is generated.

    def _emit(self, handler: Handler, emitter: Emitter, operation: Operation) -> None:
        """Emit an operation, with a record of what it uses before it and of its results behind it."""
        parts = _USED.get(operation.name, ())
        for part, value in zip(parts, operation.operands, strict=False):
            self._emit_record(emitter, operation, part, value)
        if "mask" in parts[len(operation.operands) :]:
            self._emit_absent_mask(emitter, operation)
        handler(emitter, operation)
        if operation.name == "tt.ptr_to_int" or not self._absolute.isdisjoint(operation.operands):
            self._absolute |= {value for value in operation.results if value.type.element == "i64"}
        if operation.name not in _SILENT:
            for number, value in enumerate(operation.results):
                self._emit_record(emitter, operation, f"result {number}" if number else "", value)

    def _emit_record(self, emitter: Emitter, operation: Operation, part: str, value: Value) -> None:
        val = emitter.val(value)
        if value in self._absolute or (val.type.pointer and val.base is None):
            return
        term = offset_of(emitter, val) if val.type.pointer else emitter.array(emitter.single(val))
        base = "" if val.base is None else val.base.name
        self._emit_call(emitter, Site(operation, part, value, base, _arguments(emitter, operation)), term)

    def _emit_absent_mask(self, emitter: Emitter, operation: Operation) -> None:
        """Record an access without a mask as one whose mask holds everywhere."""
        shape = operation.operands[0].type.shape
        site = Site(operation, "mask", Value("%everything", Type("i1", shape)))
        self._emit_call(emitter, site, emitter.array(emitter.literal(True, shape, "i1")))

    def _emit_call(self, emitter: Emitter, site: Site, term: Term) -> None:
        number = self._number(emitter, site)
        emitter.add(Do(call(_BUILTIN, constant(number), emitter.lanes, emitter.read(term))))

    def _number(self, emitter: Emitter, site: Site) -> int:
        """Return the number of a site; a loop's body is emitted several times and keeps its numbers."""
        key = (site.operation, site.part)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._sites)
            self._sites.append(site)
            self._kernels[number] = emitter
        return number

    # While a launch runs.

    def _record(self, number: int, lanes: Array, value: Array) -> None:
        """Keep the digests of a value, or the value of the wanted program."""
        rows = _rows(value, self._sites[number].value.type)
        if self.wanted is not None:
            if (self.wanted.site, self.wanted.launch) == (number, self._current):
                self._keep(self.wanted, lanes, rows)
        elif self._digests > MOST_DIGESTS:
            self.truncated = True
        else:
            entry = Entry(number, lanes, digests_of(rows))
            self._digests += entry.digests.size
            self.launches[-1].entries.append(entry)

    def _keep(self, wanted: Place, lanes: Array, rows: Array) -> None:
        places = np.flatnonzero(lanes == self.launches[wanted.launch].number(wanted.program))
        if len(places):
            if self._passed == wanted.occurrence:
                self.found = rows[places[0] if len(rows) > 1 else 0].copy()
            self._passed += 1


def _arguments(emitter: Emitter, operation: Operation) -> tuple[str, ...]:
    """Return the name of each operand that is an argument of the kernel, and an empty text for the others."""
    return tuple(value.name if _is_argument(emitter.val(value)) else "" for value in operation.operands)


def _is_argument(val: Val) -> bool:
    """Return whether a value is a parameter of the generated function, or a pointer to a tensor's first element."""
    names = [term.expression for term in val.terms]
    return not names if val.type.pointer else len(names) == 1 and isinstance(names[0], Name) and names[0].name[0] == "A"


def _rows(value: Array, type_: Type) -> Array:
    """Return a value as one tile for each program, or one for all of them, in the numpy type of its elements."""
    axes = [*value.shape, *[1] * (len(type_.shape) + 1 - value.ndim)]
    spread = np.broadcast_to(value.reshape(axes), (axes[0], *type_.shape))
    dtype: Any = np.int64 if type_.pointer else CONTAINER[type_.element]
    return np.ascontiguousarray(spread, dtype)


def launch_line() -> Location:
    """Return the line of the target that launches the kernel."""
    for frame in _callers(sys._getframe(1)):
        if owner_of(frame.f_code.co_filename, frame.f_code.co_name) == "target":
            return Location(frame.f_code.co_filename, frame.f_lineno)
    return UNKNOWN_LOCATION


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


_NAMES: Final = re.compile(r"%[\w#:]+")
Signature: TypeAlias = Callable[[Site], Hashable]
Matched: TypeAlias = tuple[list[tuple[int, int]], list[tuple[list[int], list[int]]]]
"""Pairs of sites, and the runs of sites between them that have no partner."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """The sites of two kernels that are the same operation, by their numbers.

    ``moved`` are those of the first kernel whose partner is elsewhere in the order, for example outside of a loop.
    """

    pairs: Mapping[int, int]
    moved: frozenset[int]


def aligned(first: Mapping[int, Site], second: Mapping[int, Site]) -> Alignment:
    """Return the pairs of sites: those alike in all, then those between them that are of one name and type."""
    pairs, gaps = _matched(first, second, list(first), list(second), _whole)
    rest: tuple[list[int], list[int]] = ([], [])
    for left, right in gaps:
        more, smaller = _matched(first, second, left, right, _kind)
        pairs += more
        for own, other in smaller:
            rest[0].extend(own)
            rest[1].extend(other)
    moved = _unique_pairs(first, second, *rest)
    return Alignment(dict(pairs) | moved, frozenset(moved))


def text_of(place: Location) -> str:
    """Return the text of a line."""
    return linecache.getline(place.file, place.line).strip()


def _whole(site: Site) -> Hashable:
    """Return what an operation is: name, types, arguments of the kernel, attributes and the text of its line."""
    operation = site.operation
    types = tuple(value.type for value in (*operation.operands, *operation.results))
    return (
        operation.name,
        site.part,
        types,
        site.arguments,
        _NAMES.sub("%", operation.text),
        text_of(operation.location),
    )


def _kind(site: Site) -> Hashable:
    return (site.operation.name, site.part, site.value.type)


def _matched(
    first: Mapping[int, Site],
    second: Mapping[int, Site],
    left: Sequence[int],
    right: Sequence[int],
    signature: Signature,
) -> Matched:
    """Return the pairs of two runs of sites in their order, and the runs between them."""
    texts = [signature(first[number]) for number in left], [signature(second[number]) for number in right]
    pairs: list[tuple[int, int]] = []
    gaps: list[tuple[list[int], list[int]]] = []
    for tag, low, high, other_low, other_high in SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
        own, other = list(left[low:high]), list(right[other_low:other_high])
        if tag == "equal":
            pairs += zip(own, other, strict=True)
        else:
            gaps.append((own, other))
    return pairs, gaps


def _unique_pairs(
    first: Mapping[int, Site], second: Mapping[int, Site], left: list[int], right: list[int]
) -> dict[int, int]:
    """Return the pairs among sites without a partner whose signature occurs once on each side."""
    own, other = _by_signature(first, left), _by_signature(second, right)
    return {
        numbers[0]: other[signature][0]
        for signature, numbers in own.items()
        if len(numbers) == 1 and len(other.get(signature, ())) == 1
    }


def _by_signature(sites: Mapping[int, Site], numbers: list[int]) -> dict[Hashable, list[int]]:
    found: dict[Hashable, list[int]] = {}
    for number in numbers:
        found.setdefault(_whole(sites[number]), []).append(number)
    return found


@dataclass(frozen=True, slots=True)
class Difference:
    """The first value that differs: its site and place in each kernel. A place is None where that kernel has no value.

    ``launch`` is the number of the launch. ``own_only`` are operations that the value comes from and that the healthy
    kernel does not have, the nearest first; ``healthy_only`` are those that only the healthy kernel has. ``own_near``
    and ``healthy_near`` are the nearest operations that it comes from, whether or not the other kernel has them.
    """

    launch: int
    site: Site
    healthy: Site
    place: Place | None
    healthy_place: Place | None
    own_only: tuple[Operation, ...] = ()
    healthy_only: tuple[Operation, ...] = ()
    own_near: tuple[Operation, ...] = ()
    healthy_near: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the comparison of two runs found: the first difference, if any, and how many operations have a partner."""

    difference: Difference | None = None
    pairs: int = 0
    sites: int = 0


MOST_NEAR: Final = 16
Shared: TypeAlias = tuple[int, int, int]
"""The extents of a grid that contains those of both launches, by which programs are numbered."""
Found: TypeAlias = tuple[int, int, int, int, bool]
"""Order, site, program, occurrence, and whether only one kernel has the record."""


@dataclass(slots=True)
class _History:
    """The records of one site in a launch: for each, the program, how often it had run it before, order, digest."""

    lanes: list[Array] = field(default_factory=list)
    orders: list[Array] = field(default_factory=list)
    digests: list[Array] = field(default_factory=list)

    def sorted(self) -> tuple[Array, Array, Array, Array]:
        """Return program, occurrence, order and digest of each record, sorted by program and then by occurrence."""
        lanes, orders, digests = (np.concatenate(parts) for parts in (self.lanes, self.orders, self.digests))
        by_lane = np.argsort(lanes, kind="stable")
        lanes = lanes[by_lane]
        starts = np.searchsorted(lanes, lanes, side="left")
        return lanes, np.arange(lanes.size) - starts, orders[by_lane], digests[by_lane]


def compare(own: Recorder, healthy: Recorder) -> Comparison:
    """Return the first difference between two runs, launch by launch, in the order in which the first one computes."""
    pairs = sites = 0
    for number, (launch, other) in enumerate(zip(own.launches, healthy.launches, strict=False)):
        left, right = own.sites_of(launch), healthy.sites_of(other)
        alignment = aligned(left, right)
        pairs, sites = pairs + len(alignment.pairs), sites + len(left)
        found = _first_in(number, launch, other, alignment)
        if found is not None:
            return Comparison(_described(found, left, right, alignment), pairs, sites)
    return Comparison(None, pairs, sites)


def _described(
    found: tuple[int, int, Place | None, Place | None],
    left: Mapping[int, Site],
    right: Mapping[int, Site],
    alignment: Alignment,
) -> Difference:
    number, site, place, healthy_place = found
    own, healthy = left[site], right[alignment.pairs[site]]
    return Difference(
        number,
        own,
        healthy,
        place,
        healthy_place,
        tuple(_sources(own, left, alignment.pairs.keys())),
        tuple(_sources(healthy, right, set(alignment.pairs.values()))),
        tuple(islice(_sources(own, left), MOST_NEAR)),
        tuple(islice(_sources(healthy, right), MOST_NEAR)),
    )


def _first_in(
    number: int, launch: Launch, other: Launch, alignment: Alignment
) -> tuple[int, int, Place | None, Place | None] | None:
    """Return number, site and places of a launch's first difference; what only the healthy kernel runs comes last."""
    x, y, z = (max(sizes) for sizes in zip(launch.grid, other.grid, strict=True))
    shared = (x, y, z)
    ours, theirs = _histories(launch, shared), _histories(other, shared)
    best = _best(ours, theirs, alignment.pairs, alignment.moved, missing_only=False)
    if best is not None:
        _, site, program, occurrence, missing = best
        position = _position(program, shared)
        own = Place(number, site, occurrence, position)
        return number, site, own, None if missing else own._replace(site=alignment.pairs[site])
    back = {partner: site for site, partner in alignment.pairs.items()}
    moved = frozenset(alignment.pairs[site] for site in alignment.moved)
    best = _best(theirs, ours, back, moved, missing_only=True)
    if best is None:
        return None
    _, partner, program, occurrence, _ = best
    return number, back[partner], None, Place(number, partner, occurrence, _position(program, shared))


def _best(
    ours: dict[int, _History],
    theirs: dict[int, _History],
    pairs: Mapping[int, int],
    moved: frozenset[int],
    *,
    missing_only: bool,
) -> Found | None:
    """Return the first record that differs from that of its partner, or has none."""
    found = [
        _first_of(site, ours[site], theirs.get(partner), moved=site in moved, missing_only=missing_only)
        for site, partner in pairs.items()
        if site in ours
    ]
    return min(filter(None, found), default=None)


def _first_of(site: int, ours: _History, theirs: _History | None, *, moved: bool, missing_only: bool) -> Found | None:
    lanes, occurrences, orders, digests = ours.sorted()
    missing, differs = _against(theirs, lanes, occurrences, digests)
    chosen = (missing & (not moved)) | (differs & (not missing_only))
    wrong = np.flatnonzero(chosen)
    if not len(wrong):
        return None
    first = wrong[np.argmin(orders[wrong])]
    return int(orders[first]), site, int(lanes[first]), int(occurrences[first]), bool(missing[first])


def _against(history: _History | None, lanes: Array, occurrences: Array, digests: Array) -> tuple[Array, Array]:
    """Return for each record whether the other kernel has none like it, and whether it has another digest there."""
    if history is None:
        return np.ones(lanes.shape, np.bool_), np.zeros(lanes.shape, np.bool_)
    other_lanes, other_occurrences, _, others = history.sorted()
    last = int(max(occurrences.max(), other_occurrences.max())) + 1
    keys, known = lanes * last + occurrences, other_lanes * last + other_occurrences
    places = np.minimum(np.searchsorted(known, keys), known.size - 1)
    there = known[places] == keys
    return ~there, there & (others[places] != digests)


def _histories(launch: Launch, shared: Shared) -> dict[int, _History]:
    """Return the records of each site of a launch; a digest that all programs share counts for each of them."""
    found: dict[int, _History] = {}
    for order, entry in enumerate(launch.entries):
        history = found.setdefault(entry.site, _History())
        x, y, z = launch.position(entry.lanes)
        history.lanes.append((x * shared[1] + y) * shared[2] + z)
        history.orders.append(np.full(entry.lanes.size, order))
        history.digests.append(np.broadcast_to(entry.digests, entry.lanes.shape))
    return found


def _position(program: int, shared: Shared) -> tuple[int, int, int]:
    return program // (shared[1] * shared[2]), program // shared[2] % shared[1], program % shared[2]


def _sources(site: Site, sites: Mapping[int, Site], paired: Collection[int] = ()) -> Iterator[Operation]:
    """Yield the operations that a value comes from, itself excepted, the nearest first, up to those that are paired."""
    made = {one.value: (number, one.operation) for number, one in sites.items() if not one.part}
    passed = _passed(sites.values())
    pending: list[Value] = list(site.operation.operands)
    seen: set[Value] = set()
    while pending:
        value = pending.pop(0)
        if value in seen:
            continue
        seen.add(value)
        number, operation = made.get(value, (-1, None))
        if operation is None:
            pending += passed.get(value, ())
        elif number not in paired:
            yield operation
            pending += operation.operands


def _passed(sites: Iterable[Site]) -> dict[Value, list[Value]]:
    """Return what loops begin with for each value that they carry, and what branches end with for their results."""
    found: dict[Value, list[Value]] = {}
    for operation in {site.operation for site in sites}:
        if operation.name == "scf.for":
            inits = operation.operands[3:]
            for values in (operation.regions[0][0].arguments[1:], operation.results):
                found |= {value: [init] for value, init in zip(values, inits, strict=True)}
        elif operation.name == "scf.if":
            for region in operation.regions:
                for result, value in zip(operation.results, region[0].operations[-1].operands, strict=False):
                    found.setdefault(result, []).append(value)
    return found
