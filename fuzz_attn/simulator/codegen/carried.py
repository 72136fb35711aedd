"""How values are carried from one iteration, arm or block to the next."""

from __future__ import annotations

from dataclasses import dataclass

from fuzz_attn.simulator.codegen.emitter import Emitter
from fuzz_attn.simulator.codegen.terms import Region, Scope, Term, Val, broadcast_shape
from fuzz_attn.simulator.frontend.ir import Value


@dataclass(frozen=True, slots=True)
class Layout:
    """How a value is carried from one iteration or arm to the next: a variable for each tile shape of its terms.

    Terms of a pointer that are the same all the time are `fixed` and need no variable.
    """

    shapes: tuple[tuple[tuple[int, ...], bool], ...]
    element: str
    base: str | None = None
    fixed: tuple[Term, ...] = ()

    def join(self, other: Layout, emitter: Emitter) -> Layout:
        """Return the layout that holds values of both."""
        if self.base != other.base:
            raise emitter.unsupported("a pointer to one of several tensors")
        if self.base is None:
            (left, first), (right, second) = self.shapes[0], other.shapes[0]
            return Layout(((broadcast_shape((left, right), len(left)), first or second),), self.element)
        common = tuple(term for term in self.fixed if term in other.fixed)
        joined = dict(self.shapes)
        moving = [(term.shape, term.varying) for term in (*self.fixed, *other.fixed) if term not in common]
        for shape, varying in (*other.shapes, *moving):
            joined[shape] = joined.get(shape, False) or varying
        return Layout(tuple(sorted(joined.items())), self.element, self.base, common)

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


def _sources(emitter: Emitter, val: Val, layout: Layout) -> list[str]:
    """Source of an array for each shape of the layout."""
    if layout.base is None:
        shape, varying = layout.shapes[0]
        return [emitter.exact(emitter.single(val), shape, varying)]
    terms = [term for term in _pointer_terms(emitter, val) if term not in layout.fixed]
    sources = []
    for shape, varying in layout.shapes:
        own = [term for term in terms if term.shape == shape]
        if len(own) == 1 and own[0].element == "i64":
            sources.append(emitter.exact(own[0], shape, varying))
            continue
        count = f"{emitter.region.scope.lanes}.size" if varying else "1"
        sources.append(f"rows({' + '.join(map(emitter.name, own)) or '0'}, {count}, {shape}, np.int64)")
    return sources


@dataclass(slots=True)
class Carried:
    """A loop-carried value: its layout and variables."""

    layout: Layout
    names: list[str]
    range: str | None

    def bind(self, emitter: Emitter, value: Value, region: Region) -> None:
        """Make `value` stand for the variables, as terms of `region`."""
        terms = [
            Term(name, shape, varying, region, self.layout.element, range=self.range)
            for name, (shape, varying) in zip(self.names, self.layout.shapes, strict=True)
        ]
        emitter.define(value, *terms, *self.layout.fixed, base=self.layout.base)


def carry(emitter: Emitter, layout: Layout, value: Value) -> Carried:
    """Return fresh variables for a value."""
    names = [emitter.fresh("x") for _ in layout.shapes]
    return Carried(layout, names, emitter.fresh("r") if value in emitter.tracked else None)


def _range_of(emitter: Emitter, val: Val) -> str:
    if val.type.pointer:
        return f"ranges.tainted({', '.join(term.range for term in val.terms if term.range)})"
    return emitter.single(val).range or "ranges.EVERYTHING"


def start_carried(emitter: Emitter, carried: list[Carried], vals: list[Val]) -> None:
    """Emit the first values."""
    for item, val in zip(carried, vals, strict=True):
        for name, source in zip(item.names, _sources(emitter, val, item.layout), strict=True):
            emitter.line(f"{name} = {source}")
        if item.range:
            emitter.line(f"{item.range} = {_range_of(emitter, val)}")


def advance_carried(emitter: Emitter, carried: list[Carried], vals: list[Val], union: bool) -> None:
    """Assign the next values all at once, for one may be another's old value."""
    names, sources = [], []
    for item, val in zip(carried, vals, strict=True):
        for name, source in zip(item.names, _sources(emitter, val, item.layout), strict=True):
            if name != source:
                names.append(name)
                sources.append(source)
        if item.range:
            new = _range_of(emitter, val)
            names.append(item.range)
            sources.append(f"ranges.union({item.range}, {new})" if union else new)
    if names:
        emitter.line(f"{', '.join(names)}, = {', '.join(sources)},")


def flat_names(carried: list[Carried]) -> list[str]:
    """Return the names of all variables."""
    return [name for item in carried for name in item.names]


def enter_scope(lines: list[str], helper: str, selector: str, scope: Scope, outer_lanes: str, more: list[str]) -> None:
    """Lines that give a scope its lanes and captured values; an empty helper takes all lanes."""
    inner = [scope.lanes, *(capture[1] for capture in scope.captures.values()), *more]
    outer = [outer_lanes, *(capture[0] for capture in scope.captures.values()), *more]
    if helper:
        lines.append(f"{', '.join(inner)}, = {helper}({selector}, {', '.join(outer)})")
    else:
        pairs = [(left, right) for left, right in zip(inner, outer, strict=True) if left != right]
        lines.append(f"{', '.join(left for left, _ in pairs)}, = {', '.join(right for _, right in pairs)},")


def indented(lines: list[str]) -> list[str]:
    """Return lines of a block that is never empty."""
    return [f"    {line}" for line in lines] or ["    pass"]


def fits(layout: Layout, other: Layout, emitter: Emitter) -> bool:
    """Return whether values of the other layout can be held as they are."""
    joined = layout.join(other, emitter)
    return joined == layout or joined.diverged() == layout
