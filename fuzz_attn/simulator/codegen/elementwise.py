"""Emission of operations that compute each element of a tile from the same elements of their operands."""

from __future__ import annotations

from fuzz_attn.simulator.codegen.emitter import Emitter
from fuzz_attn.simulator.codegen.terms import Term, broadcast_shape
from fuzz_attn.simulator.codegen.tree.expressions import Builder, call
from fuzz_attn.ttir.ir import Operation


def rounded(build: Builder, element: str) -> Builder:
    """Return the builder with the rounding that arithmetic in a narrow format needs."""
    if element not in ("bf16", "f16"):
        return build
    return lambda *operands: call(f"round_{element}", build(*operands))


def elementwise(
    emitter: Emitter, operation: Operation, build: Builder, *, arrays: bool = False, plain_numbers: bool = False
) -> Term:
    """Emit an expression over all operands of an operation and define its result.

    `arrays` makes an array of each operand, for functions that look at an operand's bits. `plain_numbers` passes
    numbers as they are.
    """
    terms = [emitter.operand(operation, index) for index in range(len(operation.operands))]
    if arrays or all(term.literal is not None for term in terms):
        terms = [emitter.array(term) for term in terms]
    result = operation.results[0]
    shape = broadcast_shape((term.shape for term in terms), len(result.type.shape))
    term = emitter.assign(build, terms, shape, result.type.element, plain_numbers=plain_numbers)
    emitter.define(result, term)
    return term


def full(emitter: Emitter, operation: Operation, index: int) -> Term:
    """Return an operand with nothing lazily broadcast."""
    return emitter.ranked(emitter.spread(emitter.operand(operation, index), operation.operands[index].type.shape))
