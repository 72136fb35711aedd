"""Emission of integer sums and products, which stay lists of terms where an address may need them apart."""

from __future__ import annotations

from fuzz_attn.simulator.codegen.emission import elementwise, track
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.codegen.terms import Term, Val
from fuzz_attn.simulator.frontend.ir import Operation


def _ring(emitter: Emitter, operation: Operation) -> None:
    """Addition, subtraction and multiplication of integers."""
    left, right = (emitter.val(operand) for operand in operation.operands)
    type_ = operation.results[0].type
    kind = operation.name[6:9]
    if type_.element == "i1":
        elementwise(emitter, operation, "{0} & {1}" if kind == "mul" else "{0} ^ {1}")
    elif kind == "mul":
        _multiply(emitter, operation, left, right)
    elif _keeps_sum(emitter, operation, left, right):
        _sum(emitter, operation, left, right, kind)
    else:
        _ring_single(emitter, operation, kind)


_SIGNS = {"add": "+", "sub": "-", "mul": "*"}


_RANGES = {"add": "ranges.add", "sub": "ranges.subtract", "mul": "ranges.multiply"}


def _ring_single(emitter: Emitter, operation: Operation, kind: str) -> None:
    operands = [emitter.operand(operation, index) for index in (0, 1)]
    term = elementwise(emitter, operation, f"{{0}} {_SIGNS[kind]} {{1}}")
    term.affine = _stays_affine(operands, kind)
    if operation.results[0] in emitter.tracked:
        _check_ring(emitter, operation, term, operands, kind)


def _stays_affine(operands: list[Term], kind: str) -> bool:
    left, right = operands
    if kind == "mul":
        return (left.affine and right.scalar) or (right.affine and left.scalar)
    return (left.affine and right.scalar) or (kind == "add" and right.affine and left.scalar)


def _check_ring(emitter: Emitter, operation: Operation, term: Term, operands: list[Term], kind: str) -> None:
    name = track(emitter, term, f"{_RANGES[kind]}({{0}}, {{1}})", operands)
    if operation.results[0].type.element == "i32":
        left, right = (emitter.name(operand, term.region) for operand in operands)
        given = f"{left}, {right}, {term.name}, {term.region.scope.lanes}, {emitter.site()}, {name}"
        term.range = emitter.within(term, name, f"ranges.wrapped('{kind}', {given})")


def _keeps_sum(emitter: Emitter, operation: Operation, left: Val, right: Val) -> bool:
    """Whether a sum should stay a list of terms: its parts vary along different axes, and no wrap can be missed."""
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
    for term in right.terms:
        terms.append(term if kind == "add" else _negative(emitter, term))
    merged = merge_terms(emitter, terms, result.type.element)
    val = emitter.define(result, *merged)
    if result in emitter.tracked:
        val.range = total_range(emitter, merged)


def _negative(emitter: Emitter, term: Term) -> Term:
    if term.literal is not None:
        return emitter.literal(-term.literal, term.shape, term.element)
    negative = emitter.assign("-{0}", [term], term.shape, term.element)
    if term.range:
        track(emitter, negative, "ranges.subtract((0, 0, ()), {0})", [term])
    return negative


def merge_terms(emitter: Emitter, terms: list[Term], element: str) -> tuple[Term, ...]:
    """Terms with those of one shape added up; literal zeros fall away."""
    by_shape: dict[tuple[tuple[int, ...], bool], Term] = {}
    for term in sorted(terms, key=lambda term: term.region.depth):
        if term.literal == 0 and len(terms) > 1:
            continue
        key = (term.shape, False)
        known = by_shape.get(key)
        by_shape[key] = term if known is None else _add_terms(emitter, known, term, element)
    return tuple(by_shape.values()) or (terms[0],)


def _add_terms(emitter: Emitter, left: Term, right: Term, element: str) -> Term:
    if left.literal is not None and right.literal is not None:
        return emitter.literal(left.literal + right.literal, left.shape, element)
    term = emitter.assign("{0} + {1}", [left, right], left.shape, element)
    if left.range and right.range:
        track(emitter, term, "ranges.add({0}, {1})", [left, right])
    return term


def total_range(emitter: Emitter, terms: tuple[Term, ...]) -> str:
    """Emit the range of a sum of terms."""
    region = emitter.place(terms)
    total = terms[0].range or "ranges.EVERYTHING"
    for term in terms[1:]:
        total = emitter.ranged("ranges.add({0}, {1})", [total, term.range or "ranges.EVERYTHING"], region)
    return total


def _multiply(emitter: Emitter, operation: Operation, left: Val, right: Val) -> None:
    result = operation.results[0]
    if len(left.terms) > 1 and len(right.terms) == 1:
        left, right = right, left
    factor = left.terms[0]
    if len(left.terms) > 1 or len(right.terms) == 1 or not factor.scalar or result.type.element != "i64":
        _ring_single(emitter, operation, "mul")
        return
    products = []
    for term in right.terms:
        pair = [emitter.array(term) if factor.literal is not None else term, factor]
        product = emitter.assign("{0} * {1}", pair, term.shape, "i64", affine=term.affine)
        if result in emitter.tracked:
            track(emitter, product, "ranges.multiply({0}, {1})", pair)
        products.append(product)
    val = emitter.define(result, *products)
    if result in emitter.tracked:
        val.range = total_range(emitter, tuple(products))


HANDLERS: dict[str, Handler] = dict.fromkeys(["arith.addi", "arith.subi", "arith.muli"], _ring)
