"""Roundings: what one operation in a floating-point type may lose, in the notation of Higham's textbook."""

from __future__ import annotations

from functools import cache
from typing import Final

import torch

UNIT: Final = 2.0**-24
"""Unit roundoff of float32: an operation rounded to nearest is off by at most this share of its result."""

TF32_UNIT: Final = 2.0**-10
"""What a float32 operand of a dot loses where a target allows tf32: all of its 13 low bits, since tensor cores do not
round (measured on an H200, `tests/simulator/test_against_gpu.py`). Half of it where a compiler rounds first."""

EXP_UNITS: Final = 6.0
"""Units that ``exp`` in float32 loses by itself: CUDA's ``ex2.approx`` 4 (2^-22), numpy's vectorised one 5.04."""

FLUSHED: Final = 2.0**-126
"""Smallest normal float32: what an ``exp`` that flushes denormals to zero may lose at once."""

UNDERFLOW: Final = 2.0**-149
"""Smallest denormal float32: twice what a product or quotient that underflows gradually may lose."""

OVERFLOW: Final = 2.0**127
"""Half of what float32 holds: magnitudes below it cannot overflow, whatever their order of summation."""

_EXPONENT: Final = 0x7FF0000000000000
"""The bits of a float64 that say its binade."""


@cache
def unit_roundoff(dtype: torch.dtype) -> float:
    """Return half the spacing of the type at 1: the relative error of rounding to nearest."""
    return torch.finfo(dtype).eps / 2


@cache
def half_denormal(dtype: torch.dtype) -> float:
    """Return half the smallest denormal of the type: the absolute error of rounding below its normal range."""
    info = torch.finfo(dtype)
    return info.smallest_normal * info.eps / 2


def cast_unit(dtype: torch.dtype) -> float:
    """Return the relative error of a cast from float32 to the type, 0 where nothing is lost."""
    return 0.0 if dtype == torch.float32 else unit_roundoff(dtype)


def half_spacing(largest: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return how far rounding a float32 to the type may move any number of at most these float64 magnitudes.

    Half of the spacing in the magnitude's binade: just below a power of two the relative error says twice as much.
    """
    binade = (largest.view(torch.int64) & _EXPONENT).view(torch.float64)
    return binade.mul_(cast_unit(dtype)).clamp_min_(half_denormal(dtype))


def gamma(operations: torch.Tensor, unit: float) -> torch.Tensor:
    """Return ``n u / (1 - n u)``, the relative error after ``n`` roundings; infinite where ``n u`` reaches 1."""
    product = operations * unit
    return product.div_((1.0 - product).clamp_min_(0.0))
