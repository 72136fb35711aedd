"""Elementwise operations that numpy lacks, has with another meaning than the IR, or whose results may be undefined.

Undefined are a division by 0 and a shift by the width or more. A GPU returns some number for them and does not trap. So
they matter only where what a launch does depends on that number. To find that out, a launch that meets undefined
results runs again with other numbers in their place (`simulator.undefined_probes`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

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
