"""Integer sums and products, which stay lists of terms where an address may need them apart."""

from __future__ import annotations

from typing import Final

from fuzz_attn.simulator.codegen.elementwise import elementwise
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.codegen.terms import Term, Val
from fuzz_attn.simulator.codegen.tracking import range_of, track, track_wrapped
from fuzz_attn.simulator.codegen.tree.expressions import constant, infix, prefix
from fuzz_attn.simulator.codegen.tree.value_ranges import KnownRange, RangeFunction, ValueRange
from fuzz_attn.simulator.runtime import ranges
from fuzz_attn.ttir.ir import Operation

_KINDS: Final = {"arith.addi": "add", "arith.subi": "sub", "arith.muli": "mul"}
_SIGNS: Final = {"add": "+", "sub": "-", "mul": "*"}
_RANGES: Final[dict[str, RangeFunction]] = {"add": ranges.add, "sub": ranges.subtract, "mul": ranges.multiply}


def _ring(emitter: Emitter, operation: Operation) -> None:
    """Emit an addition, subtraction or multiplication of integers."""
    left, right = (emitter.val(operand) for operand in operation.operands)
    kind = _KINDS[operation.name]
    if operation.results[0].type.element == "i1":
        elementwise(emitter, operation, infix("&" if kind == "mul" else "^"))
    elif kind == "mul":
        _multiply(emitter, operation, left, right)
    elif _keeps_sum(emitter, operation, left, right):
        _sum(emitter, operation, left, right, kind)
    else:
        _ring_single(emitter, operation, kind)


def _ring_single(emitter: Emitter, operation: Operation, kind: str) -> None:
    operands = [emitter.operand(operation, index) for index in (0, 1)]
    term = elementwise(emitter, operation, infix(_SIGNS[kind]))
    term.affine = _stays_affine(operands, kind)
    if operation.results[0] not in emitter.tracked:
        return
    guess = track(emitter, term, _RANGES[kind], [range_of(operand) for operand in operands])
    if operation.results[0].type.element == "i32":
        track_wrapped(emitter, term, constant(kind), operands, guess)


def _stays_affine(operands: list[Term], kind: str) -> bool:
    left, right = operands
    if kind == "mul":
        return (left.affine and right.scalar) or (right.affine and left.scalar)
    return (left.affine and right.scalar) or (kind == "add" and right.affine and left.scalar)


def _keeps_sum(emitter: Emitter, operation: Operation, left: Val, right: Val) -> bool:
    """Return whether a sum stays a list of terms: its parts vary along different axes, and no wrap can be missed."""
    result = operation.results[0]
    if not result.type.shape or not (result.type.element == "i64" or result in emitter.tracked):
        return False
    if result.type.element not in ("i32", "i64"):
        return False
    shapes = {term.shape for term in (*left.terms, *right.terms)}
    return len(shapes) > 1


def _sum(emitter: Emitter, operation: Operation, left: Val, right: Val, kind: str) -> None:
    result = operation.results[0]
    terms = list(left.terms)
    terms += [term if kind == "add" else _negative(emitter, term) for term in right.terms]
    merged = _merged(emitter, terms, result.type.element)
    val = emitter.define(result, *merged)
    if result in emitter.tracked:
        val.range = _total_range(emitter, merged)


def _negative(emitter: Emitter, term: Term) -> Term:
    if term.literal is not None:
        return emitter.literal(-term.literal, term.shape, term.element)
    negative = emitter.assign(prefix("-"), [term], term.shape, term.element)
    if term.range:
        track(emitter, negative, ranges.subtract, [KnownRange(0, 0), term.range])
    return negative


def _merged(emitter: Emitter, terms: list[Term], element: str) -> tuple[Term, ...]:
    """Return the terms with those of one shape added up, without literal zeros."""
    by_shape: dict[tuple[int, ...], Term] = {}
    for term in sorted(terms, key=lambda term: term.region.depth):
        if term.literal == 0 and len(terms) > 1:
            continue
        known = by_shape.get(term.shape)
        by_shape[term.shape] = term if known is None else _add_terms(emitter, known, term, element)
    return tuple(by_shape.values()) or (terms[0],)


def _add_terms(emitter: Emitter, left: Term, right: Term, element: str) -> Term:
    if left.literal is not None and right.literal is not None:
        return emitter.literal(left.literal + right.literal, left.shape, element)
    term = emitter.assign(infix("+"), [left, right], left.shape, element)
    if left.range and right.range:
        track(emitter, term, ranges.add, [left.range, right.range])
    return term


def _total_range(emitter: Emitter, terms: tuple[Term, ...]) -> ValueRange:
    """Emit the range of a sum of terms."""
    region = emitter.place(terms)
    total = range_of(terms[0])
    for term in terms[1:]:
        total = emitter.ranged(ranges.add, [total, range_of(term)], region)
    return total


def _multiply(emitter: Emitter, operation: Operation, left: Val, right: Val) -> None:
    result = operation.results[0]
    if len(left.terms) > 1 and len(right.terms) == 1:
        left, right = right, left
    factor = left.term
    if len(left.terms) > 1 or len(right.terms) == 1 or not factor.scalar or result.type.element != "i64":
        _ring_single(emitter, operation, "mul")
        return
    products = tuple(_product(emitter, term, factor, result in emitter.tracked) for term in right.terms)
    val = emitter.define(result, *products)
    if result in emitter.tracked:
        val.range = _total_range(emitter, products)


def _product(emitter: Emitter, term: Term, factor: Term, tracked: bool) -> Term:
    pair = [emitter.array(term) if factor.literal is not None else term, factor]
    product = emitter.assign(infix("*"), pair, term.shape, "i64", affine=term.affine)
    if tracked:
        track(emitter, product, ranges.multiply, [range_of(one) for one in pair])
    return product


HANDLERS: dict[str, Handler] = dict.fromkeys(_KINDS, _ring)
