"""Emission of integer operations other than sums and products."""

from __future__ import annotations

from fuzz_attn.simulator.codegen.emission import elementwise, predicate_of, track, track_exactly
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.frontend.ir import Operation

_INTEGER = {
    "arith.divsi": "divide({0}, {1})",
    "arith.remsi": "np.fmod({0}, {1})",
    "arith.divui": "unsigned_divide({0}, {1})",
    "arith.remui": "unsigned_remainder({0}, {1})",
    "arith.maxsi": "np.maximum({0}, {1})",
    "arith.minsi": "np.minimum({0}, {1})",
    "arith.maxui": "unsigned_pick(np.maximum, {0}, {1})",
    "arith.minui": "unsigned_pick(np.minimum, {0}, {1})",
    "arith.ori": "{0} | {1}",
    "arith.xori": "{0} ^ {1}",
    "arith.shrsi": "{0} >> {1}",
    "arith.shrui": "shift_right_logical({0}, {1})",
    "tt.mulhiui": "multiply_high({0}, {1})",
}


# Operations that look at an operand's bits, so that a bare number will not do.
_NEEDS_ARRAYS = {"arith.divui", "arith.remui", "arith.maxui", "arith.minui", "tt.mulhiui"}


_INTEGER_RANGES = {
    "arith.divsi": "ranges.divide",
    "arith.remsi": "ranges.remainder",
    "arith.maxsi": "ranges.maximum",
    "arith.minsi": "ranges.minimum",
}


_COMPARE_SIGNED = {"eq": "==", "ne": "!=", "slt": "<", "sle": "<=", "sgt": ">", "sge": ">="}


_COMPARE_UNSIGNED = {"ult": "<", "ule": "<=", "ugt": ">", "uge": ">="}


def _divide(emitter: Emitter, operation: Operation) -> None:
    """Emit division by a power of two as a shift, where the dividend's range has no negative numbers.

    Its remainder is a mask then.
    """
    dividend, divisor = (emitter.operand(operation, index) for index in (0, 1))
    number = divisor.literal
    if (
        number is None
        or dividend.literal is not None
        or number < 1
        or int(number) & (int(number) - 1)
        or dividend.range is None
    ):
        _integer(emitter, operation)
        return
    quotient = operation.name == "arith.divsi"
    fast = "{0} >> {1}" if quotient else "{0} & {1}"
    slow = _INTEGER[operation.name].replace("{1}", divisor.name)
    small = int(number).bit_length() - 1 if quotient else int(number) - 1
    operands = [dividend, emitter.literal(small, dividend.shape, dividend.element)]
    if not dividend.range.startswith("("):
        fast = f"{fast} if {dividend.range}[0] >= 0 else {slow}"
    elif dividend.range.startswith("(-"):
        fast = slow
    term = emitter.assign(fast, operands, dividend.shape, dividend.element)
    emitter.define(operation.results[0], term)
    if operation.results[0] in emitter.tracked:
        track(emitter, term, f"{_INTEGER_RANGES[operation.name]}({{0}}, {{1}})", [dividend, divisor])


def _integer(emitter: Emitter, operation: Operation) -> None:
    term = elementwise(emitter, operation, _INTEGER[operation.name], arrays=operation.name in _NEEDS_ARRAYS)
    if operation.results[0] in emitter.tracked:
        known = _INTEGER_RANGES.get(operation.name)
        if known is None:
            track_exactly(emitter, operation, term)
        else:
            track(emitter, term, f"{known}({{0}}, {{1}})", [emitter.operand(operation, i) for i in (0, 1)])


def _shift_left(emitter: Emitter, operation: Operation) -> None:
    term = elementwise(emitter, operation, "shift_left({0}, {1})")
    if operation.results[0] in emitter.tracked:
        operands = [emitter.operand(operation, index) for index in (0, 1)]
        if operands[1].literal is not None:
            factor = 1 << int(operands[1].literal)
            name = track(emitter, term, f"ranges.multiply({{0}}, ({factor}, {factor}, ()))", operands)
            left, right = (emitter.name(operand, term.region) for operand in operands)
            given = f"{left}, {right}, {term.name}, {term.region.scope.lanes}, {emitter.site()}, {name}"
            term.range = emitter.within(term, name, f"ranges.wrapped('shl', {given})")
        else:
            track_exactly(emitter, operation, term)


def _compare_integers(emitter: Emitter, operation: Operation) -> None:
    predicate = predicate_of(operation)
    boolean = operation.operands[0].type.element == "i1"
    if predicate in _COMPARE_SIGNED and not (boolean and predicate[0] == "s"):
        term = elementwise(emitter, operation, f"{{0}} {_COMPARE_SIGNED[predicate]} {{1}}")
        left, right = (emitter.operand(operation, index) for index in (0, 1))
        if predicate == "slt" and left.start is not None and right.literal is not None:
            size = max(left.shape)
            term.prefix = min(max(int(right.literal) - left.start, 0), size)
    elif predicate not in _COMPARE_UNSIGNED:
        raise emitter.unsupported(f"arith.cmpi {predicate} of i1")
    else:
        sign = _COMPARE_UNSIGNED[predicate]
        elementwise(emitter, operation, f"unsigned({{0}}) {sign} unsigned({{1}})", arrays=True)


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_INTEGER, _integer),
    "arith.divsi": _divide,
    "arith.remsi": _divide,
    "arith.shli": _shift_left,
    "arith.cmpi": _compare_integers,
}
