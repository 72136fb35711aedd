"""Rounding to narrow formats by table, compared with ml_dtypes on all upper halves of a float32."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fuzz_attn.simulator.runtime import float_formats

FP8 = {"f8E4M3FN": (ml_dtypes.float8_e4m3fn, 448.0), "f8E5M2": (ml_dtypes.float8_e5m2, 57344.0)}


@pytest.mark.parametrize("element", FP8)
@pytest.mark.parametrize("lower", [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_fp8_rounds_as_the_direct_conversion(element: str, lower: int) -> None:
    bits = (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)) | np.uint32(lower)
    values = bits.view(np.float32)
    dtype, largest = FP8[element]
    with np.errstate(all="ignore"):
        expected = np.clip(values, -np.float32(largest), np.float32(largest)).astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(float_formats.round_fp8(values, element), expected)
    signs = np.signbit(float_formats.round_fp8(values, element))
    assert (signs == np.signbit(expected)).all()


@pytest.mark.parametrize("element", FP8)
def test_the_bits_of_every_fp8_value_come_back(element: str) -> None:
    bits = np.arange(256, dtype=np.uint8)
    values = float_formats.from_bits(bits, element)
    number = ~np.isnan(values)
    again = float_formats.to_bits(values, element)
    np.testing.assert_array_equal(again[number], bits[number])
    assert np.isnan(float_formats.from_bits(again[~number], element)).all()


@pytest.mark.parametrize("size", [64, 200_000])
def test_bf16_rounds_to_nearest_even_in_every_size(size: int) -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, size, dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    expected = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) & np.uint32(0xFFFF0000)
    with np.errstate(invalid="ignore"):  # as in a launch; some of the numbers are signalling NaNs
        rounded = float_formats.round_bf16(values)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(rounded.view(np.uint32)[number], expected[number])
    assert np.isnan(rounded[~number]).all()
