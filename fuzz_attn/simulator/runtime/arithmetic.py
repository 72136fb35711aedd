"""Integer and float operations that numpy lacks, or has with another meaning than the IR."""

from __future__ import annotations

from typing import Any

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


def fused_multiply_add(left: Array, right: Array, addend: Array) -> Array:
    """Return float32 `left * right + addend`, rounded to float64 and then to float32."""
    if left.dtype == np.float64:
        return left * right + addend
    result: Array = (left.astype(np.float64) * right + addend).astype(np.float32)
    return result


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
