"""Whole kernels, as Triton's tutorials teach them, against torch in float64 and against Triton's interpreter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzz_attn.oracle.rounding_model import EXP_UNITS
from fuzz_attn.oracle.roundings import FLUSHED, UNDERFLOW, UNIT, cast_unit, gamma, half_denormal
from fuzz_attn.simulator.session import simulate

KERNELS = "sample_kernels.py"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


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


def _normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _both(
    kernels: Any, interpreter: Any, kernel: str, grid: tuple[int, ...], *arguments: Any, **constants: Any
) -> tuple[list[Any], list[Any]]:
    """The arguments after the launch in the simulator and in the interpreter; the simulator must find nothing."""
    copies = [argument.clone() if isinstance(argument, torch.Tensor) else argument for argument in arguments]
    with simulate() as session:
        getattr(kernels, kernel)[grid](*copies, **constants)
    assert not session.findings
    interpreted, _ = interpreter.launch(str(Path(kernels.__file__)), kernel, grid, *arguments, **constants)
    return copies, interpreted


@pytest.mark.parametrize("columns", [1, 31, 50, 64])
def test_softmax(kernels: Any, interpreter: Any, columns: int) -> None:
    x = _normal(7, columns) * 10
    ours, theirs = _both(
        kernels, interpreter, "softmax_kernel", (7,), x, columns, torch.zeros(7, columns), columns, columns, BLOCK=64
    )
    numerator = (exactly(x) - exactly(x.amax(1, keepdim=True))).exp()
    for out in (ours[2], theirs[2]):
        assert_within(out, numerator / numerator.total(1))


def test_layer_norm(kernels: Any, interpreter: Any) -> None:
    x, weight, bias = _normal(9, 100), _normal(100, seed=1), _normal(100, seed=2)
    arguments = (x, 100, weight, bias, torch.zeros(9, 100), 100, 1e-5)
    ours, theirs = _both(kernels, interpreter, "layer_norm_kernel", (9,), *arguments, BLOCK=32)
    centred = exactly(x) - exactly(x).total(1) / exactly(100.0)
    variance = (centred * centred).total(1) / exactly(100.0)
    scale = exactly(1.0) / (variance + exactly(1e-5)).root()
    for out in (ours[4], theirs[4]):
        assert_within(out, centred * scale * exactly(weight) + exactly(bias))


def _matmul(
    kernels: Any, interpreter: Any, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `a @ b` by the simulator and by the interpreter."""
    (m, k), n = a.shape, b.shape[1]
    arguments = (a, k, 1, b, n, 1, torch.zeros(m, n, dtype=dtype), n, 1, m, n, k)
    ours, theirs = _both(
        kernels, interpreter, "matmul_kernel", (5 * 3,), *arguments, BLOCK_M=16, BLOCK_N=32, BLOCK_K=16, GROUP_M=2
    )
    return ours[6], theirs[6]


@pytest.mark.parametrize("dtype", DTYPES)
def test_matmul_in_grouped_order(kernels: Any, interpreter: Any, dtype: torch.dtype) -> None:
    a, b = _normal(70, 50).to(dtype), _normal(50, 90, seed=1).to(dtype)
    for out in _matmul(kernels, interpreter, a, b, dtype):
        assert_within(out, (exactly(a) @ exactly(b)).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_matmul_of_integers_is_exact_before_it_is_stored(kernels: Any, interpreter: Any, dtype: torch.dtype) -> None:
    """Every order of summation gives these sums, which float32 holds and the narrow types do not."""
    a, b = (_normal(*shape).mul(9).round().to(dtype) for shape in ((70, 50), (50, 90)))
    for out in _matmul(kernels, interpreter, a, b, dtype):
        assert torch.equal(out, (a.double() @ b.double()).to(dtype))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_flash_attention_forward(kernels: Any, interpreter: Any, dtype: torch.dtype, causal: bool) -> None:
    q, k, v = (_normal(3, 77, 32, seed=seed).to(dtype) for seed in range(3))
    arguments = (q, k, v, torch.zeros_like(q), 0.3, 77 * 32, 32, 77)
    ours, theirs = _both(
        kernels,
        interpreter,
        "flash_attention_kernel",
        (5, 3),
        *arguments,
        HEAD_SIZE=32,
        BLOCK_M=16,
        BLOCK_N=16,
        CAUSAL=causal,
    )
    visible = torch.ones(77, 77, dtype=torch.bool).tril(0 if causal else 77)
    scores = exactly(q) @ exactly(k.mT) * exactly(0.3)
    weights = online_weights(scores, visible, rescalings=5)
    expected = (weights.to(dtype) @ exactly(v) / weights.total(-1)).to(dtype)
    for out in (ours[3], theirs[3]):
        assert_within(out, expected)
