"""Rounding of float32 numbers to the types of a case: to nearest even, clamped, divided by the scale first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz_attn.case.parts import DTypeName
from fuzz_attn.inputs.storage import TORCH_DTYPES, UNSIGNED, rounded

QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
NARROW: tuple[DTypeName, ...] = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
SEEDS = st.integers(0, 2**32 - 1)


def numbers_and_bits(dtype: DTypeName) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return all finite numbers from 0 on of a type in ascending order, and their bits."""
    size = TORCH_DTYPES[dtype].itemsize
    bits = np.arange(2 ** (8 * size - 1))
    memory = bits.astype(UNSIGNED[size]).view(np.uint8)
    numbers = torch.from_numpy(memory).view(TORCH_DTYPES[dtype]).double().numpy()
    finite = np.isfinite(numbers)
    return numbers[finite], bits[finite]


def nearest(exact: npt.NDArray[np.float64], dtype: DTypeName) -> npt.NDArray[np.int64]:
    """Return the bits of the nearest finite number, on a tie the one with even bits, by search through all numbers."""
    numbers, bits = numbers_and_bits(dtype)
    size = np.minimum(np.abs(exact), numbers[-1])
    above = np.clip(np.searchsorted(numbers, size), 1, len(numbers) - 1)
    below = above - 1
    down, up = size - numbers[below], numbers[above] - size
    chosen = np.where((down < up) | ((down == up) & (bits[below] % 2 == 0)), below, above)
    sign = np.int64(1) << (8 * TORCH_DTYPES[dtype].itemsize - 1)
    signed: npt.NDArray[np.int64] = bits[chosen] + np.where(np.signbit(exact), sign, 0)
    return signed


def awkward_numbers(seed: int, dtype: DTypeName) -> npt.NDArray[np.float32]:
    """Return float32 numbers of all sizes, and ties between neighbours of the type with both of their neighbours."""
    generator = np.random.default_rng(seed)
    any_size = generator.integers(0, 2**32, 2000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    numbers, _ = numbers_and_bits(dtype)
    chosen = generator.integers(0, len(numbers) - 1, 2000)
    ties = ((numbers[chosen] + numbers[chosen + 1]) / 2).astype(np.float32)
    close = np.concatenate((ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(1e9)), -ties))
    edges = np.array([0.0, -0.0, 1e38, -1e38, numbers[-1], -numbers[-1]], np.float32)
    return np.concatenate((any_size[np.isfinite(any_size)], close, edges))


@pytest.mark.parametrize("dtype", NARROW)
@settings(QUIET, max_examples=5)
@given(seed=SEEDS)
def test_nearest_even_and_clamped(dtype: DTypeName, seed: int) -> None:
    numbers = awkward_numbers(seed, dtype)
    np.testing.assert_array_equal(rounded(numbers, dtype).astype(np.int64), nearest(numbers.astype(np.float64), dtype))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@settings(QUIET, max_examples=10)
@given(seed=SEEDS, scale=st.sampled_from((0.3, 1.7, 2.0**-8, 11.0, 2.0**126, 2.0**-126, 1e-30)))
def test_stored_number_times_scale_is_the_number(dtype: DTypeName, seed: int, scale: float) -> None:
    numbers = awkward_numbers(seed, dtype)
    # A quotient of floats in double, rounded to float32, is the correctly rounded float32 quotient.
    with np.errstate(over="ignore"):
        quotients = (numbers.astype(np.float64) / np.float64(np.float32(scale))).astype(np.float32)
    expected = nearest(quotients.astype(np.float64), dtype)
    np.testing.assert_array_equal(rounded(numbers, dtype, scale).astype(np.int64), expected)


@given(seed=SEEDS)
@settings(QUIET, max_examples=5)
def test_float32_is_kept(seed: int) -> None:
    numbers = awkward_numbers(seed, "float16")
    np.testing.assert_array_equal(rounded(numbers, "float32"), numbers.view(np.uint32))


@pytest.mark.parametrize(
    ("dtype", "number", "stored"),
    [
        ("float16", 1e6, 65504.0),
        ("float16", -1e6, -65504.0),
        ("float16", 65519.0, 65504.0),
        ("float8_e4m3fn", 449.0, 448.0),
        ("float8_e4m3fn", 1e30, 448.0),
        ("float8_e5m2", -1e30, -57344.0),
        ("float8_e4m3fn", 17.0, 16.0),
        ("float8_e4m3fn", 19.0, 20.0),
        ("float8_e5m2", 9.0, 8.0),
        ("bfloat16", 257.0, 256.0),
        ("bfloat16", 259.0, 260.0),
    ],
)
def test_saturation_and_ties_by_hand(dtype: DTypeName, number: float, stored: float) -> None:
    bits = rounded(np.array([number], np.float32), dtype)
    assert torch.from_numpy(bits.view(np.uint8)).view(TORCH_DTYPES[dtype]).item() == stored


@pytest.mark.parametrize("shape", [(3, 2, 5), (0, 2, 5), (1,), (2, 0)])
def test_shape_is_kept(shape: tuple[int, ...]) -> None:
    bits = rounded(np.ones(shape, np.float32), "float16")
    assert bits.shape == shape
    assert (bits == 0x3C00).all()
