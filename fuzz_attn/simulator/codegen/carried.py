"""How values are carried from one iteration, arm or block to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuzz_attn.simulator.codegen.emitter import Emitter, range_of
from fuzz_attn.simulator.codegen.source_tree import (
    NUMPY,
    Assign,
    Attribute,
    Expression,
    Group,
    Name,
    call,
    constant,
    joined,
    number,
)
from fuzz_attn.simulator.codegen.terms import Region, RunRange, Scope, Term, Val, broadcast_shape, range_call
from fuzz_attn.simulator.runtime import ranges
from fuzz_attn.ttir.ir import Value


@dataclass(frozen=True, slots=True)
class Layout:
    """How a value is carried from one iteration or arm to the next: a variable for each tile shape of its terms.

    Terms of a pointer that are the same all the time are `fixed` and need no variable.
    """

    shapes: tuple[tuple[tuple[int, ...], bool], ...]
    element: str
    base: Name | None = None
    fixed: tuple[Term, ...] = ()

    def join(self, other: Layout, emitter: Emitter) -> Layout:
        """Return the layout that holds values of both."""
        if self.base != other.base:
            raise emitter.unsupported("a pointer to one of several tensors")
        if self.base is None:
            (left, first), (right, second) = self.shapes[0], other.shapes[0]
            return Layout(((broadcast_shape((left, right), len(left)), first or second),), self.element)
        common = tuple(term for term in self.fixed if term in other.fixed)
        joint = dict(self.shapes)
        moving = [(term.shape, term.varying) for term in (*self.fixed, *other.fixed) if term not in common]
        for shape, varying in (*other.shapes, *moving):
            joint[shape] = joint.get(shape, False) or varying
        return Layout(tuple(sorted(joint.items())), self.element, self.base, common)

    def released(self, region: Region) -> Layout:
        """Return the layout in which terms that `region` cannot see are carried and not fixed."""
        kept = tuple(term for term in self.fixed if term.region.encloses(region))
        moving = {term.shape: term.varying for term in self.fixed if term not in kept}
        return Layout(tuple(sorted({**moving, **dict(self.shapes)}.items())), self.element, self.base, kept)

    def diverged(self) -> Layout:
        """Return the layout when each lane may carry another value."""
        return Layout(tuple((shape, True) for shape, _ in self.shapes), self.element, self.base, self.fixed)


def layout_of(emitter: Emitter, val: Val, varying: bool = False) -> Layout:
    """Return how a value is best carried."""
    if val.type.pointer:
        return Layout((), "i64", val.base, tuple(_pointer_terms(emitter, val)))
    term = emitter.single(val)
    return Layout(((term.shape, term.varying or varying),), val.type.element)


def _pointer_terms(emitter: Emitter, val: Val) -> list[Term]:
    grouped = {term for group in val.groups for term in group.terms}
    return [term for term in val.terms if term not in grouped] + [emitter.single(group) for group in val.groups]


def _arrays(emitter: Emitter, val: Val, layout: Layout) -> list[Expression]:
    """Return an array for each shape of the layout."""
    if layout.base is None:
        shape, varying = layout.shapes[0]
        return [emitter.exact(emitter.single(val), shape, varying)]
    terms = [term for term in _pointer_terms(emitter, val) if term not in layout.fixed]
    arrays: list[Expression] = []
    for shape, varying in layout.shapes:
        own = [term for term in terms if term.shape == shape]
        if len(own) == 1 and own[0].element == "i64":
            arrays.append(emitter.exact(own[0], shape, varying))
            continue
        total = joined("+", [emitter.read(term) for term in own] or [number(0)])
        wide = Attribute(NUMPY, "int64")
        arrays.append(call("rows", total, emitter.row_count(varying), constant(shape), wide))
    return arrays


@dataclass(slots=True)
class Carried:
    """A carried value: its layout, the variables that hold it, and the one that holds its range if it is tracked."""

    layout: Layout
    names: list[Name]
    range: Name | None

    def bind(self, emitter: Emitter, value: Value, region: Region) -> None:
        """Make `value` stand for the variables, as terms of `region`."""
        found = RunRange(self.range) if self.range else None
        terms = [
            Term(name, shape, varying, region, self.layout.element, range=found)
            for name, (shape, varying) in zip(self.names, self.layout.shapes, strict=True)
        ]
        emitter.define(value, *terms, *self.layout.fixed, base=self.layout.base)

    def of_arm(self, arm: int) -> Carried:
        """Return the variables that hold the value at the end of one arm of an `if`."""
        names = [_of_arm(name, arm) for name in self.names]
        return Carried(self.layout, names, _of_arm(self.range, arm) if self.range else None)


def _of_arm(name: Name, arm: int) -> Name:
    return Name(f"{name.name}_{arm}")


def carry(emitter: Emitter, layout: Layout, value: Value) -> Carried:
    """Return fresh variables for a value."""
    names = [emitter.fresh("x") for _ in layout.shapes]
    return Carried(layout, names, emitter.fresh("r") if value in emitter.tracked else None)


def carry_all(emitter: Emitter, layouts: Sequence[Layout], values: Sequence[Value]) -> list[Carried]:
    """Return fresh variables for values."""
    return [carry(emitter, layout, value) for layout, value in zip(layouts, values, strict=True)]


def bind_all(emitter: Emitter, carried: Sequence[Carried], values: Sequence[Value], region: Region) -> None:
    """Make values stand for their variables, as terms of `region`."""
    for one, value in zip(carried, values, strict=True):
        one.bind(emitter, value, region)


def join_all(emitter: Emitter, layouts: Sequence[Layout], others: Sequence[Layout]) -> list[Layout]:
    """Return the layouts that hold values of both."""
    return [layout.join(other, emitter) for layout, other in zip(layouts, others, strict=True)]


def _range_of(emitter: Emitter, val: Val) -> Expression:
    if val.type.pointer:
        return range_call(ranges.tainted, *(term.range.expression for term in val.terms if term.range))
    return range_of(emitter.single(val)).expression


def start_carried(emitter: Emitter, carried: list[Carried], vals: list[Val]) -> None:
    """Emit the first values."""
    for one, val in zip(carried, vals, strict=True):
        for name, array in zip(one.names, _arrays(emitter, val, one.layout), strict=True):
            emitter.add(Assign(name, array))
        if one.range:
            emitter.add(Assign(one.range, _range_of(emitter, val)))


def advance_carried(emitter: Emitter, carried: list[Carried], vals: list[Val], union: bool) -> None:
    """Assign the next values all at once, for one may be another's old value."""
    names: list[Name] = []
    values: list[Expression] = []
    for one, val in zip(carried, vals, strict=True):
        for name, array in zip(one.names, _arrays(emitter, val, one.layout), strict=True):
            if name != array:
                names.append(name)
                values.append(array)
        if one.range:
            new = _range_of(emitter, val)
            names.append(one.range)
            values.append(range_call(ranges.union, one.range, new) if union else new)
    if names:
        emitter.add(unpacked(names, Group(tuple(values))))


def flat_names(carried: list[Carried]) -> list[Name]:
    """Return the names of all variables."""
    return [name for one in carried for name in one.names]


def unpacked(names: Sequence[Name], values: Expression) -> Assign:
    """Return the assignment of a sequence to several variables."""
    return Assign(Group(tuple(names)), values)


def taken(selector: Expression, scope: Scope, outer_lanes: Name, more: Sequence[Name] = ()) -> Assign:
    """Return the assignment that gives a scope the selected lanes, with the rows of its captures and of `more`."""
    outer = (outer_lanes, *scope.outer_names, *more)
    return unpacked([scope.lanes, *scope.inner_names, *more], call("take", selector, *outer))


def entered(scope: Scope, outer_lanes: Name) -> Assign:
    """Return the assignment that gives a scope all lanes, and its captures."""
    return unpacked([scope.lanes, *scope.inner_names], Group((outer_lanes, *scope.outer_names)))


def fits(layout: Layout, other: Layout, emitter: Emitter) -> bool:
    """Return whether values of the other layout can be held as they are."""
    joint = layout.join(other, emitter)
    return joint == layout or joint.diverged() == layout
