"""Assertions: hints (`tl.multiple_of`, `tl.max_contiguous`, `tl.max_constancy`), `tl.assume` and device assertions.

Triton keeps a hint as an attribute of the operation that makes the value, and a finding names the line of that one.
A hint on a parameter or on the counter of a `for` loop is lost before the IR, also on a GPU.

Operations that change no value are here too: barriers, prints, and waits for other launches.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from fuzz_attn.simulator.codegen.access_plans import offset_of
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler, range_of
from fuzz_attn.simulator.codegen.source_tree import RUN, Attribute, Do, Expression, call, constant, method
from fuzz_attn.simulator.codegen.terms import range_call
from fuzz_attn.simulator.runtime import ranges
from fuzz_attn.simulator.runtime.float_formats import STORAGE
from fuzz_attn.ttir.ir import Hints, Operation, Value

_MARK: Final = " = dense<"
"""Stands in the text of an operation with hints; others that have it have no hints."""


def with_hints(handler: Handler) -> Handler:
    """Return the handler of an operation, which also emits the checks of the hints on its result."""

    def emit(emitter: Emitter, operation: Operation) -> None:
        handler(emitter, operation)
        if _MARK in operation.text and len(operation.results) == 1 and not operation.regions:
            result = operation.results[0]
            hints = operation.attributes.hints(len(result.type.shape))
            if hints is not None:
                check_hints(emitter, result, hints)

    return emit


def check_hints_on_arguments(emitter: Emitter, operation: Operation) -> None:
    """Emit the checks of hints on the values that a loop carries, in the region of its body."""
    if _MARK not in operation.text:
        return
    for number, argument in enumerate(operation.regions[0][0].arguments):
        hints = operation.attributes.hints(len(argument.type.shape), number)
        if hints is not None:
            check_hints(emitter, argument, hints)


def check_hints(emitter: Emitter, value: Value, hints: Hints) -> None:
    """Emit the checks of hints on a value that reaches an address, or is a mask."""
    if value.type.element == "i1" and not value.type.pointer:
        _check_mask(emitter, value, hints.constancy)
    elif value.type.pointer:
        _check_pointer(emitter, value, hints)
    elif value in emitter.tracked:
        _check_integer(emitter, value, hints)


def _check_mask(emitter: Emitter, value: Value, sizes: tuple[int, ...]) -> None:
    if sizes:
        term = emitter.ranked(emitter.spread(emitter.single(emitter.val(value)), value.type.shape))
        given = (emitter.site(), emitter.lanes, emitter.read(term), constant(sizes))
        emitter.add(Do(method(RUN, "check_constancy", *given)))


def _numbers(hints: Hints) -> tuple[Expression, ...]:
    return constant(hints.divisibility), constant(hints.contiguity), constant(hints.constancy)


def _check_integer(emitter: Emitter, value: Value, hints: Hints) -> None:
    val = emitter.val(value)
    # A number that is the same everywhere has no elements of its own that could take taints along.
    parts = [part for part in val.terms if part.literal is None and not (part.bare and value.type.shape)]
    if not parts:
        return
    single = emitter.single(val)
    term = emitter.ranked(emitter.spread(single, value.type.shape))
    lanes = term.region.scope.lanes
    given = (range_of(single).expression, emitter.read(term, term.region), lanes, emitter.site(), *_numbers(hints))
    found = emitter.range_variable(call("hinted", *given), term.region, clean=False)
    # The smallest term of a sum takes the taints along, since the others may be whole columns of an access.
    tainted = min(parts, key=lambda part: math.prod(part.shape))
    own = range_call(ranges.with_taints, range_of(tainted).expression, found.expression)
    replaced = replace(
        tainted,
        expression=emitter.read(tainted, term.region),
        region=term.region,
        range=emitter.range_variable(own, term.region, clean=False),
    )
    terms = [replaced if part is tainted else part for part in val.terms]
    emitter.define(value, *terms).range = found


def _check_pointer(emitter: Emitter, value: Value, hints: Hints) -> None:
    val = emitter.val(value)
    if val.base is None:
        return
    offset = offset_of(emitter, val)
    offset = emitter.ranked(emitter.spread(offset, value.type.shape))
    size = constant(STORAGE[value.type.element].itemsize)
    given = (
        emitter.read(offset),
        emitter.lanes,
        emitter.site(),
        *_numbers(hints),
        Attribute(val.base, "address"),
        size,
    )
    val.hints = (emitter.range_variable(call("hinted_pointer", *given), emitter.region, clean=False),)


def _assume(emitter: Emitter, operation: Operation) -> None:
    condition = emitter.array(emitter.operand(operation, 0))
    emitter.add(Do(method(RUN, "assumed", emitter.site(), emitter.lanes, emitter.read(condition))))


def _assert(emitter: Emitter, operation: Operation) -> None:
    condition = emitter.array(emitter.operand(operation, 0))
    message = constant(operation.attributes.string)
    emitter.add(Do(method(RUN, "device_assert", emitter.site(), emitter.lanes, emitter.read(condition), message)))


def _nothing(emitter: Emitter, operation: Operation) -> None:
    """Emit nothing."""


HANDLERS: dict[str, Handler] = {
    "llvm.intr.assume": _assume,
    "tt.assert": _assert,
    **dict.fromkeys(["tt.print", "ttg.barrier", "gpu.barrier", "tt.return"], _nothing),
    **dict.fromkeys(["tt.grid_dependency_wait", "tt.grid_dependency_launch_dependents"], _nothing),
}
