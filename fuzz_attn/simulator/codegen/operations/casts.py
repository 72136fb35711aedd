"""Emission of constants and of conversions between types."""

from __future__ import annotations

import re
import struct

from fuzz_attn.simulator.codegen.emission import elementwise, track_exactly
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.codegen.terms import Literal
from fuzz_attn.simulator.frontend.ir import Operation, Type

_CONSTANT = re.compile(r"^\s*(?:dense<(.*?)>|(\S+))(?: : |$)")


def _constant(emitter: Emitter, operation: Operation) -> None:
    match = _CONSTANT.match(operation.text)
    text = (match.group(1) or match.group(2)) if match else ""
    type_ = operation.results[0].type
    literal = parse_literal(text, type_.element)
    if literal is None:
        raise emitter.unsupported(f"arith.constant {text}")
    emitter.define(operation.results[0], emitter.literal(literal, type_.shape, type_.element))


_FLOAT_BITS = {"f64": ("<Q", "<d"), "f32": ("<I", "<f"), "f16": ("<H", "<e")}


def parse_literal(text: str, element: str) -> Literal | None:
    """Return the number written `text` in the IR, or None if it is not one number."""
    if text in ("true", "false"):
        return text == "true"
    try:
        if element.startswith("i"):
            return int(text)
        return _parse_bits(int(text, 16), element) if text.startswith("0x") else float(text)
    except ValueError:
        return None


def _parse_bits(bits: int, element: str) -> float:
    if element in _FLOAT_BITS:
        packed, unpacked = _FLOAT_BITS[element]
        return float(struct.unpack(unpacked, struct.pack(packed, bits))[0])
    if element == "bf16":
        return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
    raise ValueError(f"{bits=} of {element=}")


def _convert(emitter: Emitter, operation: Operation) -> None:
    source, target = operation.operands[0].type, operation.results[0].type
    if operation.name in ("arith.extsi", "arith.extui", "arith.trunci"):
        _resize(emitter, operation, source, target)
        return
    term = elementwise(emitter, operation, _conversion(operation, source, target), arrays=True)
    nearest = operation.name in ("arith.truncf", "tt.fp_to_fp") and "rounding = rtz" not in operation.text
    if nearest and source.element == "f32" and target.element in ("bf16", "f16"):
        term.unrounded = emitter.array(emitter.operand(operation, 0))


def _conversion(operation: Operation, source: Type, target: Type) -> str:
    name = operation.name
    if name in ("arith.fptosi", "arith.fptoui"):
        return f"float_to_integer({{0}}, '{target.element}', {name == 'arith.fptosi'})"
    if name == "arith.sitofp" and source.element == "i1":
        return f"round_to(-({{0}}.astype(np.float32)), '{target.element}')"
    if name in ("arith.sitofp", "arith.uitofp"):
        argument = "{0}" if name == "arith.sitofp" or source.element == "i1" else "unsigned({0})"
        wide = "np.float64" if target.element == "f64" else "np.float32"
        return f"round_to({argument}.astype({wide}), '{target.element}')"
    if name == "tt.fp_to_fp" and "rounding = rtz" in operation.text:
        return f"truncate_to({{0}}, '{target.element}')"
    if _widens(source.element, target.element):
        return "{0}.astype(np.float64)" if target.element == "f64" and source.element != "f64" else "{0}"
    return f"round_to({{0}}, '{target.element}')"


_PRECISION = {"f8E4M3FN": 1, "f8E5M2": 1, "bf16": 2, "f16": 2, "f32": 3, "f64": 4}


def _widens(source: str, target: str) -> bool:
    return source == target or _PRECISION[source] < _PRECISION[target]


def _resize(emitter: Emitter, operation: Operation, source: Type, target: Type) -> None:
    element = target.element
    if operation.name == "arith.trunci":
        template = "({0} & 1).astype(np.bool_)" if element == "i1" else f"{{0}}.astype(DTYPES['{element}'])"
    elif operation.name == "arith.extui":
        inner = "{0}" if source.element == "i1" else "unsigned({0})"
        template = f"{inner}.astype(DTYPES['{element}'])"
    else:
        template = f"{'-' if source.element == 'i1' else ''}({{0}}.astype(DTYPES['{element}']))"
    operand = emitter.operand(operation, 0)
    if operand.literal is not None and operation.name == "arith.extsi" and source.element != "i1":
        emitter.define(operation.results[0], emitter.literal(operand.literal, target.shape, element))
        return
    term = elementwise(emitter, operation, template, arrays=True)
    term.affine, term.start = operand.affine, operand.start if operation.name == "arith.extsi" else None
    if operation.results[0] in emitter.tracked:
        if operation.name == "arith.extsi" and source.element == "i32":
            term.range = operand.range
        else:
            track_exactly(emitter, operation, term)


def _bitcast(emitter: Emitter, operation: Operation) -> None:
    source, target = operation.operands[0].type, operation.results[0].type
    if source.pointer:
        val = emitter.val(operation.operands[0])
        emitter.define(operation.results[0], *val.terms, base=val.base, groups=val.groups)
        return
    term = elementwise(emitter, operation, f"bitcast({{0}}, '{source.element}', '{target.element}')", arrays=True)
    if operation.results[0] in emitter.tracked:
        track_exactly(emitter, operation, term)


_CONVERSIONS = ["extsi", "extui", "trunci", "extf", "truncf", "sitofp", "uitofp", "fptosi", "fptoui"]

HANDLERS: dict[str, Handler] = {
    **{f"arith.{name}": _convert for name in _CONVERSIONS},
    "tt.fp_to_fp": _convert,
    "arith.constant": _constant,
    "arith.bitcast": _bitcast,
    "tt.bitcast": _bitcast,
}
