"""Value graph: where each value of a kernel comes from and what uses it, through the operations that a caller names."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from fuzz_attn.ttir.ir import Block, Function, Operation, Value, parse_literal

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
    """Yield all operations of blocks in the order of the text, nested ones after the operation that contains them."""
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


FLOW: Final = frozenset({"scf.yield", "scf.condition", "scf.for", "scf.while", "scf.if", "cf.br", "cf.cond_br"})
"""Operations that pass values on as they are."""


class ValueGraph:
    """The values of one kernel.

    ``operations`` are all of it. ``flows_to`` has the values that a value becomes by control flow only, ``users`` the
    operations that take it.
    """

    def __init__(self, function: Function) -> None:
        self.operations = list(walk(function.blocks))
        self.users: dict[Value, list[Operation]] = {}
        self.flows_to: dict[Value, list[Value]] = {}
        self._flow = sources_of(function, ())
        self._made = {result: each for each in self.operations for result in each.results}
        for each in self.operations:
            for operand in each.operands:
                self.users.setdefault(operand, []).append(each)
        for value, sources in self._flow.items():
            for source in sources:
                self.flows_to.setdefault(source, []).append(value)

    def maker(self, value: Value) -> Operation | None:
        """Return the operation that makes a value; None for parameters and what control flow passes."""
        return None if value in self._flow else self._made.get(value)

    def flows_from(self, value: Value) -> list[Value]:
        """Return the values that a value is by control flow only."""
        return self._flow.get(value, [])

    def traced(self, value: Value, through: frozenset[str]) -> tuple[list[Operation], list[Operation | None]]:
        """Return the operations through which a value comes, and those at which the search ends.

        A parameter of the kernel is None. Control flow is passed. Of a selection, the condition does not count.
        """
        passed: list[Operation] = []
        ends: list[Operation | None] = []
        seen, pending = {value}, [value]
        while pending:
            current = pending.pop()
            sources = self._flow.get(current)
            if sources is None:
                made = self._made.get(current)
                if made is None or made.name not in through:
                    ends.append(made)
                    continue
                passed.append(made)
                sources = chosen(made)
            pending += [source for source in dict.fromkeys(sources) if source not in seen]
            seen.update(sources)
        return passed, ends

    def constant(self, value: Value) -> float | None:
        """Return the number that every element of a value is, None where that is not a constant."""
        made = self.maker(value)
        while made is not None and made.name in ("tt.splat", "tt.broadcast", "tt.expand_dims"):
            made = self.maker(made.operands[0])
        if made is None or made.name != "arith.constant":
            return None
        number = parse_literal(made.attributes.constant, made.results[0].type.element)
        return None if number is None else float(number)

    def constants_of(self, operation: Operation) -> Iterator[float]:
        """Yield those of an operation's operands that are constants."""
        numbers = (self.constant(operand) for operand in operation.operands)
        yield from (number for number in numbers if number is not None)


def chosen(operation: Operation) -> list[Value]:
    """Return the operands from which the elements of a result come."""
    return operation.operands[1:] if operation.name == "arith.select" else operation.operands


def reduces(operation: Operation | None, names: frozenset[str]) -> bool:
    """Return whether an operation reduces one tile by one of these operations."""
    if operation is None or operation.name != "tt.reduce" or len(operation.operands) != 1:
        return False
    inner = [each.name for each in walk(operation.regions[0]) if each.name != "tt.reduce.return"]
    return len(inner) == 1 and inner[0] in names


def reduces_rows(operation: Operation | None, names: frozenset[str]) -> bool:
    """Return whether each row of a tile is reduced to a number of its own."""
    return operation is not None and reduces(operation, names) and bool(operation.results[0].type.shape)
