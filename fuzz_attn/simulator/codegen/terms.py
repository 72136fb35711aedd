"""Terms: the variables and numbers that hold a value of the IR, in regions that run together, and their bounds.

A term may be a sum or a conjunction. The statements of a region run together, for the same lanes (programs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fuzz_attn.simulator.codegen.source_tree import (
    RUN,
    Attribute,
    Binary,
    Expression,
    Literal,
    Name,
    Statement,
    all_of,
    call,
    constant,
    index,
)
from fuzz_attn.simulator.runtime.ranges import HIGH, LOW, Range
from fuzz_attn.ttir.ir import Type

CONSTANTS, LAUNCH, ELSEWHERE = -2, -1, 0
"""Depths of the regions that run once for a program, once for a launch, and more often."""

RangeFunction: TypeAlias = Callable[..., Range]
"""A function of `runtime.ranges` that makes a range of other ranges."""


@dataclass(frozen=True, slots=True)
class Capture:
    """A variable of an outer scope and the one that holds its rows for the lanes of an inner scope.

    `home` are the lanes for which the outer variable was computed first.
    """

    outer: Name
    inner: Name
    home: Name


@dataclass(slots=True, eq=False)
class Scope:
    """A set of lanes, and the variables captured for them by their outer names."""

    parent: Scope | None
    lanes: Name
    captures: dict[Name, Capture] = field(default_factory=dict)

    @property
    def outer_names(self) -> list[Name]:
        """The captured variables as the parent scope names them."""
        return [capture.outer for capture in self.captures.values()]

    @property
    def inner_names(self) -> list[Name]:
        """The captured variables as this scope names them."""
        return [capture.inner for capture in self.captures.values()]


@dataclass(slots=True, eq=False)
class Region:
    """Statements that run together.

    A `shared` region runs before all others, once for a program or a launch: what it defines is visible everywhere.
    """

    parent: Region | None
    scope: Scope
    loop: bool = False
    statements: list[Statement] = field(default_factory=list)
    depth: int = 0
    shared: bool = False

    def encloses(self, other: Region) -> bool:
        """Return whether what is defined here is visible in `other`."""
        if self.shared:
            return True
        region: Region | None = other
        while region is not None:
            if region is self:
                return True
            region = region.parent
        return False

    def outwards(self) -> Iterator[Region]:
        """Yield this region and all around it."""
        region: Region | None = self
        while region is not None:
            yield region
            region = region.parent


def arm_of(outer: Region, scope: Scope | None = None) -> Region:
    """Return a region for the statements under a condition."""
    return Region(outer, scope or outer.scope, depth=outer.depth + 1)


def loop_in(outer: Region, scope: Scope | None = None) -> Region:
    """Return a region that runs more than once."""
    return Region(outer, scope or outer.scope, loop=True, depth=outer.depth + 1)


@dataclass(slots=True, eq=False)
class Term:
    """One variable or number of the generated code.

    `shape` is that of the tile, 1 where an axis is broadcast. `varying` terms have a row for each lane of their region.
    `affine` terms are a multiple of an arange plus a constant. A term with a `start` is the arange from that number on;
    one with a `prefix` is a mask of which just that many leading elements hold. Both are known when the code is
    generated. `unrounded` is the float32 term that this one rounds to its own, narrower type.
    """

    expression: Expression
    shape: tuple[int, ...]
    varying: bool
    region: Region
    element: str
    literal: Literal | None = None
    affine: bool = False
    range: ValueRange | None = None
    start: int | None = None
    prefix: int | None = None
    unrounded: Term | None = None

    @property
    def scalar(self) -> bool:
        """Whether the term is constant over the tile."""
        return all(size == 1 for size in self.shape)

    @property
    def bare(self) -> bool:
        """Whether its array may be of shape (1,) whatever the rank of the tile."""
        return not self.varying and self.scalar


@dataclass(slots=True, eq=False)
class Val:
    """An SSA value as a sum (integers, pointers) or a conjunction (masks) of terms. `base` is a pointer's memory.

    `groups` are the parts of a pointer's offset that were 32-bit sums: they wrap as a whole. `hints` have the taints of
    elements that a hint on a pointer is not true of.
    """

    type: Type
    terms: tuple[Term, ...]
    base: Name | None = None
    groups: tuple[Val, ...] = ()
    range: ValueRange | None = None
    hints: tuple[ValueRange, ...] = ()

    @property
    def term(self) -> Term:
        """The first term, and the only one of most values."""
        return self.terms[0]

    @property
    def varying(self) -> bool:
        """Whether the value depends on the program."""
        return any(term.varying for term in self.terms)


def broadcast_shape(shapes: Iterable[tuple[int, ...]], rank: int) -> tuple[int, ...]:
    """Return the common shape of tile shapes of one rank."""
    result = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape):
            if size != 1:
                result[axis] = size
    return tuple(result)


@dataclass(frozen=True, slots=True)
class KnownRange:
    """Bounds that are known when the code is generated."""

    low: int
    high: int

    clean = True
    depth = CONSTANTS

    @property
    def expression(self) -> Expression:
        """The range in the generated code."""
        return constant((self.low, self.high, ()))

    @property
    def fits_32_bits(self) -> bool:
        """Whether it is known that no element leaves 32 bits."""
        return self.low >= LOW and self.high <= HIGH


@dataclass(frozen=True, slots=True)
class RunRange:
    """A range that is known only when the code runs.

    `clean` means that it has no taints. `depth` is that of the shared region that computes it, 0 for any other region.
    """

    expression: Expression
    clean: bool = False
    depth: int = ELSEWHERE

    fits_32_bits = False


ValueRange: TypeAlias = KnownRange | RunRange

EVERYTHING = RunRange(Attribute(Name("ranges"), "EVERYTHING"), clean=True, depth=CONSTANTS)
"""The range of an integer of which nothing is known."""


def id_range(axis: int) -> RunRange:
    """Return the range of the program ids along one axis of the grid."""
    return RunRange(index(Attribute(RUN, "id_ranges"), constant(axis)), clean=True, depth=LAUNCH)


def low_of(value_range: ValueRange) -> Expression:
    """Return the expression of the lower bound."""
    return index(value_range.expression, constant(0))


def high_of(value_range: ValueRange) -> Expression:
    """Return the expression of the upper bound."""
    return index(value_range.expression, constant(1))


def taints_of(value_range: ValueRange) -> Expression:
    """Return the expression of the taints."""
    return index(value_range.expression, constant(2))


def test_of_32_bits(value_range: ValueRange) -> Expression:
    """Return the test that a range fits 32 bits."""
    low = Binary(">=", low_of(value_range), constant(LOW))
    return all_of([low, Binary("<=", high_of(value_range), constant(HIGH))])


def range_call(function: RangeFunction, *arguments: Expression) -> Expression:
    """Return a call of a function of `runtime.ranges`."""
    return call(f"ranges.{function.__name__}", *arguments)


def known(function: RangeFunction, ranges: Sequence[ValueRange]) -> KnownRange | None:
    """Return the range that a function makes of ranges that are all known, or None if one is not."""
    values: list[Range] = []
    for one in ranges:
        if not isinstance(one, KnownRange):
            return None
        values.append((one.low, one.high, ()))
    low, high, _ = function(*values)
    return KnownRange(low, high)
