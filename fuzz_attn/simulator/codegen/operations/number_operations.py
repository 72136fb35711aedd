"""Number operations: integers and floats, mathematical functions, constants, conversions between types, assembly.

Sums and products of integers stay lists of terms where an address may need them apart. Assembly in a kernel
(`tl.inline_asm_elementwise`) is computed as far as its instructions are known.
"""

from __future__ import annotations

from typing import Final

from fuzz_attn.errors import UnknownInstructionError
from fuzz_attn.simulator.codegen.emitter import (
    EVERY,
    Emitter,
    Handler,
    elementwise,
    full,
    range_of,
    rounded,
    track,
    track_exactly,
    track_result,
    track_wrapped,
)
from fuzz_attn.simulator.codegen.source_tree import (
    NUMPY,
    RUN,
    Assign,
    Attribute,
    Binary,
    Builder,
    Conditional,
    Expression,
    Literal,
    Unary,
    call,
    cast,
    constant,
    function,
    index,
    infix,
    method,
    numpy,
    numpy_function,
    prefix,
)
from fuzz_attn.simulator.codegen.terms import KnownRange, RangeFunction, Term, Val, ValueRange, broadcast_shape, low_of
from fuzz_attn.simulator.runtime import ranges
from fuzz_attn.simulator.runtime.elementwise import library_name
from fuzz_attn.simulator.runtime.float_formats import STORAGE
from fuzz_attn.simulator.runtime.ptx import assembly_of, check
from fuzz_attn.ttir.ir import Operation, Type, parse_literal


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


def _compare_integers(emitter: Emitter, operation: Operation) -> None:
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


_KINDS: Final = {"arith.addi": "add", "arith.subi": "sub", "arith.muli": "mul"}
_SIGNS: Final = {"add": "+", "sub": "-", "mul": "*"}
_SUM_RANGES: Final[dict[str, RangeFunction]] = {"add": ranges.add, "sub": ranges.subtract, "mul": ranges.multiply}


def _ring(emitter: Emitter, operation: Operation) -> None:
    """Emit an addition, subtraction or multiplication of integers."""
    left, right = (emitter.val(operand) for operand in operation.operands)
    kind = _KINDS[operation.name]
    if operation.results[0].type.element == "i1":
        elementwise(emitter, operation, infix("&" if kind == "mul" else "^"))
    elif kind == "mul":
        _multiply(emitter, operation, left, right)
    elif _keeps_sum(emitter, operation, left, right):
        _sum(emitter, operation, left, right, kind)
    else:
        _ring_single(emitter, operation, kind)


def _ring_single(emitter: Emitter, operation: Operation, kind: str) -> None:
    operands = [emitter.operand(operation, index) for index in (0, 1)]
    term = elementwise(emitter, operation, infix(_SIGNS[kind]))
    term.affine = _stays_affine(operands, kind)
    if operation.results[0] not in emitter.tracked:
        return
    guess = track(emitter, term, _SUM_RANGES[kind], [range_of(operand) for operand in operands])
    if operation.results[0].type.element == "i32":
        track_wrapped(emitter, term, constant(kind), operands, guess)


def _stays_affine(operands: list[Term], kind: str) -> bool:
    left, right = operands
    if kind == "mul":
        return (left.affine and right.scalar) or (right.affine and left.scalar)
    return (left.affine and right.scalar) or (kind == "add" and right.affine and left.scalar)


def _keeps_sum(emitter: Emitter, operation: Operation, left: Val, right: Val) -> bool:
    """Return whether a sum stays a list of terms: its parts vary along different axes, and no wrap can be missed."""
    result = operation.results[0]
    if not result.type.shape or not (result.type.element == "i64" or result in emitter.tracked):
        return False
    if result.type.element not in ("i32", "i64"):
        return False
    shapes = {term.shape for term in (*left.terms, *right.terms)}
    return len(shapes) > 1


def _sum(emitter: Emitter, operation: Operation, left: Val, right: Val, kind: str) -> None:
    result = operation.results[0]
    terms = list(left.terms)
    terms += [term if kind == "add" else _negative(emitter, term) for term in right.terms]
    merged = _merged(emitter, terms, result.type.element)
    val = emitter.define(result, *merged)
    if result in emitter.tracked:
        val.range = _total_range(emitter, merged)


