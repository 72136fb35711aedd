"""Casts between all number formats against torch, on every bit pattern of the narrow ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton.language as tl

from fuzz_attn.simulator.session import simulate

KERNELS = "operation_kernels.py"


INF, NAN = float("inf"), float("nan")
FLOATS = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1.5,
    -2.5,
    3.0,
    1e-45,
    -1e-38,
    1.1754944e-38,
    3.4028235e38,
    -3.4e38,
    INF,
    -INF,
    NAN,
    7.25,
    -0.1,
    100.0,
]
INTEGERS = [0, 1, -1, 2, -2, 3, 7, -7, 8, 31, 100, -100, 2**31 - 1, -(2**31), 2**30, -(2**30), 65536, 12345]


def _cast(
    kernels: Any, x: torch.Tensor, to: torch.dtype, name: Any, rounding: str | None = None, bitcast: bool = False
) -> torch.Tensor:
    out = torch.empty(x.numel(), dtype=to)
    with simulate() as session:
        kernels.cast_kernel[(-(-x.numel() // 1024),)](
            x, out, x.numel(), TO=name, ROUNDING=rounding, BITCAST=bitcast, BLOCK=1024
        )
    assert not session.findings
    return out


def _same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0, atol=0, equal_nan=True)


ALL_16 = torch.arange(65536, dtype=torch.int32).to(torch.uint16)
ALL_8 = torch.arange(256, dtype=torch.int32).to(torch.uint8)
HALVES = [torch.float16, torch.bfloat16]
FP8 = [(torch.float8_e4m3fn, tl.float8e4nv, 448.0), (torch.float8_e5m2, tl.float8e5, 57344.0)]


@pytest.mark.parametrize("dtype", HALVES)
def test_all_half_bit_patterns_widen(kernels: Any, dtype: torch.dtype) -> None:
    x = ALL_16.view(dtype)
    _same(_cast(kernels, x, torch.float32, tl.float32), x.float())


@pytest.mark.parametrize(
    ("source", "target", "name"),
    [(torch.float16, torch.bfloat16, tl.bfloat16), (torch.bfloat16, torch.float16, tl.float16)],
)
def test_all_half_bit_patterns_to_the_other_half(
    kernels: Any, source: torch.dtype, target: torch.dtype, name: Any
) -> None:
    x = ALL_16.view(source)
    _same(_cast(kernels, x, target, name), x.float().to(target))


def _saturated(x: torch.Tensor, dtype: torch.dtype, largest: float) -> torch.Tensor:
    return x.float().clamp(-largest, largest).to(dtype)


@pytest.mark.parametrize("source", HALVES)
@pytest.mark.parametrize(("dtype", "name", "largest"), FP8)
def test_all_half_bit_patterns_to_fp8_saturate(
    kernels: Any, source: torch.dtype, dtype: torch.dtype, name: Any, largest: float
) -> None:
    x = ALL_16.view(source)
    _same(_cast(kernels, x, dtype, name), _saturated(x, dtype, largest))


@pytest.mark.parametrize(("dtype", "name", "largest"), FP8)
@pytest.mark.parametrize(
    ("target", "target_name"), [(torch.float32, tl.float32), (torch.float16, tl.float16), (torch.bfloat16, tl.bfloat16)]
)
def test_all_fp8_bit_patterns_widen(
    kernels: Any, dtype: torch.dtype, name: Any, largest: float, target: torch.dtype, target_name: Any
) -> None:
    x = ALL_8.view(dtype)
    _same(_cast(kernels, x, target, target_name), x.float().to(target))


def _around_halves(dtype: torch.dtype) -> torch.Tensor:
    """float32 values on, just below and just above each value of a 16-bit format and each midpoint of two
    neighbours."""
    finite = ALL_16.view(dtype).float()
    finite = finite[finite.isfinite()].sort().values
    middles = (finite[1:].double() + finite[:-1].double()).div(2).float()
    points = torch.cat([finite, middles])
    infinity = torch.full_like(points, INF)
    return torch.cat(
        [points, torch.nextafter(points, infinity), torch.nextafter(points, -infinity), torch.tensor(FLOATS)]
    )


@pytest.mark.parametrize(("dtype", "name"), [(torch.float16, tl.float16), (torch.bfloat16, tl.bfloat16)])
def test_float32_rounds_to_nearest_even(kernels: Any, dtype: torch.dtype, name: Any) -> None:
    x = _around_halves(dtype)
    expected = x.to(dtype)
    _same(_cast(kernels, x, dtype, name), expected)
    small = x[:900]
    _same(_cast(kernels, small, dtype, name), expected[:900])


@pytest.mark.parametrize(("dtype", "name", "largest"), FP8)
def test_float32_to_fp8_rounds_to_nearest_even_and_saturates(
    kernels: Any, dtype: torch.dtype, name: Any, largest: float
) -> None:
    x = _around_halves(torch.float16)
    _same(_cast(kernels, x, dtype, name), _saturated(x, dtype, largest))


def test_rounding_towards_zero(kernels: Any) -> None:
    x = torch.tensor([1.124, -1.124, 1.9, -1.9, 3.0, 57343.0, 0.0, NAN, 1.0], dtype=torch.float32)
    actual = _cast(kernels, x, torch.float8_e5m2, tl.float8e5, rounding="rtz").float()
    expected = torch.tensor([1.0, -1.0, 1.75, -1.75, 3.0, 49152.0, 0.0, NAN, 1.0])
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", HALVES)
def test_bits_survive_a_bitcast(kernels: Any, dtype: torch.dtype) -> None:
    number = ALL_16.view(dtype).float()
    quiet = ALL_16[~number.isnan()]
    back = _cast(kernels, quiet.view(dtype), torch.int16, tl.int16, bitcast=True)
    assert torch.equal(back, quiet.view(torch.int16))


def test_float32_bitcast(kernels: Any) -> None:
    x = torch.tensor(FLOATS, dtype=torch.float32)
    assert torch.equal(_cast(kernels, x, torch.int32, tl.int32, bitcast=True), x.view(torch.int32))


def test_float_to_integer_saturates_and_truncates(kernels: Any) -> None:
    x = torch.tensor([0.0, 1.9, -1.9, 2.5, 3e9, -3e9, INF, -INF, NAN, 2147483520.0], dtype=torch.float32)
    expected = [0, 1, -1, 2, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 0, 2147483520]
    assert _cast(kernels, x, torch.int32, tl.int32).tolist() == expected


INTEGER_CASTS = [
    (torch.int32, torch.int8, tl.int8), (torch.int32, torch.int64, tl.int64), (torch.int8, torch.int32, tl.int32),
    (torch.uint8, torch.int32, tl.int32), (torch.int64, torch.int32, tl.int32), (torch.int32, torch.int16, tl.int16),
    (torch.int32, torch.float32, tl.float32), (torch.int64, torch.float32, tl.float32),
    (torch.uint8, torch.float32, tl.float32),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target", "name"), INTEGER_CASTS)
def test_integer_casts(kernels: Any, source: torch.dtype, target: torch.dtype, name: Any) -> None:
    x = torch.tensor([*INTEGERS, 255, 128, 127, -128, 2**24 + 1], dtype=torch.int64).to(source)
    _same(_cast(kernels, x, target, name), x.to(target))
