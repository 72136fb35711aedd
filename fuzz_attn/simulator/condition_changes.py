"""Condition changes: what may stand in place of a condition, such as the mask of a load, a store or a score."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from fuzz_attn.errors import UnknownValueError
from fuzz_attn.simulator.formulas import BINARY, PREDICATES, SHAPES, Array, Read, computed, kind_of, ranked
from fuzz_attn.simulator.site_values import SiteValues, short_name
from fuzz_attn.simulator.switches import Compute
from fuzz_attn.ttir.ir import Location, Operation, Value

UNCHECKED: Final = 1.6
"""The rank of no condition at all, which somebody wrote: behind other numbers for what it compares."""
NEAR_LINES: Final = 12
"""Lines above a place in which a name counts as one of its own."""


@dataclass(frozen=True)
class Change:
    """What may stand in place of a value: ``name`` is that of the same change elsewhere, in other kernels too."""

    name: str
    old: str
    new: str
    rank: float
    compute: Compute
    place: Location | None = None
    """The line to name, where that is not the value's own."""


class Conditions(SiteValues):
    """Proposes what may stand in place of the condition of one site."""

    def change(self, name: str, new: str, rank: float, compute: Callable[[Read], Array]) -> Change:
        """Return a change that does not need the value itself."""
        return Change(name, self.old, new, rank, lambda read, _: compute(read))

    def again(self, operation: Operation, read: Read, operands: list[Value] | None = None) -> Array:
        """Return the result of an operation on values."""
        arrays = [read(value) for value in (operation.operands if operands is None else operands)]
        return self.applied(operation, arrays)

    def applied(self, operation: Operation, arrays: list[Array]) -> Array:
        """Return the result of an operation on arrays, with axes and types as they are for its operands."""
        if operation.name not in SHAPES:
            rank = len(operation.results[0].type.shape)
            arrays = [ranked(array, rank) for array in arrays]
        if operation.name in BINARY or operation.name.startswith("arith.cmp"):
            common = np.result_type(*arrays)
            arrays = [array.astype(common, copy=False) for array in arrays]
        result = computed(operation, arrays)
        if result is None:
            raise UnknownValueError
        return result

    def with_operand(self, index: int, other: Value, read: Read) -> Array:
        """Return the result of the site's operation on another value in place of one operand."""
        operation = self.operation
        arrays = [read(other if place == index else each) for place, each in enumerate(operation.operands)]
        arrays[index] = self.axes_of(operation.operands[index], other, arrays[index])
        return self.applied(operation, arrays)

    def conditions(self) -> Iterator[Change]:
        """Yield the condition turned round, always the same, and with further ones."""
        for truth in (True, False):
            yield Change(f"always {truth}", self.old, str(truth), UNCHECKED, partial(full, truth))
        yield Change("negated", self.old, f"not ({self.old})", 1, lambda _, value: ~value)
        for mask in self.alike(self.site.value):
            words = self.words(mask)
            for name in ("arith.andi", "arith.ori"):
                sign, function = BINARY[name]
                yield self.with_other(f"{sign} {self.label(mask)}", f"{self.old} {sign} {words}", 2, function, mask)
        integers = self.named("int")
        tiles = [value for value in self.tiles() if kind_of(value.type) == "int"]
        for tile in tiles:
            for limit in integers:
                if limit.type.shape or "stride" in self.words(limit):
                    continue
                if self.root(limit) is not self.root(tile):
                    for predicate in ("lt", "ge"):
                        yield self._compared(tile, limit, *PREDICATES[predicate])
            for name, constant in self.site.kernel.constants.items():
                if constant > 1:
                    yield self._below_constant(tile, short_name(name), constant)

    def _compared(self, tile: Value, limit: Value, sign: str, function: Callable[[Array, Array], Array]) -> Change:
        def compute(read: Read, value: Array) -> Array:
            rank = len(self.type.shape)
            result: Array = value & function(ranked(read(tile), rank), ranked(read(limit), rank))
            return result

        words = f"{self.words(tile, 1)} {sign} {self.words(limit, 1)}"
        name = f"& {self.label(tile)} {sign} {self.label(limit)}"
        return Change(name, self.old, f"{self.old} & ({words})", 7, compute)

    def _below_constant(self, tile: Value, constant: str, number: int) -> Change:
        """Return the limit of a tile by a constant: one that the lines above name, before others of the kernel."""

        def compute(read: Read, value: Array) -> Array:
            result: Array = value & (ranked(read(tile), len(self.type.shape)) < number)
            return result

        place = self.operation.location
        near = (linecache.getline(place.file, line) for line in range(max(1, place.line - NEAR_LINES), place.line + 1))
        rank = 6.5 if any(re.search(rf"\b{constant}\b", line) for line in near) else 7.5
        words = f"{self.words(tile, 1)} < {constant}"
        change = Change(f"& {self.label(tile)} < {constant}", self.old, f"{self.old} & ({words})", rank, compute)
        return replace(change, place=place)

    def with_other(
        self, name: str, words: str, rank: float, function: Callable[[Array, Array], Array], other: Value
    ) -> Change:
        """Return what a function makes of the value and another one that is known there."""

        def compute(read: Read, value: Array) -> Array:
            found = ranked(read(other), len(self.type.shape))
            if value.dtype.kind == "i":
                found = found.astype(value.dtype, copy=False)
            return function(value, found)

        return Change(name, self.old, words, rank, compute)


def full(number: float, _: Read, value: Array) -> Array:
    """Return a number in each element of a value."""
    return np.full_like(value, number)
