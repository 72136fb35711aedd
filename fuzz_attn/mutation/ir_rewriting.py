"""IR rewriting: a copy of a kernel's tree with one operation replaced, and with others that count as it runs.

The tree itself does not change. A mutant whose operation ran and never gave another value cannot be killed by any case
like these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fuzz_attn.simulator.codegen.emitter import Emitter
from fuzz_attn.simulator.codegen.expressions import call
from fuzz_attn.simulator.codegen.generator import Extension
from fuzz_attn.simulator.codegen.statements import Do
from fuzz_attn.ttir.ir import Block, Function, Operation, Type, Value

PROBE: Final = "audit.probe"
"""An operation that compares a value before and after a change: see :mod:`fuzz_attn.mutation.ir_rewriting`."""

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


_BUILTIN = "audit_probe"


@dataclass
class Tally:
    """How often the changed operation ran, and how often it gave another value than before."""

    reached: int = 0
    differed: int = 0

    def count(self, *values: npt.NDArray[Any]) -> None:
        """Count one run with the values before and after the change; without values, every run differs."""
        self.reached += 1
        self.differed += len(values) != 2 or _differ(*values)


def _differ(before: npt.NDArray[Any], after: npt.NDArray[Any]) -> bool:
    before, after = np.broadcast_arrays(before, after)
    same = (before == after) | ((before != before) & (after != after))  # noqa: PLR0124 - NaN is what differs from itself
    return not same.all()


@dataclass
class Probes:
    """The probes of one simulator, and what they counted."""

    tally: Tally = field(default_factory=Tally)

    @property
    def extension(self) -> Extension:
        """What a simulator needs to run probed kernels."""
        return Extension({PROBE: _emit}, {_BUILTIN: self._count})

    def reset(self) -> None:
        """Count from 0."""
        self.tally = Tally()

    def _count(self, *values: npt.NDArray[Any]) -> None:
        self.tally.count(*values)


def _emit(emitter: Emitter, operation: Operation) -> None:
    terms = [emitter.array(emitter.single(emitter.val(value))) for value in operation.operands]
    emitter.add(Do(call(_BUILTIN, *map(emitter.read, terms))))
