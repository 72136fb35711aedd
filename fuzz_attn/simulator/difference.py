"""Difference: the first operation whose value differs between the launches of two kernels.

Operations are paired by what they do and by the text of their lines.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import islice
from typing import Final, TypeAlias

import numpy as np

from fuzz_attn.simulator.recorder import Array, Launch, Place, Recorder, Site
from fuzz_attn.ttir.ir import Location, Operation, Value

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
