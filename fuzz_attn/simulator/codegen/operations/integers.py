"""Integer operations other than sums and products."""

from __future__ import annotations

from fuzz_attn.simulator.codegen.elementwise import elementwise
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.codegen.terms import Term, broadcast_shape
from fuzz_attn.simulator.codegen.tracking import range_of, track, track_exactly, track_wrapped
from fuzz_attn.simulator.codegen.tree.expressions import (
    NUMPY,
    RUN,
    Attribute,
    Binary,
    Builder,
    Conditional,
    Expression,
    Literal,
    call,
    constant,
    function,
    infix,
    numpy_function,
)
from fuzz_attn.simulator.codegen.tree.value_ranges import KnownRange, RangeFunction, low_of
from fuzz_attn.simulator.runtime import ranges
from fuzz_attn.ttir.ir import Operation


def _unsigned_pick(name: str) -> Builder:
    return lambda left, right: call("unsigned_pick", Attribute(NUMPY, name), left, right)


_BUILDERS: dict[str, Builder] = {
    "arith.divsi": function("divide"),
    "arith.remsi": numpy_function("fmod"),
    "arith.divui": function("unsigned_divide"),
    "arith.remui": function("unsigned_remainder"),
    "arith.maxsi": numpy_function("maximum"),
    "arith.minsi": numpy_function("minimum"),
    "arith.maxui": _unsigned_pick("maximum"),
    "arith.minui": _unsigned_pick("minimum"),
    "arith.ori": infix("|"),
    "arith.xori": infix("^"),
    "arith.shrsi": infix(">>"),
    "arith.shrui": function("shift_right_logical"),
    "tt.mulhiui": function("multiply_high"),
}

_NEED_ARRAYS = frozenset({"arith.divui", "arith.remui", "arith.maxui", "arith.minui", "tt.mulhiui"})
"""Operations that look at an operand's bits, which a number of Python's does not have."""

_TAKE_NUMBERS = frozenset({"arith.divsi"})
"""Operations whose function treats a number of Python's in a faster way."""

_DIVISIONS = frozenset({"arith.divsi", "arith.remsi", "arith.divui", "arith.remui"})
_SHIFTS = frozenset({"arith.shli", "arith.shrsi", "arith.shrui"})

_RANGES: dict[str, RangeFunction] = {
    "arith.divsi": ranges.divide,
    "arith.remsi": ranges.remainder,
    "arith.maxsi": ranges.maximum,
    "arith.minsi": ranges.minimum,
}

_SIGNED = {"eq": "==", "ne": "!=", "slt": "<", "sle": "<=", "sgt": ">", "sge": ">="}
_UNSIGNED = {"ult": "<", "ule": "<=", "ugt": ">", "uge": ">="}


def _is_power_of_two(number: Literal | None) -> bool:
    return number is not None and number >= 1 and not int(number) & (int(number) - 1)


def _divide(emitter: Emitter, operation: Operation) -> None:
    """Emit division by a power of two as a shift, and its remainder as a mask, where no dividend is negative."""
    dividend, divisor = (emitter.operand(operation, index) for index in (0, 1))
    found, number = dividend.range, divisor.literal
    if number is None or not _is_power_of_two(number) or dividend.literal is not None or found is None:
        _integer(emitter, operation)
        return
    quotient = operation.name == "arith.divsi"
    shifted = infix(">>" if quotient else "&")

    def divided(left: Expression, _: Expression) -> Expression:
        return _BUILDERS[operation.name](left, divisor.expression)

    def either(left: Expression, small: Expression) -> Expression:
        not_negative = Binary(">=", low_of(found), constant(0))
        return Conditional(shifted(left, small), not_negative, divided(left, small))

    build = either if not isinstance(found, KnownRange) else shifted if found.low >= 0 else divided
    small = int(number).bit_length() - 1 if quotient else int(number) - 1
    operands = [dividend, emitter.literal(small, dividend.shape, dividend.element)]
    term = emitter.assign(build, operands, dividend.shape, dividend.element)
    emitter.define(operation.results[0], term)
    if operation.results[0] in emitter.tracked:
        track(emitter, term, _RANGES[operation.name], [found, range_of(divisor)])


