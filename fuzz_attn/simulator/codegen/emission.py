"""What the emission of every kind of operation shares."""

from __future__ import annotations

import re

from fuzz_attn.simulator.codegen.emitter import Emitter
from fuzz_attn.simulator.codegen.terms import Term, Val, broadcast_shape
from fuzz_attn.simulator.frontend.ir import Operation, Value
from fuzz_attn.simulator.sanitizers.mask_coverage import COMPLETE, COMPLETE_SINGLE

_PREDICATE = re.compile(r"^\s*(\w+)")


def rounded(template: str, element: str) -> str:
    """Return the template with the rounding that arithmetic in a narrow format needs."""
    return f"round_{element}({template})" if element in ("bf16", "f16") else template


def elementwise(emitter: Emitter, operation: Operation, template: str, *, arrays: bool = False) -> Term:
    """Emit a template over all operands of the operation, and defines its result."""
    terms = [emitter.operand(operation, index) for index in range(len(operation.operands))]
    if arrays or all(term.literal is not None for term in terms):
        terms = [emitter.array(term) for term in terms]
    result = operation.results[0]
    shape = broadcast_shape((term.shape for term in terms), len(result.type.shape))
    term = emitter.assign(template, terms, shape, result.type.element)
    emitter.define(result, term)
    return term


def track(emitter: Emitter, term: Term, template: str, operands: list[Term]) -> str:
    """Emit the companion range of a term from the ranges of its operands."""
    term.range = emitter.ranged(template, [operand.range or "ranges.EVERYTHING" for operand in operands], term.region)
    return term.range


def track_exactly(emitter: Emitter, operation: Operation, term: Term) -> None:
    """Emit a companion range found by looking at the elements; taints come from the first operand."""
    source = emitter.operand(operation, 0).range if operation.operands else None
    name = emitter.fresh("r")
    emitter.note(f"{name} = ranges.exact({{0}}{', ' + source if source else ''})", term)
    emitter.ranged_as(name, term.region, source is None or emitter.is_clean(source))
    term.range = name


def predicate_of(operation: Operation) -> str:
    """Return the predicate of a comparison."""
    match = _PREDICATE.match(operation.text)
    return match.group(1) if match else ""


def cover(emitter: Emitter, kind: str, *factors: Term) -> None:
    """Emit the record of a mask for the coverage of kernel semantics, while it is not yet complete.

    The mask is the conjunction of factors that do not share an axis. The record stands where the mask is used: a mask
    that is known before a loop says nothing if the loop never runs. What is decided when the kernel is compiled is no
    mask.
    """
    if all(factor.literal is not None for factor in factors):
        return
    index, several = len(emitter.coverage_sites), not all(factor.scalar for factor in factors)
    emitter.coverage_sites.append((kind, emitter.location, several))
    complete = COMPLETE if several else COMPLETE_SINGLE
    slot = f"slots[{index}]"
    names = ", ".join(emitter.name(emitter.array(factor)) for factor in factors)
    emitter.line(f"if seen[{slot}] & {complete} != {complete}: cover(seen, {slot}, {names})")


def factors_of(emitter: Emitter, mask: Val) -> list[Term]:
    """Return a conjunction as factors that do not share an axis: the whole of it is larger than they are together."""
    groups: list[list[Term]] = []
    for term in mask.terms:
        sharing = [group for group in groups if any(_share_an_axis(term, other) for other in group)]
        groups = [group for group in groups if group not in sharing]
        groups.append([*(other for group in sharing for other in group), term])
    if len(groups) == 1:
        return [emitter.single(mask)]
    return [emitter.single(Val(mask.type, tuple(group))) for group in groups]


def _share_an_axis(left: Term, right: Term) -> bool:
    return any(one != 1 != other for one, other in zip(left.shape, right.shape, strict=True))


_AXIS = re.compile(r"axis = (\d+)")


def axis_of(operation: Operation) -> int:
    """Return the axis that an operation names."""
    match = _AXIS.search(operation.text)
    return int(match.group(1)) if match else 0


def full(emitter: Emitter, operation: Operation, index: int) -> Term:
    """Return an operand with nothing lazily broadcast."""
    return emitter.ranked(emitter.spread(emitter.operand(operation, index), operation.operands[index].type.shape))


def track_result(emitter: Emitter, operation: Operation, result: Value) -> None:
    """Emit the exact companion range of a result, if it is tracked."""
    if result in emitter.tracked:
        track_exactly(emitter, Operation("", []), emitter.val(result).term)
