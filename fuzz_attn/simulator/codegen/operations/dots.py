"""Dot products, and operations that place elements by their values: histograms and gathers."""

from __future__ import annotations

from fuzz_attn.simulator.codegen.elementwise import full, rounded
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.codegen.tracking import track_result
from fuzz_attn.simulator.codegen.tree.expressions import (
    NONE,
    NUMPY,
    Attribute,
    Expression,
    call,
    constant,
    function,
    method,
)
from fuzz_attn.ttir.ir import Operation
from fuzz_attn.ttir.kernel_arithmetic import input_precision


def _dot(emitter: Emitter, operation: Operation) -> None:
    operands = [full(emitter, operation, 0), full(emitter, operation, 1)]
    addend, result = emitter.operand(operation, 2), operation.results[0]
    if addend.literal != 0:
        operands.append(emitter.ranked(addend))
    integers = not operation.operands[0].type.is_float

    cut = input_precision(operation) == "tf32"

    def build(left: Expression, right: Expression, last: Expression = NONE) -> Expression:
        sides = (_as_int32(left), _as_int32(right)) if integers else (left, right)
        return call("dot", *(call("cut_to_tf32", side) for side in sides) if cut else sides, last)

    element = result.type.element
    emitter.define(result, emitter.assign(rounded(build, element), operands, result.type.shape, element))


def _as_int32(value: Expression) -> Expression:
    return method(value, "astype", Attribute(NUMPY, "int32"))


def _histogram(emitter: Emitter, operation: Operation) -> None:
    bins = operation.results[0].type.shape[0]
    operands = [full(emitter, operation, index) for index in range(len(operation.operands))]

    def build(values: Expression, mask: Expression = NONE) -> Expression:
        return call("histogram", values, constant(bins), mask)

    emitter.define(operation.results[0], emitter.assign(build, operands, (bins,), "i32"))


def _gather(emitter: Emitter, operation: Operation) -> None:
    operands = [full(emitter, operation, index) for index in (0, 1)]
    result = operation.results[0]
    build = function("gather", constant(operation.attributes.integer("axis") + 1))
    emitter.define(result, emitter.assign(build, operands, result.type.shape, result.type.element))
    track_result(emitter, result)


HANDLERS: dict[str, Handler] = {"tt.dot": _dot, "tt.histogram": _histogram, "tt.gather": _gather}
