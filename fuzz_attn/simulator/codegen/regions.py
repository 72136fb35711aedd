"""Regions of the generated code: statements that run together, and the lanes (programs) that they run for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fuzz_attn.simulator.codegen.tree.expressions import Name
from fuzz_attn.simulator.codegen.tree.statements import Statement


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
