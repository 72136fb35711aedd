"""Tile operations: changes of shape, reductions and scans along an axis, dot products, histograms and gathers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from fuzz_attn.simulator.codegen.emitter import Emitter, Handler, full, rounded, track_exactly, track_result
from fuzz_attn.simulator.codegen.source_tree import (
    ALL,
    ELLIPSIS,
    NONE,
    NUMPY,
    Assign,
    Attribute,
    Call,
    Conditional,
    Constant,
    Define,
    Expression,
    Group,
    Name,
    Return,
    Starred,
    call,
    constant,
    function,
    index,
    method,
    numpy,
)
from fuzz_attn.simulator.codegen.terms import (
    KnownRange,
    Region,
    RunRange,
    Scope,
    Term,
    Val,
    ValueRange,
    broadcast_shape,
    range_call,
)
from fuzz_attn.simulator.runtime import ranges
from fuzz_attn.ttir.ir import Operation, Type
from fuzz_attn.ttir.kernel_arithmetic import input_precision


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


Along: TypeAlias = Callable[[Expression, Expression], Expression]
"""Makes an expression from a tile and the number of an axis."""


def _ufunc(name: str) -> Along:
    """Return the reduction by one of numpy's operations."""
    return lambda tile, axis: _along(name, "reduce", tile, axis)


def _same_type(name: str) -> Along:
    """Return the reduction in the type of the elements; numpy would take a wider one for narrow integers."""
    return lambda tile, axis: _along(name, "reduce", tile, axis, dtype=Attribute(tile, "dtype"))


def _along(name: str, how: str, tile: Expression, axis: Expression, **keywords: Expression) -> Expression:
    function = Attribute(Attribute(NUMPY, name), how)
    return Call(function, (tile,), (("axis", axis), *keywords.items()))


def _ignoring_nan(name: str) -> Along:
    return lambda tile, axis: call("reduce_ignoring_nan", constant(name), tile, axis)


def _keeping_nan(name: str) -> Along:
    return lambda tile, axis: call("reduce_maximum", Attribute(NUMPY, name), tile, axis)


_ADDS: Final = frozenset({"arith.addf", "arith.addi"})
_REDUCTIONS: Final[dict[str, Along]] = {
    "arith.addf": _same_type("add"),
    "arith.addi": _same_type("add"),
    "arith.mulf": _same_type("multiply"),
    "arith.muli": _same_type("multiply"),
    "arith.maxnumf": _ignoring_nan("fmax"),
    "arith.minnumf": _ignoring_nan("fmin"),
    "arith.maximumf": _keeping_nan("maximum"),
    "arith.minimumf": _keeping_nan("minimum"),
    "arith.maxsi": _ufunc("maximum"),
    "arith.minsi": _ufunc("minimum"),
    "arith.andi": _ufunc("bitwise_and"),
    "arith.ori": _ufunc("bitwise_or"),
    "arith.xori": _ufunc("bitwise_xor"),
}
_SCANS: Final = {"arith.addf": "add", "arith.addi": "add", "arith.mulf": "multiply", "arith.muli": "multiply"}


def _reduce(emitter: Emitter, operation: Operation) -> None:
    axis = operation.attributes.integer("axis")
    sources, shape = _sources(emitter, operation, axis)
    reduced = (*shape[:axis], *shape[axis + 1 :])
    combine = _simple_combine(operation)
    along = _REDUCTIONS.get(combine)
    element = operation.results[0].type.element
    where = constant(axis + 1)
    if along is None or (element == "i1" and combine in _ADDS):
        _combine(emitter, operation, sources, shape, reduced, "reduce_pairs", where)
        return
    build = rounded(lambda tile: along(tile, where), element)
    _define(emitter, operation, [emitter.assign(build, sources, reduced, element)])


def _scan(emitter: Emitter, operation: Operation) -> None:
    axis, reverse = operation.attributes.integer("axis"), operation.attributes.named.get("reverse") == "true"
    sources, shape = _sources(emitter, operation, axis)
    name = _SCANS.get(_simple_combine(operation))
    element = operation.results[0].type.element
    where = constant(axis + 1)
    if name is None or element in ("bf16", "f16", "i1"):
        _combine(emitter, operation, sources, shape, shape, "scan", where, constant(reverse))
        return

    def build(tile: Expression) -> Expression:
        source = numpy("flip", tile, where) if reverse else tile
        scanned = _along(name, "accumulate", source, where, dtype=Attribute(tile, "dtype"))
        return numpy("flip", scanned, where) if reverse else scanned

    _define(emitter, operation, [emitter.assign(build, sources, shape, element)])


