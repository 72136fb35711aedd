"""What holds the values of the IR in the generated code: variables and numbers, and sums and conjunctions of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fuzz_attn.simulator.codegen.regions import Region
from fuzz_attn.simulator.codegen.tree.expressions import Expression, Literal, Name
from fuzz_attn.simulator.codegen.tree.value_ranges import ValueRange
from fuzz_attn.ttir.ir import Type


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