def _may_be_undefined(emitter: Emitter, operation: Operation) -> bool:
    """Return whether the second operand may be a divisor of 0 or -1, or a shift beyond the width."""
    if operation.name not in _DIVISIONS and operation.name not in _SHIFTS:
        return False
    second, result = emitter.operand(operation, 1), operation.results[0].type
    found = second.range
    if second.literal is None and not isinstance(found, KnownRange):
        return True
    low, high = (found.low, found.high) if isinstance(found, KnownRange) else (int(second.literal or 0),) * 2
    if operation.name in _SHIFTS:
        return low < 0 or high >= result.bits
    return low <= 0 <= high or (operation.name == "arith.divsi" and low <= -1 <= high)


def _checked(emitter: Emitter, operation: Operation) -> Term:
    """Emit an operation whose result may be undefined, which is noted when the launch runs."""
    emitter.undefined = True
    terms = [emitter.array(emitter.operand(operation, index)) for index in (0, 1)]
    shape = broadcast_shape((term.shape for term in terms), len(operation.results[0].type.shape))
    region = emitter.place(terms)
    name = "checked_shift" if operation.name in _SHIFTS else "checked_division"
    given = (RUN, emitter.site(), region.scope.lanes, constant(operation.name))
    element = operation.results[0].type.element
    term = emitter.assign(lambda *both: call(name, *given, *both), terms, shape, element, per_launch=True)
    emitter.define(operation.results[0], term)
    return term


def _integer(emitter: Emitter, operation: Operation) -> None:
    name = operation.name
    if _may_be_undefined(emitter, operation):
        term = _checked(emitter, operation)
    else:
        term = elementwise(
            emitter, operation, _BUILDERS[name], arrays=name in _NEED_ARRAYS, plain_numbers=name in _TAKE_NUMBERS
        )
    if operation.results[0] in emitter.tracked:
        operands = [range_of(emitter.operand(operation, index)) for index in (0, 1)]
        if name in _RANGES:
            track(emitter, term, _RANGES[name], operands)
        else:
            track_exactly(emitter, term, emitter.operand(operation, 0).range)


def _shift_left(emitter: Emitter, operation: Operation) -> None:
    if _may_be_undefined(emitter, operation):
        term = _checked(emitter, operation)
    else:
        term = elementwise(emitter, operation, function("shift_left"))
    if operation.results[0] not in emitter.tracked:
        return
    operands = [emitter.operand(operation, index) for index in (0, 1)]
    count = operands[1].literal
    if count is None:
        track_exactly(emitter, term, operands[0].range)
        return
    factor = 1 << int(count)
    guess = track(emitter, term, ranges.multiply, [range_of(operands[0]), KnownRange(factor, factor)])
    track_wrapped(emitter, term, constant("shl"), operands, guess)


def _compare(emitter: Emitter, operation: Operation) -> None:
    predicate = operation.attributes.keyword
    boolean = operation.operands[0].type.element == "i1"
    if predicate in _SIGNED and not (boolean and predicate not in ("eq", "ne")):
        term = elementwise(emitter, operation, infix(_SIGNED[predicate]))
        _note_prefix(emitter, operation, term)
    elif predicate in _UNSIGNED:
        elementwise(emitter, operation, _unsigned_comparison(_UNSIGNED[predicate]), arrays=True)
    else:
        raise emitter.unsupported(f"arith.cmpi {predicate} of i1")


def _note_prefix(emitter: Emitter, operation: Operation, term: Term) -> None:
    """Note how many leading elements of `arange < number` hold."""
    left, right = (emitter.operand(operation, index) for index in (0, 1))
    if operation.attributes.keyword == "slt" and left.start is not None and right.literal is not None:
        term.prefix = min(max(int(right.literal) - left.start, 0), max(left.shape))


def _unsigned_comparison(sign: str) -> Builder:
    return lambda left, right: Binary(sign, call("unsigned", left), call("unsigned", right))


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_BUILDERS, _integer),
    "arith.divsi": _divide,
    "arith.remsi": _divide,
    "arith.shli": _shift_left,
    "arith.cmpi": _compare,
}
