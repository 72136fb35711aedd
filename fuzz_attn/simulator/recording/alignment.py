"""Alignment: which operation of one kernel is which of another, by what they do and by the text of their lines."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final, TypeAlias

from fuzz_attn.simulator.recording.launches import Site
from fuzz_attn.ttir.ir import Location

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
