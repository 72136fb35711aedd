"""Float arithmetic and mathematical functions."""

from __future__ import annotations

from fuzz_attn.simulator.codegen.emitter import Emitter, Handler, elementwise, rounded
from fuzz_attn.simulator.codegen.expressions import (
    Binary,
    Builder,
    Expression,
    Unary,
    call,
    constant,
    function,
    infix,
    numpy,
    numpy_function,
    prefix,
)
from fuzz_attn.simulator.runtime.libdevice import library_name
from fuzz_attn.ttir.ir import Operation

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


def _compare(emitter: Emitter, operation: Operation) -> None:
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


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_ARITHMETIC, _float),
    "arith.cmpf": _compare,
    "tt.clampf": _clamp,
    "math.fma": _fma,
    "tt.extern_elementwise": _library,
}
