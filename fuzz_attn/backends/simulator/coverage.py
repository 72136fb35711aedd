"""Coverage of kernel semantics: which masks of which lines were all true, all false and mixed in some program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from .findings import Location

ALL_TRUE, ALL_FALSE, MIXED = 1, 2, 4
COMPLETE = ALL_TRUE | ALL_FALSE | MIXED


def cover(seen: list[int], index: int, mask: npt.NDArray[Any]) -> None:
    """Add the outcomes of a mask, one for each program (row), to the bits of its site."""
    flat = mask.reshape(mask.shape[0], -1)
    every, some = flat.all(axis=1), flat.any(axis=1)
    if every.any():
        seen[index] |= ALL_TRUE
    if not some.all():
        seen[index] |= ALL_FALSE
    if bool((some & ~every).any()):
        seen[index] |= MIXED


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """A mask or condition of a kernel: `kind` is load, store, select, branch, while or an atomic."""

    kernel: str
    file: str
    line: int
    kind: str
    ordinal: int = 0


@dataclass(slots=True)
class Coverage:
    """Outcomes seen at each site, as bits of ALL_TRUE, ALL_FALSE and MIXED. Adding two merges them.

    A condition of one element is complete without MIXED.
    """

    outcomes: dict[Site, int] = field(default_factory=dict)

    def record(self, kernel: str, sites: Iterable[tuple[str, Location]], seen: Iterable[int]) -> None:
        """Take over the bits of one compiled kernel; masks of one kind and line are told apart by their order."""
        ordinals: dict[tuple[str, int, str], int] = {}
        for (kind, location), bits in zip(sites, seen, strict=True):
            key = (location.file, location.line, kind)
            ordinal = ordinals[key] = ordinals.get(key, -1) + 1
            site = Site(kernel, location.file, location.line, kind, ordinal)
            self.outcomes[site] = self.outcomes.get(site, 0) | bits

    def __add__(self, other: Coverage) -> Coverage:
        merged = dict(self.outcomes)
        for site, bits in other.outcomes.items():
            merged[site] = merged.get(site, 0) | bits
        return Coverage(merged)

    def missing(self) -> dict[Site, list[str]]:
        """Return the outcomes that no program has shown yet, for each site that lacks any."""
        names = {ALL_TRUE: "all true", ALL_FALSE: "all false", MIXED: "mixed"}
        result = {}
        for site, bits in sorted(self.outcomes.items()):
            wanted = ALL_TRUE | ALL_FALSE if site.kind in ("branch", "while") else COMPLETE
            lacking = [name for bit, name in names.items() if wanted & bit and not bits & bit]
            if lacking:
                result[site] = lacking
        return result

    def to_json(self) -> list[list[object]]:
        """Return rows of [kernel, file, line, kind, ordinal, bits], for merging the results of workers."""
        return [[s.kernel, s.file, s.line, s.kind, s.ordinal, bits] for s, bits in sorted(self.outcomes.items())]

    @classmethod
    def from_json(cls, rows: Iterable[Any]) -> Coverage:
        """Return the inverse of `to_json`."""
        return cls({Site(*row[:5]): int(row[5]) for row in rows})
