"""Elementwise operations that numpy lacks, has with another meaning than the IR, or whose results may be undefined.

Functions of CUDA's library `libdevice` are among them, by their names without `__nv_` and without the letter of their
type.

Undefined are a division by 0 and a shift by the width or more. A GPU returns some number for them and does not trap. So
they matter only where what a launch does depends on that number. To find that out, a launch that meets undefined
results runs again with other numbers in their place (`simulator.undefined_probes`).

Those that the library approximates are computed as well as numpy or torch can. Functions that round up, down or towards
zero are missing, except to integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fuzz_attn.simulator.runtime.float_formats import CONTAINER, float_to_integer

Array = npt.NDArray[Any]

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def unsigned(values: Array) -> Array:
    """Return integers with the same bits as unsigned ones."""
    return values if values.dtype == np.bool_ else values.view(_UNSIGNED[values.itemsize])


def divide(left: Array, right: Any) -> Array:
    """Return integer quotients truncated towards zero; x / 0 is 0, as in Triton's interpreter."""
    if isinstance(right, int) and right > 0 and (not left.size or int(left.item(left.argmin())) >= 0):
        power = right.bit_length() - 1
        return left >> power if right == 1 << power else left // right
    quotient = np.floor_divide(left, right)
    remainder = left - quotient * right
    wrong = (remainder != 0) & ((left < 0) != (np.asarray(right) < 0)) & (np.asarray(right) != 0)
    if wrong.any():
        quotient = quotient + wrong.astype(quotient.dtype)
    result: Array = quotient
    return result


def multiply_high(left: Array, right: Array) -> Array:
    """Return the upper half of the products of unsigned integers."""
    bits = left.itemsize * 8
    if bits <= 32:
        product = unsigned(left).astype(np.uint64) * unsigned(right).astype(np.uint64)
        return (product >> np.uint64(bits)).astype(_UNSIGNED[left.itemsize]).view(left.dtype)
    low = np.uint64(0xFFFFFFFF)
    a, b, half = unsigned(left), unsigned(right), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + ((a0 * b0) >> half)
    carry = (middle & low) + a0 * b1
    result: Array = (a1 * b1 + (middle >> half) + (carry >> half)).view(left.dtype)
    return result


def fused_to_odd(left: Array, right: Array, addend: Array) -> Array:
    """Return `left * right + addend` of at most 32 bits each in float64, such that rounding it again rounds it once.

    The product is exact in float64. A sum that is not gets an odd last bit, so that it never looks like the middle
    between two narrower numbers (Boldo and Melquiond, "When double rounding is odd").
    """
    product = left.astype(np.float64) * right
    total = np.asarray(product + addend)
    part = total - product
    lost = (product - (total - part)) + (addend - part)
    bits = total.view(np.int64)
    even = np.isfinite(lost) & (lost != 0.0) & (bits & 1 == 0)
    odd = np.where(even, bits + np.where((lost > 0.0) == (total > 0.0), 1, -1), bits)
    result: Array = odd.view(np.float64)
    return result


def fused_multiply_add(left: Array, right: Array, addend: Array) -> Array:
    """Return float32 `left * right + addend`, rounded once; float64 is rounded twice."""
    if left.dtype == np.float64:
        return left * right + addend
    return fused_to_odd(left, right, addend).astype(np.float32)


def error_function(values: Array) -> Array:
    """Return erf, computed by torch."""
    result: Array = torch.erf(torch.from_numpy(np.array(values))).numpy()
    return result


def reciprocal_root(values: Array) -> Array:
    """Return 1 / sqrt(x)."""
    result: Array = 1 / np.sqrt(values)
    return result


def shift_left(values: Array, count: Any) -> Array:
    """Return `values << count` at the width of `values`."""
    result: Array = np.left_shift(values, count)
    return result


def shift_right_logical(values: Array, count: Any) -> Array:
    """Return `values >> count` with zeros shifted in."""
    if isinstance(count, np.ndarray):
        count = unsigned(count)
    result: Array = (unsigned(values) >> count).view(values.dtype)
    return result


def unsigned_divide(left: Array, right: Array) -> Array:
    """Return quotients of unsigned integers."""
    return (unsigned(left) // unsigned(right)).view(left.dtype)


def unsigned_remainder(left: Array, right: Array) -> Array:
    """Return remainders of unsigned integers."""
    return (unsigned(left) % unsigned(right)).view(left.dtype)


def unsigned_pick(operation: np.ufunc, left: Array, right: Array) -> Array:
    """Return the minimum or maximum of unsigned integers."""
    result: Array = operation(unsigned(left), unsigned(right)).view(left.dtype)
    return result


@dataclass(frozen=True, slots=True)
class Seen:
    """Undefined results of one line: in which program first, how many, and which operation made them, in words."""

    program: int
    count: int
    words: str


@dataclass(slots=True)
class Undefined:
    """The undefined results of one run by the number of their line, and the numbers that take their places.

    `garbage` has a function that returns the number for the width of an integer; results of other lines are as numpy
    makes them.
    """

    seen: dict[int, Seen] = field(default_factory=dict)
    garbage: dict[int, Callable[[int], int]] = field(default_factory=dict)

    def replaced(self, site: int, lanes: Array, wrong: Array, values: Array, words: str) -> Array:
        """Return the results with garbage where they are undefined, and note these."""
        known = self.seen.get(site)
        row = int(np.unravel_index(int(wrong.argmax()), wrong.shape)[0]) if wrong.ndim else 0
        program = int(lanes[row]) if row < lanes.size else 0
        count = int(np.count_nonzero(wrong))
        self.seen[site] = (
            Seen(program, count, words) if known is None else Seen(known.program, known.count + count, known.words)
        )
        chosen = self.garbage.get(site)
        if chosen is None:
            return values
        result = np.array(np.broadcast_to(values, np.broadcast_shapes(values.shape, wrong.shape)))
        result[np.broadcast_to(wrong, result.shape)] = chosen(result.itemsize * 8)
        return result


class Noting(Protocol):
    """A run that notes undefined results."""

    undefined: Undefined


_DIVISIONS: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "arith.divsi": divide,
    "arith.remsi": np.fmod,
    "arith.divui": unsigned_divide,
    "arith.remui": unsigned_remainder,
}
_SHIFTS: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "arith.shli": shift_left,
    "arith.shrsi": np.right_shift,
    "arith.shrui": shift_right_logical,
}


def checked_division(run: Noting, site: int, lanes: Array, name: str, left: Array, right: Array) -> Array:
    """Return quotients or remainders, and note those that are undefined."""
    result = _DIVISIONS[name](left, right)
    if not right.size or int(right.min()) > 0:
        return result
    wrong = right == 0
    words = "divides by 0"
    if not wrong.any() and name == "arith.divsi":
        wrong = (right == -1) & (left == np.iinfo(left.dtype).min)
        words = "divides the smallest integer by -1"
    return run.undefined.replaced(site, lanes, wrong, result, words) if wrong.any() else result


def checked_shift(run: Noting, site: int, lanes: Array, name: str, left: Array, count: Array) -> Array:
    """Return shifted integers, and note those that are undefined."""
    result = _SHIFTS[name](left, count)
    width = left.itemsize * 8
    wrong = (count < 0) | (count >= width)
    if not wrong.any():
        return result
    return run.undefined.replaced(site, lanes, wrong, result, f"shifts by {int(count[wrong][0])} of {width} bits")


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
