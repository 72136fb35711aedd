"""Variables of the generated code, and the regions and lanes that they belong to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from fuzz_attn.simulator.frontend.ir import Type, Value

Literal = int | float | bool


@dataclass(slots=True, eq=False)
class Scope:
    """A set of lanes and the variables captured for them: outer name -> inner name."""

    parent: Scope | None
    lanes: str
    captures: dict[str, tuple[str, str, str]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Region:
    """Lines of generated code that run together.

    `shared` ones run before all others, once for a program or a launch: what they define is seen everywhere.
    """

    parent: Region | None
    scope: Scope
    loop: bool = False
    lines: list[str] = field(default_factory=list)
    depth: int = 0
    shared: bool = False

    def encloses(self, other: Region) -> bool:
        """Whether what is defined here is visible in `other`."""
        if self.shared:
            return True
        region: Region | None = other
        while region is not None:
            if region is self:
                return True
            region = region.parent
        return False


@dataclass(slots=True, eq=False)
class Term:
    """One variable of the generated code.

    `affine` says that it is a multiple of an arange plus something; `start` that it is the arange itself from
    that number on, and `prefix` that it is a mask whose first so many elements hold and no other, both known
    when the code is generated. `unrounded` is the float32 term that it rounds to its own, narrower type.
    """

    name: str
    shape: tuple[int, ...]
    varying: bool
    region: Region
    element: str
    literal: Literal | None = None
    affine: bool = False
    range: str | None = None
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
    """An SSA value as a sum (integers, pointers) or a conjunction (masks) of terms. `base` names a pointer's memory.

    `groups` are the parts of a pointer's offset that were 32-bit sums: they wrap as a whole.
    """

    type: Type
    terms: tuple[Term, ...]
    base: str | None = None
    groups: tuple[Val, ...] = ()
    range: str | None = None

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


def literal_text(value: Literal) -> str:
    """Python source of a number; infinities and NaN are names of the generated module."""
    if isinstance(value, float):
        if math.isnan(value):
            return "nan"
        if value in (float("inf"), float("-inf")):
            return "inf" if value > 0 else "-inf"
    text = repr(value)
    return f"({text})" if text.startswith("-") else text


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a trial of a loop's body may be undone to."""

    lines: list[tuple[Region, list[str]]]
    captures: list[tuple[Scope, dict[str, tuple[str, str, str]]]]
    cache: dict[tuple[object, ...], Term]
    values: dict[Value, Val]
    sites: int
    coverage_sites: int
