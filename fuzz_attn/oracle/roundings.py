"""Roundings: the error of one operation in a floating-point type, in the notation of Higham's textbook."""

from __future__ import annotations

import math
from functools import cache
from typing import Final

import torch

UNIT: Final = 2.0**-24
"""Unit roundoff of float32: the largest relative error of an operation that rounds to nearest."""

TF32_UNIT: Final = 2.0**-10
"""Relative error of a float32 operand that is cut to tf32: tensor cores drop its 13 low bits without rounding (measured
on an H200, `tests/simulator/test_against_gpu.py`). A compiler that rounds first loses half of this."""

FLUSHED: Final = 2.0**-126
"""Smallest normal float32: the absolute error of an ``exp`` that flushes denormals to zero."""

UNDERFLOW: Final = 2.0**-149
"""Smallest denormal float32: twice the absolute error of a product or quotient that underflows gradually."""

OVERFLOW: Final = 2.0**127
"""Half of the float32 range: sums of magnitudes below it do not overflow in any order of summation."""

_EXPONENT: Final = 0x7FF0000000000000
"""The exponent bits of a float64."""


@cache
def unit_roundoff(dtype: torch.dtype) -> float:
    """Return half the spacing of the type at 1: the largest relative error of rounding to nearest."""
    return torch.finfo(dtype).eps / 2


@cache
def half_denormal(dtype: torch.dtype) -> float:
    """Return half the smallest denormal of the type: the largest absolute error of rounding below the normal range."""
    info = torch.finfo(dtype)
    return info.smallest_normal * info.eps / 2


def cast_unit(dtype: torch.dtype) -> float:
    """Return the relative error of a cast from float32 to the type; 0 for float32 itself."""
    return 0.0 if dtype == torch.float32 else unit_roundoff(dtype)


def grown(times: int, unit: float) -> float:
    """Return ``(1 + u)^n - 1``, the relative error after ``n`` roundings none of which is divided by; always finite."""
    return math.expm1(times * math.log1p(unit))


def half_spacing(largest: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the largest error of rounding a float32 of at most these float64 magnitudes to the type.

    This is half the spacing in the magnitude's binade; the relative error would give twice as much just below a power
    of two.
    """
    binade = (largest.view(torch.int64) & _EXPONENT).view(torch.float64)
    return binade.mul_(cast_unit(dtype)).clamp_min_(half_denormal(dtype))


def gamma(operations: torch.Tensor, unit: float) -> torch.Tensor:
    """Return ``n u / (1 - n u)``, the relative error after ``n`` roundings; infinite where ``n u`` reaches 1."""
    product = operations * unit
    return product.div_(product.neg().add_(1.0).clamp_min_(0.0))
