"""Functions of CUDA's library `libdevice`, by their names without `__nv_` and without the letter of their type.

Those that the library approximates are computed as well as numpy or torch can. Functions that round up, down or towards
zero are missing, except to integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from fuzz_attn.simulator.runtime.elementwise import fused_multiply_add, multiply_high, reciprocal_root, unsigned
from fuzz_attn.simulator.runtime.float_formats import CONTAINER, float_to_integer

Array = npt.NDArray[Any]
Function = Callable[..., Array]


def library_name(symbol: str) -> str:
    """Return the name of a function in `LIBRARY` for a symbol such as `__nv_tanhf`; empty for an unknown one."""
    name = symbol.removeprefix("__nv_")
    shorter = [name.removesuffix("f"), name.removesuffix("d"), name.removesuffix("ll")]
    return next((one for one in (name, *shorter) if one in LIBRARY), "")


def library(name: str, *operands: Array) -> Array:
    """Return what a function of the library makes of arrays."""
    return LIBRARY[name](*operands)


def _torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Function:
    return lambda values: function(torch.from_numpy(np.array(values))).numpy()


def _test(function: Function) -> Function:
    return lambda values: function(values).astype(np.int32)


def _half_away(values: Array) -> Array:
    """Return the nearest whole numbers, halves away from zero."""
    whole = np.trunc(values)
    result: Array = whole + np.copysign(np.abs(values - whole) >= 0.5, values).astype(values.dtype)
    return np.copysign(result, values)


def _to_integer(rounding: Function, element: str, *, signed: bool = True) -> Function:
    """Return a conversion; NaN is 0, or the highest bit from or to 64 bits."""
    lowest = np.iinfo(CONTAINER[element]).min

    def convert(values: Array) -> Array:
        whole = float_to_integer(rounding(values), element, signed)
        wide = values.itemsize == 8 or whole.itemsize == 8
        return np.where(np.isnan(values), lowest, whole).astype(whole.dtype) if wide else whole

    return convert


def _scaled(values: Array, exponent: Array) -> Array:
    return np.ldexp(values, exponent)


def _leading_zeros(values: Array) -> Array:
    bits = unsigned(values)
    count = np.zeros(bits.shape, np.int32)
    for place in range(bits.itemsize * 8):
        count[(bits >> place) > 0] = place + 1
    return (bits.itemsize * 8 - count).astype(np.int32)


def _ones(values: Array) -> Array:
    return np.bitwise_count(unsigned(values)).astype(np.int32)


def _first_one(values: Array) -> Array:
    """Return the place of the lowest bit that is set, from 1 on; 0 if none is."""
    lowest = values & -values
    return np.where(values == 0, 0, values.itemsize * 8 - _leading_zeros(lowest)).astype(np.int32)


def _reversed_bits(values: Array) -> Array:
    bits = unsigned(values)
    result = np.zeros_like(bits)
    for place in range(bits.itemsize * 8):
        result |= ((bits >> place) & 1) << (bits.itemsize * 8 - 1 - place)
    return result.view(values.dtype)


_NUMPY: Final = """
    arccos arccosh arcsin arcsinh arctan arctanh cbrt ceil cos cosh exp exp2 expm1 floor log log10 log1p log2 rint sin
    sinh sqrt tan tanh trunc arctan2 copysign fmod hypot
"""
_FAST: Final = {
    "expf": np.exp, "logf": np.log, "log2f": np.log2, "log10f": np.log10, "sinf": np.sin, "cosf": np.cos,
    "tanf": np.tan, "powf": np.power, "fdividef": np.divide,
}  # fmt: skip
_NEAREST: Final[dict[str, Function]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt, "rcp": np.reciprocal,
    "rsqrt": reciprocal_root,
}  # fmt: skip
_ROUNDING: Final[dict[str, Function]] = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}
_INTEGERS: Final = {"int": ("i32", True), "uint": ("i32", False), "ll": ("i64", True), "ull": ("i64", False)}

LIBRARY: Final[dict[str, Function]] = {
    **{name.replace("arc", "a"): getattr(np, name) for name in _NUMPY.split()},
    **{f"fast_{name}": function for name, function in _FAST.items()},
    **{
        f"{source}2{to}_{how}": _to_integer(rounding, element, signed=signed)
        for source in ("float", "double")
        for to, (element, signed) in _INTEGERS.items()
        for how, rounding in _ROUNDING.items()
    },
    **{f"{type_}{name}_rn": function for type_ in "fd" for name, function in _NEAREST.items()},
    "exp10": lambda values: np.power(values.dtype.type(10), values),
    "pow": np.power,
    "rsqrt": reciprocal_root,
    "fabs": np.abs,
    "nearbyint": np.rint,
    "round": _half_away,
    "llrint": _to_integer(np.rint, "i64"),
    "llround": _to_integer(_half_away, "i64"),
    "ldexp": _scaled,
    "scalbn": _scaled,
    "fma": fused_multiply_add,
    "fmaf_rn": fused_multiply_add,
    "fma_rn": fused_multiply_add,
    "saturate": lambda values: np.fmin(np.fmax(values, np.float32(0)), np.float32(1)),
    "erf": _torch(torch.erf),
    "erfc": _torch(torch.erfc),
    "erfinv": _torch(torch.erfinv),
    "lgamma": _torch(torch.lgamma),
    "isnan": _test(np.isnan),
    "isinf": _test(np.isinf),
    "finite": _test(np.isfinite),
    "isfinite": _test(np.isfinite),
    "signbit": _test(np.signbit),
    "float_as_int": lambda values: values.view(np.int32),
    "float_as_uint": lambda values: values.view(np.int32),
    "int_as_float": lambda values: values.view(np.float32),
    "uint_as_float": lambda values: values.view(np.float32),
    "double_as_longlong": lambda values: values.view(np.int64),
    "longlong_as_double": lambda values: values.view(np.float64),
    "int2float_rn": lambda values: values.astype(np.float32),
    "uint2float_rn": lambda values: unsigned(values).astype(np.float32),
    "abs": np.abs,
    "umulhi": multiply_high,
    "clz": _leading_zeros,
    "popc": _ones,
    "ffs": _first_one,
    "brev": _reversed_bits,
}