def _sources(emitter: Emitter, operation: Operation, axis: int) -> tuple[list[Term], tuple[int, ...]]:
    """Return the operands with their own elements along `axis`, and their common shape."""
    sources = [_spread_axis(emitter, operation, place, axis) for place in range(len(operation.operands))]
    return sources, broadcast_shape((source.shape for source in sources), len(sources[0].shape))


def _spread_axis(emitter: Emitter, operation: Operation, place: int, axis: int) -> Term:
    """Return an operand with its own elements along `axis`; other axes may stay lazily broadcast."""
    term = emitter.ranked(emitter.operand(operation, place))
    size = operation.operands[place].type.shape[axis]
    return emitter.spread(term, (*term.shape[:axis], size, *term.shape[axis + 1 :]))


def _simple_combine(operation: Operation) -> str:
    """Return the name of the one operation that combines two elements, or "" if it takes more than that."""
    block = operation.regions[0][0]
    body = block.operations
    if len(body) != 2 or len(operation.operands) != 1 or set(body[0].operands) != set(block.arguments):
        return ""
    return body[0].name if body[1].operands == body[0].results else ""


def _combine(
    emitter: Emitter,
    operation: Operation,
    sources: list[Term],
    shape: tuple[int, ...],
    result_shape: tuple[int, ...],
    helper: str,
    *how: Expression,
) -> None:
    """Emit a call of `helper` with the function of the region; it stays in this region, where the function is."""
    tiles = [emitter.spread(source, shape) for source in sources]
    function, together = _combine_function(emitter, operation), emitter.fresh()
    arrays = Starred(numpy("broadcast_arrays", *(emitter.read(tile) for tile in tiles)))
    emitter.add(Assign(together, call(helper, function, *how, arrays)))
    pinned = Term(together, (), any(tile.varying for tile in tiles), emitter.region, "f32")
    terms = [
        emitter.assign(_at(place), [pinned], result_shape, value.type.element)
        for place, value in enumerate(operation.results)
    ]
    _define(emitter, operation, terms)


def _at(place: int) -> Callable[[Expression], Expression]:
    return lambda results: index(results, constant(place))


def _combine_function(emitter: Emitter, operation: Operation) -> Name:
    """Emit a function of the region that combines elements; its operands are arrays of one shape."""
    block = operation.regions[0][0]
    function = emitter.fresh("combine")
    names = tuple(emitter.fresh("a") for _ in block.arguments)
    with emitter.inside(Region(None, Scope(None, Name("lanes")))) as region:
        for name, argument in zip(names, block.arguments, strict=True):
            emitter.define(argument, Term(name, (), False, region, argument.type.element))
        emitter.emit(block.operations[:-1])
        results = [emitter.single(emitter.val(value)).expression for value in block.operations[-1].operands]
        emitter.add(Return(Group(tuple(results))))
    emitter.add(Define(function, names, region.statements))
    return function


def _define(emitter: Emitter, operation: Operation, terms: list[Term]) -> None:
    for value, term in zip(operation.results, terms, strict=True):
        emitter.define(value, term)
        track_result(emitter, value)


def _dot(emitter: Emitter, operation: Operation) -> None:
    operands = [full(emitter, operation, 0), full(emitter, operation, 1)]
    addend, result = emitter.operand(operation, 2), operation.results[0]
    if addend.literal != 0:
        operands.append(emitter.ranked(addend))
    integers = not operation.operands[0].type.is_float

    cut = input_precision(operation) == "tf32"

    def build(left: Expression, right: Expression, last: Expression = NONE) -> Expression:
        sides = (_as_int32(left), _as_int32(right)) if integers else (left, right)
        return call("dot", *(call("cut_to_tf32", side) for side in sides) if cut else sides, last)

    element = result.type.element
    emitter.define(result, emitter.assign(rounded(build, element), operands, result.type.shape, element))


def _as_int32(value: Expression) -> Expression:
    return method(value, "astype", Attribute(NUMPY, "int32"))


def _histogram(emitter: Emitter, operation: Operation) -> None:
    bins = operation.results[0].type.shape[0]
    operands = [full(emitter, operation, index) for index in range(len(operation.operands))]

    def build(values: Expression, mask: Expression = NONE) -> Expression:
        return call("histogram", values, constant(bins), mask)

    emitter.define(operation.results[0], emitter.assign(build, operands, (bins,), "i32"))


def _gather(emitter: Emitter, operation: Operation) -> None:
    operands = [full(emitter, operation, index) for index in (0, 1)]
    result = operation.results[0]
    build = function("gather", constant(operation.attributes.integer("axis") + 1))
    emitter.define(result, emitter.assign(build, operands, result.type.shape, result.type.element))
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
    "tt.reduce": _reduce,
    "tt.scan": _scan,
    "tt.dot": _dot,
    "tt.histogram": _histogram,
    "tt.gather": _gather,
}
