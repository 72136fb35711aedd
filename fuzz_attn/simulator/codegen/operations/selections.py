"""Selections, and conjunctions of masks."""

from __future__ import annotations

from fuzz_attn.simulator.codegen.emitter import Emitter, Handler, cover, elementwise, range_of, track_exactly
from fuzz_attn.simulator.codegen.expressions import ALL, NONE, dtype, function, index, infix
from fuzz_attn.simulator.codegen.terms import Term, broadcast_shape
from fuzz_attn.simulator.codegen.value_ranges import range_call
from fuzz_attn.simulator.runtime import ranges
from fuzz_attn.ttir.ir import Operation


def _and(emitter: Emitter, operation: Operation) -> None:
    result = operation.results[0]
    left, right = (emitter.val(operand) for operand in operation.operands)
    if result.type.element != "i1" or len({term.shape for term in (*left.terms, *right.terms)}) == 1:
        term = elementwise(emitter, operation, infix("&"))
        if result in emitter.tracked:
            track_exactly(emitter, term, emitter.operand(operation, 0).range)
        return
    by_shape: dict[tuple[int, ...], Term] = {}
    for term in sorted((*left.terms, *right.terms), key=lambda term: term.region.depth):
        known = by_shape.get(term.shape)
        both = term if known is None else emitter.assign(infix("&"), [known, term], term.shape, "i1")
        by_shape[term.shape] = both
    emitter.define(result, *by_shape.values())


def _as_tile(emitter: Emitter, mask: Term, rank: int) -> Term:
    """Return a mask with the axes of the tiles between which it selects; a scalar one holds for whole tiles."""
    if len(mask.shape) == rank or not mask.varying:
        return mask
    return emitter.assign(lambda operand: index(operand, ALL, *[NONE] * rank), [mask], (1,) * rank, "i1")


def _select(emitter: Emitter, operation: Operation) -> None:
    result = operation.results[0]
    if result.type.pointer:
        raise emitter.unsupported("arith.select of pointers")
    mask, left, right = (emitter.operand(operation, index) for index in range(3))
    cover(emitter, "select", mask)
    shape = broadcast_shape((term.shape for term in (mask, left, right)), len(result.type.shape))
    mask = _as_tile(emitter, emitter.array(mask), len(result.type.shape))
    element = result.type.element
    term = emitter.assign(function("select", dtype(element)), [mask, left, right], shape, element)
    emitter.define(result, term)
    if result in emitter.tracked:
        sides = [range_of(side).expression for side in (left, right)]
        chosen = range_call(ranges.choose, emitter.read(mask, term.region), term.region.scope.lanes, *sides)
        term.range = emitter.range_variable(chosen, term.region, clean=False)


HANDLERS: dict[str, Handler] = {"arith.andi": _and, "arith.select": _select}
