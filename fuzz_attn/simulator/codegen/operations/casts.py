"""Constants, and conversions between types."""

from __future__ import annotations

from fuzz_attn.simulator.codegen.emitter import Emitter, Handler, elementwise, track_exactly
from fuzz_attn.simulator.codegen.expressions import (
    NUMPY,
    Attribute,
    Binary,
    Builder,
    Expression,
    Unary,
    call,
    cast,
    constant,
    function,
    method,
)
from fuzz_attn.simulator.runtime.float_formats import STORAGE
from fuzz_attn.ttir.ir import Operation, Type, parse_literal

_RESIZES = frozenset({"arith.extsi", "arith.extui", "arith.trunci"})
_CONVERSIONS = frozenset(
    {"arith.extf", "arith.truncf", "arith.sitofp", "arith.uitofp", "arith.fptosi", "arith.fptoui", "tt.fp_to_fp"}
)
_PRECISION = {"f8E4M3FN": 1, "f8E5M2": 1, "bf16": 2, "f16": 2, "f32": 3, "f64": 4}


def _constant(emitter: Emitter, operation: Operation) -> None:
    text = operation.attributes.constant
    type_ = operation.results[0].type
    literal = parse_literal(text, type_.element)
    if literal is None:
        raise emitter.unsupported(f"arith.constant {text}")
    emitter.define(operation.results[0], emitter.literal(literal, type_.shape, type_.element))


def _convert(emitter: Emitter, operation: Operation) -> None:
    source, target = operation.operands[0].type, operation.results[0].type
    term = elementwise(emitter, operation, _conversion(operation, source, target), arrays=True)
    nearest = operation.name in ("arith.truncf", "tt.fp_to_fp") and not _truncates(operation)
    if nearest and source.element == "f32" and target.element in ("bf16", "f16"):
        term.unrounded = emitter.array(emitter.operand(operation, 0))


def _truncates(operation: Operation) -> bool:
    return operation.attributes.named.get("rounding") == "rtz"


def _conversion(operation: Operation, source: Type, target: Type) -> Builder:
    name, element = operation.name, constant(target.element)
    if name in ("arith.fptosi", "arith.fptoui"):
        return function("float_to_integer", element, constant(name == "arith.fptosi"))
    if name in ("arith.sitofp", "arith.uitofp"):
        return _from_integer(name == "arith.sitofp", source, target)
    if name == "tt.fp_to_fp" and _truncates(operation):
        return function("truncate_to", element)
    if not _widens(source.element, target.element):
        return function("round_to", element)
    if target.element == "f64" and source.element != "f64":
        return lambda operand: _as_type(operand, "float64")
    return lambda operand: operand


def _from_integer(signed: bool, source: Type, target: Type) -> Builder:
    wide = "float64" if target.element == "f64" else "float32"

    def build(operand: Expression) -> Expression:
        if signed and source.element == "i1":  # a signed bit that is set is -1
            return call("round_to", Unary("-", _as_type(operand, "float32")), constant(target.element))
        bits = operand if signed or source.element == "i1" else call("unsigned", operand)
        return call("round_to", _as_type(bits, wide), constant(target.element))

    return build


def _as_type(value: Expression, name: str) -> Expression:
    return method(value, "astype", Attribute(NUMPY, name))


def _widens(source: str, target: str) -> bool:
    return source == target or _PRECISION[source] < _PRECISION[target]


def _resize(emitter: Emitter, operation: Operation) -> None:
    source, target = operation.operands[0].type, operation.results[0].type
    extends = operation.name == "arith.extsi"
    operand = emitter.operand(operation, 0)
    if operand.literal is not None and extends and source.element != "i1":
        emitter.define(operation.results[0], emitter.literal(operand.literal, target.shape, target.element))
        return
    term = elementwise(emitter, operation, _resizing(operation.name, source, target), arrays=True)
    term.affine, term.start = operand.affine, operand.start if extends else None
    if operation.results[0] in emitter.tracked:
        if extends and source.element == "i32":
            term.range = operand.range
        else:
            track_exactly(emitter, term, emitter.operand(operation, 0).range)


def _resizing(name: str, source: Type, target: Type) -> Builder:
    element = target.element
    if name == "arith.trunci" and element == "i1":
        return lambda operand: _as_type(Binary("&", operand, constant(1)), "bool_")
    if name == "arith.extui" and source.element != "i1":
        return lambda operand: cast(call("unsigned", operand), element)
    if name == "arith.extsi" and source.element == "i1":
        return lambda operand: Unary("-", cast(operand, element))
    return lambda operand: cast(operand, element)


def _bitcast(emitter: Emitter, operation: Operation) -> None:
    source, target = operation.operands[0].type, operation.results[0].type
    if source.pointer:
        if STORAGE[source.element].itemsize != STORAGE[target.element].itemsize:
            raise emitter.unsupported(f"{operation.name} of a pointer to {source.element} to one to {target.element}")
        val = emitter.val(operation.operands[0])
        emitter.define(operation.results[0], *val.terms, base=val.base, groups=val.groups)
        return
    build = function("bitcast", constant(source.element), constant(target.element))
    term = elementwise(emitter, operation, build, arrays=True)
    if operation.results[0] in emitter.tracked:
        track_exactly(emitter, term, emitter.operand(operation, 0).range)


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_RESIZES, _resize),
    **dict.fromkeys(_CONVERSIONS, _convert),
    "arith.constant": _constant,
    "arith.bitcast": _bitcast,
    "tt.bitcast": _bitcast,
}
