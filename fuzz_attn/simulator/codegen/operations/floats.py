"""Emission of float arithmetic and mathematical functions."""

from __future__ import annotations

import re

from fuzz_attn.simulator.codegen.emission import elementwise, predicate_of, rounded
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.frontend.ir import Operation

_UNARY = {
    "arith.negf": "-{0}",
    "math.absf": "np.abs({0})",
    "math.absi": "np.abs({0})",
    "math.exp": "np.exp({0})",
    "math.exp2": "np.exp2({0})",
    "math.log": "np.log({0})",
    "math.log2": "np.log2({0})",
    "math.sin": "np.sin({0})",
    "math.cos": "np.cos({0})",
    "math.tanh": "np.tanh({0})",
    "math.sqrt": "np.sqrt({0})",
    "tt.precise_sqrt": "np.sqrt({0})",
    "math.rsqrt": "reciprocal_root({0})",
    "math.erf": "error_function({0})",
    "math.floor": "np.floor({0})",
    "math.ceil": "np.ceil({0})",
}


_BINARY = {
    "arith.addf": "{0} + {1}",
    "arith.subf": "{0} - {1}",
    "arith.mulf": "{0} * {1}",
    "arith.divf": "{0} / {1}",
    "tt.precise_divf": "{0} / {1}",
    "arith.remf": "np.fmod({0}, {1})",
    "arith.maxnumf": "np.fmax({0}, {1})",
    "arith.minnumf": "np.fmin({0}, {1})",
    "arith.maximumf": "np.maximum({0}, {1})",
    "arith.minimumf": "np.minimum({0}, {1})",
}


# Exact in any format: the result is one of the operands, perhaps with another sign.
_EXACT = {"arith.negf", "math.absf", "math.floor", "math.ceil", "arith.remf"}


_EXACT |= {"arith.maxnumf", "arith.minnumf", "arith.maximumf", "arith.minimumf"}


_COMPARE_FLOAT = {
    "oeq": "{0} == {1}",
    "ogt": "{0} > {1}",
    "oge": "{0} >= {1}",
    "olt": "{0} < {1}",
    "ole": "{0} <= {1}",
    "one": "({0} < {1}) | ({0} > {1})",
    "ord": "~(np.isnan({0}) | np.isnan({1}))",
    "ueq": "~(({0} < {1}) | ({0} > {1}))",
    "ugt": "~({0} <= {1})",
    "uge": "~({0} < {1})",
    "ult": "~({0} >= {1})",
    "ule": "~({0} > {1})",
    "une": "{0} != {1}",
    "uno": "np.isnan({0}) | np.isnan({1})",
}


_LIBRARY = {
    "tanh": "np.tanh({0})",
    "exp": "np.exp({0})",
    "exp2": "np.exp2({0})",
    "log": "np.log({0})",
    "log2": "np.log2({0})",
    "log1p": "np.log1p({0})",
    "expm1": "np.expm1({0})",
    "sqrt": "np.sqrt({0})",
    "rsqrt": "reciprocal_root({0})",
    "erf": "error_function({0})",
    "fabs": "np.abs({0})",
    "floor": "np.floor({0})",
    "ceil": "np.ceil({0})",
    "trunc": "np.trunc({0})",
    "rint": "np.rint({0})",
    "pow": "np.power({0}, {1})",
    "fmod": "np.fmod({0}, {1})",
    "isnan": "np.isnan({0}).astype(np.int32)",
    "isinf": "np.isinf({0}).astype(np.int32)",
}


_SYMBOL = re.compile(r'symbol = "__nv_(\w+?)f?"')


def _float(emitter: Emitter, operation: Operation) -> None:
    template = _UNARY.get(operation.name) or _BINARY[operation.name]
    element = operation.results[0].type.element
    elementwise(emitter, operation, template if operation.name in _EXACT else rounded(template, element))


def _compare_floats(emitter: Emitter, operation: Operation) -> None:
    template = _COMPARE_FLOAT.get(predicate_of(operation))
    if template is None:
        raise emitter.unsupported(f"arith.cmpf {predicate_of(operation)}")
    elementwise(emitter, operation, template)


def _clamp(emitter: Emitter, operation: Operation) -> None:
    if "propagateNan = all" in operation.text:
        elementwise(emitter, operation, "np.minimum(np.maximum({0}, {1}), {2})")
    else:
        elementwise(emitter, operation, "np.fmin(np.fmax({0}, {1}), {2})")


def _fma(emitter: Emitter, operation: Operation) -> None:
    element = operation.results[0].type.element
    elementwise(emitter, operation, rounded("fused_multiply_add({0}, {1}, {2})", element), arrays=True)


def _library(emitter: Emitter, operation: Operation) -> None:
    match = _SYMBOL.search(operation.text)
    template = _LIBRARY.get(match.group(1)) if match else None
    if template is None:
        raise emitter.unsupported(f"tt.extern_elementwise {match.group(1) if match else ''}".strip())
    elementwise(emitter, operation, template)


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys([*_UNARY, *_BINARY], _float),
    "arith.cmpf": _compare_floats,
    "tt.clampf": _clamp,
    "math.fma": _fma,
    "tt.extern_elementwise": _library,
}
