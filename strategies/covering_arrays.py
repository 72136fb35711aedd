"""Covering arrays: few rows in which every pair of values of every two axes occurs together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeAlias

Row: TypeAlias = tuple[int, ...]
Allowed: TypeAlias = Callable[[int, int, int, int], bool]


def pairwise(weights: Sequence[Sequence[int]], *, allowed: Allowed | None = None, seed: int = 0) -> tuple[Row, ...]:
    """Return rows of value indices, one for each axis, that hold every allowed pair; the first is all zeros if allowed.

    ``weights`` has one positive number for each value of each axis: how often it is taken, relative to the others,
    where no value covers more pairs. ``allowed(axis, value, other_axis, other_value)`` is called with ``axis <
    other_axis``; every allowed partial row must have an allowed value on every other axis. Greedy, one row at a time
    (after AETG, Cohen et al. 1997). The rows are the same on every machine: only ``random()`` of the generator is used,
    which Python guarantees to be stable.
    """
    random = Random(seed)  # noqa: S311 (nothing secret)
    return _CoveringArray(weights, allowed or (lambda *_: True), random).build()


class _CoveringArray:
    """Rows under construction. An *item* is one value of one axis, numbered through all axes."""

    def __init__(self, weights: Sequence[Sequence[int]], allowed: Allowed, random: Random) -> None:
        self.random = random
        sizes = [len(axis) for axis in weights]
        self.weights = [weight for axis in weights for weight in axis]
        self.items = [(axis, value) for axis, size in enumerate(sizes) for value in range(size)]
        starts = [sum(sizes[:axis]) for axis in range(len(sizes))]
        self.axes = [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]
        self.partners = [
            {j for j, right in enumerate(self.items) if _compatible(left, right, allowed)} for left in self.items
        ]
        self.uncovered = [set(partners) for partners in self.partners]

    def build(self) -> tuple[Row, ...]:
        """Add rows until no pair is left."""
        rows = []
        simplest = [axis.start for axis in self.axes]
        if all(self.partners[item].issuperset({*simplest} - {item}) for item in simplest):
            rows.append(simplest)
            self._cover(simplest)
        for item, left in enumerate(self.uncovered):
            while left:
                rows.append(self._row(item, min(left)))
                self._cover(rows[-1])
        return tuple(tuple(self.items[item][1] for item in row) for row in rows)

    def _row(self, first: int, second: int) -> list[int]:
        row = {first, second}
        fixed = {self.items[first][0], self.items[second][0]}
        free = [axis for axis in range(len(self.axes)) if axis not in fixed]
        while free:
            row.add(self._best(free.pop(self._below(len(free))), row))
        return sorted(row)

    def _best(self, axis: int, row: set[int]) -> int:
        gains = [(len(self.uncovered[item] & row), item) for item in self.axes[axis] if row <= self.partners[item]]
        most = max(gain for gain, _ in gains)
        return self._weighted([item for gain, item in gains if gain == most])

    def _weighted(self, items: list[int]) -> int:
        ticket = self._below(sum(self.weights[item] for item in items))
        for item in items:
            ticket -= self.weights[item]
            if ticket < 0:
                return item
        return items[-1]

    def _below(self, bound: int) -> int:
        return int(self.random.random() * bound)

    def _cover(self, row: list[int]) -> None:
        for item in row:
            self.uncovered[item].difference_update(row)


def _compatible(left: tuple[int, int], right: tuple[int, int], allowed: Allowed) -> bool:
    if left[0] == right[0]:
        return False
    return allowed(*min(left, right), *max(left, right))