def _negative(emitter: Emitter, term: Term) -> Term:
    if term.literal is not None:
        return emitter.literal(-term.literal, term.shape, term.element)
    negative = emitter.assign(prefix("-"), [term], term.shape, term.element)
    if term.range:
        track(emitter, negative, ranges.subtract, [KnownRange(0, 0), term.range])
    return negative


def _merged(emitter: Emitter, terms: list[Term], element: str) -> tuple[Term, ...]:
    """Return the terms with those of one shape added up, without literal zeros."""
    by_shape: dict[tuple[int, ...], Term] = {}
    for term in sorted(terms, key=lambda term: term.region.depth):
        if term.literal == 0 and len(terms) > 1:
            continue
        known = by_shape.get(term.shape)
        by_shape[term.shape] = term if known is None else _add_terms(emitter, known, term, element)
    return tuple(by_shape.values()) or (terms[0],)


def _add_terms(emitter: Emitter, left: Term, right: Term, element: str) -> Term:
    if left.literal is not None and right.literal is not None:
        return emitter.literal(left.literal + right.literal, left.shape, element)
    term = emitter.assign(infix("+"), [left, right], left.shape, element)
    if left.range and right.range:
        track(emitter, term, ranges.add, [left.range, right.range])
    return term


def _total_range(emitter: Emitter, terms: tuple[Term, ...]) -> ValueRange:
    """Emit the range of a sum of terms."""
    region = emitter.place(terms)
    total = range_of(terms[0])
    for term in terms[1:]:
        total = emitter.ranged(ranges.add, [total, range_of(term)], region)
    return total


def _multiply(emitter: Emitter, operation: Operation, left: Val, right: Val) -> None:
    result = operation.results[0]
    if len(left.terms) > 1 and len(right.terms) == 1:
        left, right = right, left
    factor = left.term
    if len(left.terms) > 1 or len(right.terms) == 1 or not factor.scalar or result.type.element != "i64":
        _ring_single(emitter, operation, "mul")
        return
    products = tuple(_product(emitter, term, factor, result in emitter.tracked) for term in right.terms)
    val = emitter.define(result, *products)
    if result in emitter.tracked:
        val.range = _total_range(emitter, products)


def _product(emitter: Emitter, term: Term, factor: Term, tracked: bool) -> Term:
    pair = [emitter.array(term) if factor.literal is not None else term, factor]
    product = emitter.assign(infix("*"), pair, term.shape, "i64", affine=term.affine)
    if tracked:
        track(emitter, product, ranges.multiply, [range_of(one) for one in pair])
    return product


_ARITHMETIC: dict[str, Builder] = {
    "arith.negf": prefix("-"),
    "math.absf": numpy_function("abs"),
    "math.absi": numpy_function("abs"),
    "math.exp": numpy_function("exp"),
    "math.exp2": numpy_function("exp2"),
    "math.log": numpy_function("log"),
    "math.log2": numpy_function("log2"),
    "math.sin": numpy_function("sin"),
    "math.cos": numpy_function("cos"),
    "math.tanh": numpy_function("tanh"),
    "math.sqrt": numpy_function("sqrt"),
    "tt.precise_sqrt": numpy_function("sqrt"),
    "math.rsqrt": function("reciprocal_root"),
    "math.erf": function("error_function"),
    "math.floor": numpy_function("floor"),
    "math.ceil": numpy_function("ceil"),
    "arith.addf": infix("+"),
    "arith.subf": infix("-"),
    "arith.mulf": infix("*"),
    "arith.divf": infix("/"),
    "tt.precise_divf": infix("/"),
    "tt.approx_divf": infix("/"),
    "arith.remf": numpy_function("fmod"),
    "arith.maxnumf": numpy_function("fmax"),
    "arith.minnumf": numpy_function("fmin"),
    "arith.maximumf": numpy_function("maximum"),
    "arith.minimumf": numpy_function("minimum"),
}

_EXACT = frozenset(
    {"arith.negf", "math.absf", "math.floor", "math.ceil", "arith.remf"}
    | {"arith.maxnumf", "arith.minnumf", "arith.maximumf", "arith.minimumf"}
)
"""Operations that need no rounding: the result is one of the operands, perhaps with another sign."""


def _one(left: Expression, right: Expression) -> Expression:
    return Binary("|", Binary("<", left, right), Binary(">", left, right))


