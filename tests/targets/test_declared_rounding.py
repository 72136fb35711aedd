"""The roundings that built-in targets declare are those that their arithmetic needs, and hardly more."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from fuzz_attn.oracle.rounding_model import EXP_UNITS
from fuzz_attn.oracle.roundings import UNIT
from fuzz_attn.targets.built_in import built_in

EX2_APPROX: Final = 2.0**-22
"""The relative error of CUDA's ``ex2.approx`` (PTX ISA), the least accurate exponential that kernels use."""
APPROXIMATE_DIVISION: Final = 4.0
"""Units that a quotient may lose where the compiler multiplies with an approximate reciprocal."""

Array = np.ndarray[Any, np.dtype[np.float64]]


def rounded(numbers: Array) -> Array:
    return numbers.astype(np.float32).astype(np.float64)


def units_lost_by_tanh(exponential: float) -> float:
    """Return the most units of its result that ``(1 - d) / (1 + d)`` loses above 1/4, if ``d = exp(-2 x)`` is off."""
    x, worst = np.linspace(0.25, 9.0, 200_001).astype(np.float32).astype(np.float64), 0.0
    for side in (-1, 1):
        decay = rounded(np.exp(-2.0 * x) * (1 + side * exponential * UNIT))
        quotient = rounded(1.0 - decay) / rounded(1.0 + decay) * (1 - side * APPROXIMATE_DIVISION * UNIT)
        exact = np.tanh(x)
        worst = max(worst, float((np.abs(quotient - exact) / exact).max()) / UNIT)
    return worst


def test_tanh_of_the_built_in_kernels_needs_its_declared_units() -> None:
    target = built_in("unified")
    assert target is not None
    declared = target.rounding_model.tanh_units
    assert declared is not None
    assert units_lost_by_tanh(EXP_UNITS) <= declared <= 2 * units_lost_by_tanh(EXP_UNITS)


def test_exponentials_need_their_declared_units() -> None:
    assert EX2_APPROX <= EXP_UNITS * UNIT <= 2 * EX2_APPROX
