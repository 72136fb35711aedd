"""Value ranges of the integers that may reach an address, by which 32-bit overflow is found."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from fuzz_attn.simulator.codegen.emitter import Emitter
from fuzz_attn.simulator.codegen.terms import Term
from fuzz_attn.simulator.codegen.tree.expressions import Expression
from fuzz_attn.simulator.codegen.tree.value_ranges import EVERYTHING, RangeFunction, ValueRange, range_call
from fuzz_attn.simulator.frontend.ir import Block, Function, Operation, Value
from fuzz_attn.simulator.runtime import ranges


def range_of(term: Term) -> ValueRange:
    """Return the range of a term; that of an untracked one is unknown."""
    return term.range or EVERYTHING


def track(emitter: Emitter, term: Term, function: RangeFunction, operands: Sequence[ValueRange]) -> ValueRange:
    """Emit the range of a term from the ranges of its operands."""
    found = term.range = emitter.ranged(function, operands, term.region)
    return found


def track_exactly(emitter: Emitter, term: Term, source: ValueRange | None = None) -> None:
    """Emit a range found by looking at the elements, with the taints of `source`."""
    more = [source.expression] if source else []
    exact = range_call(ranges.exact, emitter.read(term, term.region), *more)
    term.range = emitter.range_variable(exact, term.region, clean=source is None or source.clean)


def track_result(emitter: Emitter, result: Value) -> None:
    """Emit the exact range of a result, without taints, if it is tracked."""
    if result in emitter.tracked:
        track_exactly(emitter, emitter.val(result).term)


def track_wrapped(emitter: Emitter, term: Term, kind: Expression, operands: Sequence[Term], guess: ValueRange) -> None:
    """Emit the exact range of a 32-bit result where `guess` leaves 32 bits; elements that wrapped are tainted."""
    left, right = (emitter.read(operand, term.region) for operand in operands)
    lanes, site = term.region.scope.lanes, emitter.site()
    exact = range_call(ranges.wrapped, kind, left, right, term.expression, lanes, site, guess.expression)
    term.range = emitter.within(term, guess, exact)


_INTEGER_OPERATIONS = """
    addi subi muli divsi remsi divui remui extsi extui trunci maxsi minsi maxui minui andi ori xori shli shrsi shrui
    select
"""
_TILE_OPERATIONS = "splat unsplat broadcast expand_dims reshape trans addptr"
_THROUGH = frozenset(
    [f"arith.{name}" for name in _INTEGER_OPERATIONS.split()] + [f"tt.{name}" for name in _TILE_OPERATIONS.split()]
)
"""Operations whose result is an address, or part of one, when their operands are."""


def walk(blocks: list[Block]) -> Iterator[Operation]:
    """Yield all operations of blocks, nested ones included."""
    for block in blocks:
        for operation in block.operations:
            yield operation
            for region in operation.regions:
                yield from walk(region)


def tracked_values(function: Function) -> set[Value]:
    """Return the integers that may reach an address."""
    sources = sources_of(function, _THROUGH)
    tracked: set[Value] = set()
    pending = [
        operand
        for operation in walk(function.blocks)
        if operation.name == "tt.addptr"
        for operand in operation.operands
    ]
    while pending:
        value = pending.pop()
        if value in tracked or value.type.is_float:
            continue
        if not value.type.pointer and value.type.element == "i1":
            continue
        tracked.add(value)
        pending += sources.get(value, [])
    return tracked


def sources_of(function: Function, through: Collection[str]) -> dict[Value, list[Value]]:
    """Return for each value the values that its elements come from, through some operations and all control flow."""
    sources: dict[Value, list[Value]] = {}
    arguments = {block.label: block.arguments for block in function.blocks}
    for operation in walk(function.blocks):
        for label, passed in operation.successors:
            for argument, value in zip(arguments[label], passed, strict=True):
                sources.setdefault(argument, []).append(value)
        if operation.name in through:
            operands = operation.operands[1:] if operation.name == "arith.select" else operation.operands
            sources.setdefault(operation.results[0], []).extend(operands)
        elif operation.name in _CONTROL_FLOW:
            _CONTROL_FLOW[operation.name](sources, operation)
    return sources


def _sources_of_for(sources: dict[Value, list[Value]], operation: Operation) -> None:
    body = operation.regions[0][0]
    _link(sources, body.arguments[1:], operation.results, operation.operands[3:], body)
    sources[body.arguments[0]] = operation.operands[:3]


def _sources_of_if(sources: dict[Value, list[Value]], operation: Operation) -> None:
    for region in operation.regions:
        yielded = region[0].operations[-1].operands if region[0].operations else []
        for result, value in zip(operation.results, yielded, strict=False):
            sources.setdefault(result, []).append(value)


def _sources_of_while(sources: dict[Value, list[Value]], operation: Operation) -> None:
    before, after = operation.regions[0][0], operation.regions[1][0]
    _link(sources, before.arguments, [], operation.operands, after)
    forwarded = before.operations[-1].operands[1:]
    for result, argument, value in zip(operation.results, after.arguments, forwarded, strict=True):
        sources.setdefault(result, []).append(value)
        sources.setdefault(argument, []).append(value)


_CONTROL_FLOW = {"scf.for": _sources_of_for, "scf.if": _sources_of_if, "scf.while": _sources_of_while}


def _link(
    sources: dict[Value, list[Value]], arguments: list[Value], results: list[Value], inits: list[Value], body: Block
) -> None:
    yielded = body.operations[-1].operands
    for index, argument in enumerate(arguments):
        sources.setdefault(argument, []).extend([inits[index], yielded[index]])
    for index, result in enumerate(results):
        sources.setdefault(result, []).extend([inits[index], yielded[index]])
