"""Changes of a tile's shape."""

from __future__ import annotations

from collections.abc import Callable

from fuzz_attn.simulator.codegen.emitter import Emitter, Handler, full, track_exactly, track_result
from fuzz_attn.simulator.codegen.expressions import (
    ALL,
    ELLIPSIS,
    NONE,
    Conditional,
    Constant,
    Expression,
    Group,
    call,
    constant,
    function,
    index,
    method,
)
from fuzz_attn.simulator.codegen.terms import KnownRange, RunRange, Term, Val, ValueRange, range_call
from fuzz_attn.simulator.runtime import ranges
from fuzz_attn.ttir.ir import Operation, Type


def _each_term(emitter: Emitter, operation: Operation, change: Callable[[Term], Term]) -> None:
    """Apply a change of shape to every term of a value, which stays a sum, a conjunction or a pointer."""
    source = emitter.val(operation.operands[0])
    result = operation.results[0]
    memo: dict[Term, Term] = {}

    def changed(term: Term) -> Term:
        if term not in memo:
            memo[term] = change(term)
        return memo[term]

    groups = tuple(
        Val(Type(group.type.element, result.type.shape), tuple(map(changed, group.terms)), range=group.range)
        for group in source.groups
    )
    val = emitter.define(result, *map(changed, source.terms), base=source.base, groups=groups)
    val.range = source.range


def _with_axes(emitter: Emitter, term: Term, shape: tuple[int, ...], items: list[Constant], affine: bool) -> Term:
    """Return a term with new axes of length 1, by an index of `:` and None."""
    if term.literal is not None:
        return emitter.literal(term.literal, shape, term.element)
    if term.bare:
        return Term(term.expression, shape, False, term.region, term.element, range=term.range)
    result = emitter.assign(lambda operand: index(operand, *items), [term], shape, term.element, affine=affine)
    result.range = _range_with_axes(emitter, result, term, items)
    return result


def _range_with_axes(emitter: Emitter, target: Term, source: Term, items: list[Constant]) -> ValueRange | None:
    """Return the range of a term whose taints, if any, are indexed as the term is."""
    if source.range is None or source.range.clean:
        return source.range
    inside = Group(tuple(call("slice", NONE) if item is ALL else item for item in items))

    def build(found: Expression) -> Expression:
        tainted = index(found, constant(2))
        return Conditional(range_call(ranges.reshaped, found, inside), tainted, found)

    return emitter.new_range(build, [source.range], target.region)


def _splat(emitter: Emitter, operation: Operation) -> None:
    rank = len(operation.results[0].type.shape)
    items = [ALL, *[NONE] * rank]
    _each_term(emitter, operation, lambda term: _with_axes(emitter, term, (1,) * rank, items, affine=False))


def _expand_dims(emitter: Emitter, operation: Operation) -> None:
    axis, rank = operation.attributes.integer("axis"), len(operation.operands[0].type.shape)
    items = [*[ALL] * (axis + 1), NONE, *[ALL] * (rank - axis)]

    def change(term: Term) -> Term:
        shape = (*term.shape[:axis], 1, *term.shape[axis:])
        expanded = _with_axes(emitter, term, shape, items, term.affine)
        if not term.bare:
            expanded.start, expanded.prefix = term.start, term.prefix
        return expanded

    _each_term(emitter, operation, change)


def _column_axis(source: tuple[int, ...], result: tuple[int, ...]) -> int | None:
    """Return the axis at which a reshape leaves the only axis of its operand; None for any other reshape."""
    places = [axis for axis, size in enumerate(result) if size != 1]
    return places[0] if len(source) == len(places) == 1 else None


def _place_axis(emitter: Emitter, operation: Operation, axis: int) -> None:
    """Emit a reshape that only puts new axes of length 1 around the axis of its operand."""
    rank = len(operation.results[0].type.shape)
    items = [ALL, *[NONE] * axis, ALL, *[NONE] * (rank - axis - 1)]

    def change(term: Term) -> Term:
        shape = tuple(term.shape[0] if place == axis else 1 for place in range(rank))
        placed = _with_axes(emitter, term, shape, items, term.affine)
        if not term.bare:
            placed.start, placed.prefix = term.start, term.prefix
        return placed

    _each_term(emitter, operation, change)


def _broadcast(emitter: Emitter, operation: Operation) -> None:
    """Leave every term as it is: its axes are broadcast where it is used."""
    _each_term(emitter, operation, lambda term: term)


def _transpose(emitter: Emitter, operation: Operation) -> None:
    order = operation.attributes.integers("order")
    if not order:
        raise emitter.unsupported("tt.trans")
    axes = [constant(0), *(constant(axis + 1) for axis in order)]

    def transposed(operand: Expression) -> Expression:
        return method(operand, "transpose", *axes)

    def change(term: Term) -> Term:
        shape = tuple(term.shape[axis] for axis in order)
        if term.literal is not None or term.bare:
            return Term(term.expression, shape, False, term.region, term.element, term.literal, range=term.range)
        moved = emitter.assign(transposed, [term], shape, term.element, affine=term.affine)
        moved.start, moved.prefix = term.start, term.prefix
        moved.range = _moved_range(moved, term.range)
        return moved

    _each_term(emitter, operation, change)


def _moved_range(moved: Term, source: ValueRange | None) -> ValueRange | None:
    if source is None or isinstance(source, KnownRange):
        return source
    return RunRange(range_call(ranges.exact, moved.expression, source.expression))


def _reshape(emitter: Emitter, operation: Operation) -> None:
    result = operation.results[0]
    shape = result.type.shape
    axis = _column_axis(operation.operands[0].type.shape, shape)
    if axis is not None:
        _place_axis(emitter, operation, axis)
        return
    source = emitter.operand(operation, 0)
    if source.literal is not None:
        emitter.define(result, emitter.literal(source.literal, shape, source.element))
        return
    if source.bare:
        ones = (1,) * len(shape)
        emitter.define(result, Term(source.expression, ones, False, source.region, source.element, range=source.range))
        return
    spread = emitter.spread(source, operation.operands[0].type.shape)
    full_shape = constant((-1, *shape))
    term = emitter.assign(lambda operand: method(operand, "reshape", full_shape), [spread], shape, source.element)
    emitter.define(result, term)
    if result in emitter.tracked:
        track_exactly(emitter, term, emitter.operand(operation, 0).range)


def _join(emitter: Emitter, operation: Operation) -> None:
    operands = [full(emitter, operation, index) for index in (0, 1)]
    result = operation.results[0]
    build = function("stack" if operation.name == "tt.join" else "concatenate")
    emitter.define(result, emitter.assign(build, operands, result.type.shape, result.type.element))
    track_result(emitter, result)


def _split(emitter: Emitter, operation: Operation) -> None:
    source = full(emitter, operation, 0)
    for place, result in enumerate(operation.results):
        half = (ELLIPSIS, constant(place))
        term = emitter.assign(
            lambda operand, half=half: index(operand, *half), [source], result.type.shape, result.type.element
        )
        emitter.define(result, term)
        track_result(emitter, result)


HANDLERS: dict[str, Handler] = {
    "tt.splat": _splat,
    "tt.unsplat": _reshape,
    "tt.expand_dims": _expand_dims,
    "tt.broadcast": _broadcast,
    "tt.trans": _transpose,
    "tt.reshape": _reshape,
    "tt.join": _join,
    "tt.cat": _join,
    "tt.split": _split,
}
