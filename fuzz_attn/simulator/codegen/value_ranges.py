"""The value range of an integer on its way into an address: known when code is generated, or a variable of the code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fuzz_attn.simulator.codegen.expressions import (
    RUN,
    Attribute,
    Binary,
    Expression,
    Name,
    all_of,
    call,
    constant,
    index,
)
from fuzz_attn.simulator.runtime.ranges import HIGH, LOW, Range

CONSTANTS, LAUNCH, ELSEWHERE = -2, -1, 0
"""Depths of the regions that run once for a program, once for a launch, and more often."""

RangeFunction: TypeAlias = Callable[..., Range]
"""A function of `runtime.ranges` that makes a range of other ranges."""


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
