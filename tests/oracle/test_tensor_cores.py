"""The error of an emulated tensor core stays within the slack that the cuda backend declares."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from fuzz_attn.backends.cuda import TENSOR_CORE_SLACK

UNIT: Final = 2.0**-24
Array = np.ndarray[Any, np.dtype[np.float64]]


def truncated(numbers: Array, steps: Array | float) -> Array:
    cut: Array = np.trunc(numbers / steps) * steps
    return cut


def exponent(numbers: Array) -> Array:
    """Return the largest power of two that is at most the magnitude of each number; the smallest one for 0."""
    return np.ldexp(0.5, np.frexp(np.maximum(np.abs(numbers), 2.0**-1000))[1])


def dots_of(products: Array, width: int, extra_bits: int) -> Array:
    """Return the sums of rows of exact products as a tensor core computes them, ``width`` products at a time.

    The addends are truncated to ``extra_bits`` below the last float32 bit of the largest of them. Their sum is
    truncated to float32 and is one of the next addends.
    """
    total = np.zeros(len(products))
    for first in range(0, products.shape[1], width):
        addends = np.column_stack((products[:, first : first + width], total))
        step = exponent(addends).max(1) * 2.0 ** -(23 + extra_bits)
        together = truncated(addends, step[:, None]).sum(1)
        total = truncated(together, exponent(together) * 2.0**-23)
    return total


def rows(kind: str, count: int) -> Array:
    """Return 4000 rows of products of two bfloat16 numbers, ``count`` in each, exact in float64."""
    random = np.random.default_rng(7)
    mantissas = random.integers(128, 256, (2, 4000, count)) * 2.0**-7
    sizes = {
        "equal": np.zeros((4000, count)),
        "spread": random.integers(-12, 13, (4000, count)),
        "beside one": np.where(np.arange(count) == 0, 0, -random.integers(20, 26, (4000, 1))),
        "falling": -np.arange(count) // 4 * np.ones((4000, 1)),
    }[kind]
    signs = random.choice((-1.0, 1.0), (4000, count)) if kind == "spread" else 1.0
    return np.asarray(mantissas.prod(0) * 2.0**sizes * signs, dtype=np.float64)


def lost(products: Array, width: int, extra_bits: int) -> Array:
    """Return the error of each sum in unit roundoffs of the sum of its magnitudes."""
    error = np.abs(dots_of(products, width, extra_bits) - products.sum(1))
    return np.asarray(error / np.abs(products).sum(1) / UNIT, dtype=np.float64)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["equal", "spread", "beside one", "falling"])
@pytest.mark.parametrize("count", [2, 3, 16, 17, 64, 200])
@pytest.mark.parametrize(("width", "extra_bits"), [(8, 1), (16, 1), (16, 2)], ids=["Ampere", "worst", "Hopper"])
def test_dots_stay_within_the_declared_slack(kind: str, count: int, width: int, extra_bits: int) -> None:
    assert lost(rows(kind, count), width, extra_bits).max() <= TENSOR_CORE_SLACK * count


def test_one_product_at_a_time_stays_within_the_declared_slack() -> None:
    products = np.zeros((4000, 64 * 16))
    products[:, ::16] = rows("falling", 64)
    assert lost(products, 16, 1).max() <= TENSOR_CORE_SLACK * 64


def test_one_unit_for_each_product_is_too_little() -> None:
    """A sum of 1 and sixteen products: truncating each, and then their sum, loses nearly a whole unit each time."""
    step = 2.0**-24
    block = [(2 - 2.0**-14) * step] * 15 + [(1 - 2.0**-14) * step]
    products = np.array([[1.0] + [0.0] * 15 + block * 12])
    count = np.count_nonzero(products)
    assert 1.0 * count < lost(products, 16, 1).max() <= TENSOR_CORE_SLACK * count