def _unordered(left: Expression, right: Expression) -> Expression:
    return Binary("|", numpy("isnan", left), numpy("isnan", right))


def _negated(build: Builder) -> Builder:
    return lambda left, right: Unary("~", build(left, right))


_COMPARISONS: dict[str, Builder] = {
    "oeq": infix("=="),
    "ogt": infix(">"),
    "oge": infix(">="),
    "olt": infix("<"),
    "ole": infix("<="),
    "one": _one,
    "ord": _negated(_unordered),
    "ueq": _negated(_one),
    "ugt": _negated(infix("<=")),
    "uge": _negated(infix("<")),
    "ult": _negated(infix(">=")),
    "ule": _negated(infix(">")),
    "une": infix("!="),
    "uno": _unordered,
}


def _float(emitter: Emitter, operation: Operation) -> None:
    build = _ARITHMETIC[operation.name]
    element = operation.results[0].type.element
    elementwise(emitter, operation, build if operation.name in _EXACT else rounded(build, element))


def _compare_floats(emitter: Emitter, operation: Operation) -> None:
    predicate = operation.attributes.keyword
    build = _COMPARISONS.get(predicate)
    if build is None:
        raise emitter.unsupported(f"arith.cmpf {predicate}")
    elementwise(emitter, operation, build)


def _clamp(emitter: Emitter, operation: Operation) -> None:
    keeps_nan = operation.attributes.named.get("propagateNan") == "all"
    smaller, larger = ("minimum", "maximum") if keeps_nan else ("fmin", "fmax")
    elementwise(emitter, operation, lambda value, low, high: numpy(smaller, numpy(larger, value, low), high))


def _fma(emitter: Emitter, operation: Operation) -> None:
    element = operation.results[0].type.element
    elementwise(emitter, operation, rounded(function("fused_multiply_add"), element), arrays=True)


def _library(emitter: Emitter, operation: Operation) -> None:
    symbol = operation.attributes.named.get("symbol", "")
    name = library_name(symbol)
    if not name:
        raise emitter.unsupported(f"tt.extern_elementwise {symbol}".strip())

    def build(*operands: Expression) -> Expression:
        return call("library", constant(name), *operands)

    elementwise(emitter, operation, build, arrays=True)


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


def _assembly(emitter: Emitter, operation: Operation) -> None:
    named = operation.attributes.named
    what = (operation.attributes.string, named["constraints"], operation.attributes.integer("packed_element", 1))
    elements = [value.type.element for value in operation.operands]
    wanted = [value.type.element for value in operation.results]
    try:
        assembly = assembly_of(*what)
        check(assembly, elements, wanted)
    except UnknownInstructionError as error:
        raise emitter.unsupported(f"{operation.name} of {error}") from None
    operands = [full(emitter, operation, place) for place in range(len(elements))]
    program = call("assembly_of", *map(constant, what))
    given = (program, constant(tuple(elements)), constant(tuple(wanted)))
    varying = assembly.varies or any(term.varying for term in operands)
    together = emitter.fresh()
    lanes = emitter.lanes if varying else EVERY
    arrays = [emitter.read(term) for term in operands]
    emitter.add(Assign(together, call("assembled", *given, lanes, *arrays), effect=assembly.varies))
    pinned = Term(together, (), varying, emitter.region, "i32")
    for place, result in enumerate(operation.results):

        def build(results: Expression, place: int = place) -> Expression:
            return index(results, constant(place))

        term = emitter.assign(build, [pinned], result.type.shape, result.type.element)
        emitter.define(result, term)
        track_result(emitter, result)


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_BUILDERS, _integer),
    "arith.divsi": _divide,
    "arith.remsi": _divide,
    "arith.shli": _shift_left,
    "arith.cmpi": _compare_integers,
    **dict.fromkeys(_KINDS, _ring),
    **dict.fromkeys(_ARITHMETIC, _float),
    "arith.cmpf": _compare_floats,
    "tt.clampf": _clamp,
    "math.fma": _fma,
    "tt.extern_elementwise": _library,
    **dict.fromkeys(_RESIZES, _resize),
    **dict.fromkeys(_CONVERSIONS, _convert),
    "arith.constant": _constant,
    "arith.bitcast": _bitcast,
    "tt.bitcast": _bitcast,
    "tt.elementwise_inline_asm": _assembly,
}
