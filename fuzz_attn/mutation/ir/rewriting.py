"""Rewriting: a copy of a kernel's tree with one operation replaced. The tree itself does not change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from fuzz_attn.ttir.ir import Block, Function, Operation, Type, Value

PROBE: Final = "audit.probe"
"""An operation that compares a value before and after a change: see :mod:`fuzz_attn.mutation.ir.probes`."""

_NUMBERS = count()


@dataclass(frozen=True, slots=True)
class Replacement:
    """The replacement of an operation.

    ``operations`` replace it and define new values; ``instead`` maps each result of the old operation to the value that
    the rest of the kernel uses. ``compared`` are pairs of a value before and after, to see whether the change makes a
    difference; empty where every execution makes one.
    """

    operations: tuple[Operation, ...] = ()
    instead: dict[Value, Value] = field(default_factory=dict)
    compared: tuple[tuple[Value, Value], ...] = ()


def walk(blocks: list[Block]) -> Iterator[Operation]:
    """Yield all operations of blocks in the order of the text, nested ones after the operation that contains them."""
    for block in blocks:
        for operation in block.operations:
            yield operation
            for region in operation.regions:
                yield from walk(region)


def new_value(type_: Type) -> Value:
    """Return a value of a unique name."""
    return Value(f"%audit{next(_NUMBERS)}", type_)


def rewritten(function: Function, target: Operation, replacement: Replacement, *, probed: bool = False) -> Function:
    """Return the function with an operation replaced; ``probed`` adds probes that count whether values differ."""
    copier = _Copier(target, replacement, probed)
    return Function(function.name, function.parameters, copier.blocks(function.blocks))


class _Copier:
    def __init__(self, target: Operation, replacement: Replacement, probed: bool) -> None:
        self._target = target
        self._replacement = replacement
        self._probed = probed
        self._instead: dict[Value, Value] = {}

    def blocks(self, blocks: list[Block]) -> list[Block]:
        return [Block(block.label, block.arguments, list(self._operations(block))) for block in blocks]

    def _operations(self, block: Block) -> Iterator[Operation]:
        for operation in block.operations:
            if operation is self._target:
                yield from self._replaced(operation)
            else:
                yield self._copied(operation)

    def _replaced(self, operation: Operation) -> Iterator[Operation]:
        """Yield the replacement, with probes before an operation without results, because that may end its block."""
        new = [self._copied(other) for other in self._replacement.operations]
        last = [new.pop()] if new and not new[-1].results else []
        if self._probed and any(before in operation.results for before, _ in self._replacement.compared):
            yield self._copied(operation)
        yield from new
        if self._probed:
            for pair in self._replacement.compared or ((),):
                yield self._copied(Operation(PROBE, list(pair), location=operation.location))
        yield from last
        self._instead.update(self._replacement.instead)

    def _copied(self, operation: Operation) -> Operation:
        return Operation(
            operation.name,
            [self._instead.get(value, value) for value in operation.operands],
            list(operation.results),
            operation.text,
            [self.blocks(region) for region in operation.regions],
            [(label, [self._instead.get(value, value) for value in passed]) for label, passed in operation.successors],
            operation.location,
        )
