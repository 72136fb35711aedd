"""Numbers with the largest error that a float32 computation of them may have, so that no test picks a tolerance.

Each operation bounds what it makes of its operands' errors, then adds its own rounding. Sums and dots are bounded for
every order of summation (Higham's gamma), because BLAS libraries and machines differ in theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fuzz_attn.oracle.roundings import EXP_UNITS, FLUSHED, UNDERFLOW, UNIT, cast_unit, gamma, half_denormal


@dataclass(frozen=True)
class Rounded:
    """Exact values in float64, and how far a correct float32 computation may be from each."""

    exact: torch.Tensor
    error: torch.Tensor

    @property
    def size(self) -> torch.Tensor:
        """The largest magnitude that a computed value may have."""
        return self.exact.abs() + self.error

    def __add__(self, other: Rounded) -> Rounded:
        return _stored(self.exact + other.exact, self.error + other.error)

    def __sub__(self, other: Rounded) -> Rounded:
        return _stored(self.exact - other.exact, self.error + other.error)

    def __mul__(self, other: Rounded) -> Rounded:
        return _stored(self.exact * other.exact, self.size * other.error + self.error * other.exact.abs())

    def __truediv__(self, other: Rounded) -> Rounded:
        quotient, smallest = self.exact / other.exact, other.exact.abs() - other.error
        error = (self.error + quotient.abs() * other.error) / smallest
        return _stored(quotient, error.masked_fill(smallest <= 0, torch.inf))

    def root(self) -> Rounded:
        """Return the square roots of positive values; they bend most below."""
        root = self.exact.sqrt()
        return _stored(root, root - (self.exact - self.error).clamp_min(0).sqrt())

    def exp(self) -> Rounded:
        """Return the exponentials."""
        exact = self.exact.exp()
        return _stored(exact, exact * self.error.expm1(), EXP_UNITS * UNIT, FLUSHED)

    def total(self, dim: int) -> Rounded:
        """Return the sums along a dimension, which stays: ``n - 1`` additions in any order."""
        lost = _gamma(self.exact.shape[dim] - 1)
        error = self.error.sum(dim, keepdim=True) + lost * self.size.sum(dim, keepdim=True)
        return Rounded(self.exact.sum(dim, keepdim=True), error)

    def __matmul__(self, other: Rounded) -> Rounded:
        """Return the matrix products: a product and ``n - 1`` additions in any order, fused or not."""
        terms = self.exact.shape[-1]
        error = self.size @ other.error + self.error @ other.exact.abs()
        lost = _gamma(terms) * (self.size @ other.size) + terms * UNDERFLOW
        return Rounded(self.exact @ other.exact, error + lost)

    def to(self, dtype: torch.dtype) -> Rounded:
        """Return the values rounded to a type; float32 loses nothing."""
        if dtype == torch.float32:
            return self
        return _stored(self.exact, self.error, cast_unit(dtype), half_denormal(dtype))


def exactly(values: torch.Tensor | float) -> Rounded:
    """Return values without an error; a number is the float32 that a kernel is given."""
    exact = torch.as_tensor(values, dtype=None if isinstance(values, torch.Tensor) else torch.float32).double()
    return Rounded(exact, torch.zeros_like(exact))


def online_weights(scores: Rounded, visible: torch.Tensor, rescalings: int) -> Rounded:
    """Return ``exp(score - top)`` along the last dimension as online softmax computes it; 0 where not visible.

    Any common factor of a row cancels in the end, so the maxima may be off. The exponents that one key meets are
    differences of maxima, which only rise: together they are its distance from the top, and each loses 3 units (a
    difference, log2(e) and a product). Each factor loses an exponential's units and those of its product.
    """
    exact = scores.exact.masked_fill(~visible, -torch.inf)
    error = scores.error.masked_fill(~visible, 0.0)
    distance = (exact.amax(-1, keepdim=True) - exact).masked_fill(~visible, 0.0)
    exponent = error + _gamma(3) * (distance + error + error.amax(-1, keepdim=True))
    weights = torch.exp(-distance).masked_fill(~visible, 0.0)
    factors = 1 + _gamma((rescalings + 1) * (EXP_UNITS + 1))
    flushed = visible * (rescalings + 1) * FLUSHED
    return Rounded(weights, weights * (exponent.exp() * factors - 1) + flushed)


def assert_within(actual: torch.Tensor, expected: Rounded) -> None:
    """Fail where a value is further from the exact one than a correct computation may be, or is not finite."""
    ratio = ((actual.double() - expected.exact).abs() / expected.error).nan_to_num(nan=torch.inf)
    assert float(ratio.max()) <= 1, f"the error is {float(ratio.max()):.3g} times the bound"


def _stored(exact: torch.Tensor, error: torch.Tensor, unit: float = UNIT, lost: float = UNDERFLOW) -> Rounded:
    """Return values after one rounding: relative to the computed value, or absolute near 0."""
    return Rounded(exact, error + unit * (exact.abs() + error) + lost)


def _gamma(operations: float) -> float:
    return float(gamma(torch.tensor(operations, dtype=torch.float64), UNIT))
