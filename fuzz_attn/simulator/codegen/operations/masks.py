"""Emission of selections and of conjunctions of masks."""

from __future__ import annotations

from fuzz_attn.simulator.codegen.emission import cover, elementwise, track_exactly
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.codegen.terms import Term, broadcast_shape
from fuzz_attn.simulator.frontend.ir import Operation


def _and(emitter: Emitter, operation: Operation) -> None:
    result = operation.results[0]
    left, right = (emitter.val(operand) for operand in operation.operands)
    if result.type.element != "i1" or len({term.shape for term in (*left.terms, *right.terms)}) == 1:
        term = elementwise(emitter, operation, "{0} & {1}")
        if result in emitter.tracked:
            track_exactly(emitter, operation, term)
        return
    by_shape: dict[tuple[int, ...], Term] = {}
    for term in sorted((*left.terms, *right.terms), key=lambda term: term.region.depth):
        known = by_shape.get(term.shape)
        if known is None:
            by_shape[term.shape] = term
        else:
            by_shape[term.shape] = emitter.assign("{0} & {1}", [known, term], term.shape, "i1")
    emitter.define(result, *by_shape.values())


def _select(emitter: Emitter, operation: Operation) -> None:
    result = operation.results[0]
    if result.type.pointer:
        raise emitter.unsupported("arith.select of pointers")
    operands = [emitter.operand(operation, index) for index in range(3)]
    if emitter.coverage:
        cover(emitter, "select", operands[0])
    mask = emitter.array(operands[0])
    shape = broadcast_shape((term.shape for term in operands), len(result.type.shape))
    template = f"select({{0}}, {{1}}, {{2}}, DTYPES['{result.type.element}'])"
    term = emitter.assign(template, [mask, *operands[1:]], shape, result.type.element)
    emitter.define(result, term)
    if result in emitter.tracked:
        name = emitter.fresh("r")
        left, right = (operand.range or "ranges.EVERYTHING" for operand in operands[1:])
        emitter.note(f"{name} = ranges.choose({{1}}, {{lanes}}, {left}, {right})", term, [mask])
        term.range = name


HANDLERS: dict[str, Handler] = {"arith.andi": _and, "arith.select": _select}
