"""Arithmetic on floats and integers against numpy and Python, on tables of edge values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fuzz_attn.simulator.access_checks import FindingKind
from fuzz_attn.simulator.runtime.elementwise import fused_multiply_add
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


def _pairs(values: list[Any], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    table = torch.tensor(values, dtype=dtype)
    return table.repeat_interleave(len(values)), table.repeat(len(values))


def _binary(kernels: Any, x: torch.Tensor, y: torch.Tensor, operation: str, undefined: bool = False) -> torch.Tensor:
    out = torch.empty_like(x)
    with simulate() as session:
        kernels.binary_kernel[(-(-x.numel() // 64),)](x, y, out, x.numel(), OPERATION=operation, BLOCK=64)
    assert {finding.kind for finding in session.findings} == ({FindingKind.UNDEFINED_INTEGER} if undefined else set())
    return out


def _unary(kernels: Any, x: torch.Tensor, operation: str) -> torch.Tensor:
    out = torch.empty_like(x)
    with simulate() as session:
        kernels.unary_kernel[(-(-x.numel() // 64),)](x, out, x.numel(), OPERATION=operation, BLOCK=64)
    assert not session.findings
    return out


def _same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0, atol=0, equal_nan=True)


def _round(values: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values)).to(torch.float32).to(dtype)


FLOAT_TRUTH: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "div_rn": lambda x, y: x / y,
    "mod": np.fmod,
    "max": np.fmax,
    "min": np.fmin,
    "max_nan": np.maximum,
    "min_nan": np.minimum,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "where": lambda x, y: np.where(x > 0, x, y),
    "clamp": lambda x, y: np.fmin(np.fmax(x, -1.0), 2.0),
    "clamp_nan": lambda x, y: np.minimum(np.maximum(x, -1.0), 2.0),
}
HALF_OPERATIONS = ["add", "sub", "mul", "max", "min", "max_nan", "min_nan", "lt", "ge", "where"]


@pytest.mark.parametrize("operation", FLOAT_TRUTH)
def test_float32_arithmetic(kernels: Any, operation: str) -> None:
    x, y = _pairs(FLOATS, torch.float32)
    with np.errstate(all="ignore"):
        truth = FLOAT_TRUTH[operation](x.numpy(), y.numpy())
    _same(_binary(kernels, x, y, operation), _round(truth, torch.float32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("operation", HALF_OPERATIONS)
def test_half_arithmetic_rounds_each_operation(kernels: Any, operation: str, dtype: torch.dtype) -> None:
    x, y = _pairs([*FLOATS[:8], 65504.0, 6e-8, INF, -INF, NAN, 0.33325195, 1.0009766], dtype)
    with np.errstate(all="ignore"):
        truth = FLOAT_TRUTH[operation](x.float().numpy(), y.float().numpy())
    _same(_binary(kernels, x, y, operation), _round(truth, dtype))


def test_fused_multiply_add_rounds_its_sum_only(kernels: Any) -> None:
    # The product of 1 + 2^-12 and its negative needs 25 bits; the sum cancels all but its low ones.
    x, y = _pairs([1 + 2**-12, 1 - 2**-12, -1 - 2**-12, 3.0, -1.0, 1e20, INF, NAN], torch.float32)
    with np.errstate(all="ignore"):
        truth = x.double().numpy() * y.double().numpy() + x.double().numpy()
    _same(_binary(kernels, x, y, "fma"), _round(truth, torch.float32))


@pytest.mark.parametrize("sign", [1, -1])
def test_fused_multiply_add_rounds_once(sign: int) -> None:
    # The product is a little below half of the last bit of the addend, which float64 cannot tell from half of it.
    numbers = [1 + 2**-15, 2**-24 * (1 - 2**-15) * sign, (1 + 2**-23) * sign]
    left, right, addend = np.array(numbers, np.float32)[:, None]
    assert fused_multiply_add(left, right, addend) == addend


def _wrap(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _quotient(x: int, y: int) -> int:
    magnitude = abs(x) // abs(y)
    return magnitude if (x < 0) == (y < 0) else -magnitude


INTEGER_TRUTH: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "max": max,
    "min": min,
    "eq": lambda x, y: int(x == y),
    "lt": lambda x, y: int(x < y),
    "ge": lambda x, y: int(x >= y),
    "where": lambda x, y: x if x > 0 else y,
}


@pytest.mark.parametrize(("dtype", "bits"), [(torch.int8, 8), (torch.int16, 16), (torch.int32, 32), (torch.int64, 64)])
@pytest.mark.parametrize("operation", INTEGER_TRUTH)
def test_signed_integers_wrap(kernels: Any, operation: str, dtype: torch.dtype, bits: int) -> None:
    values = [_wrap(value, bits) for value in INTEGERS] + [2 ** (bits - 1) - 1, -(2 ** (bits - 1))]
    x, y = _pairs(values, dtype)
    truth = [_wrap(INTEGER_TRUTH[operation](a, b), bits) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    _same(_binary(kernels, x, y, operation), torch.tensor(truth, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_division_truncates_and_remainder_follows_the_dividend(kernels: Any, dtype: torch.dtype) -> None:
    x, y = _pairs([value for value in INTEGERS if value], dtype)
    pairs = list(zip(x.tolist(), y.tolist(), strict=True))
    bits = 32 if dtype == torch.int32 else 64
    quotients = [_wrap(_quotient(a, b), bits) for a, b in pairs]
    overflows = (-(2 ** (bits - 1)), -1) in pairs
    _same(_binary(kernels, x, y, "floordiv", overflows), torch.tensor(quotients, dtype=dtype))
    remainders = [a - _quotient(a, b) * b for a, b in pairs]
    _same(_binary(kernels, x, y, "mod"), torch.tensor(remainders, dtype=dtype))


UNSIGNED_TRUTH: dict[str, Callable[..., Any]] = {
    "floordiv": lambda x, y: x // y,
    "mod": lambda x, y: x % y,
    "max": max,
    "min": min,
    "lt": lambda x, y: int(x < y),
    "gt": lambda x, y: int(x > y),
    "shr": lambda x, y: x >> y if y < 32 else None,
    "shl": lambda x, y: (x << y) % 2**32 if y < 32 else None,
    "umulhi": lambda x, y: x * y >> 32,
    "mul": lambda x, y: x * y % 2**32,
}


@pytest.mark.parametrize("operation", UNSIGNED_TRUTH)
def test_unsigned_integers(kernels: Any, operation: str) -> None:
    values = [1, 2, 3, 7, 31, 100, 2**31 - 1, 2**31, 2**32 - 1, 2**32 - 7, 65536]
    x, y = _pairs(values, torch.uint32)
    truth = [UNSIGNED_TRUTH[operation](a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    actual = _binary(kernels, x, y, operation, undefined=None in truth).tolist()
    assert [a for a, t in zip(actual, truth, strict=True) if t is not None] == [t for t in truth if t is not None]


def test_arithmetic_shift_keeps_the_sign(kernels: Any) -> None:
    x, y = _pairs([-(2**31), -7, -1, 0, 5, 31], torch.int32)
    inside = (y >= 0) & (y < 32)
    expected = torch.tensor(
        [a >> b for a, b in zip(x[inside].tolist(), y[inside].tolist(), strict=True)], dtype=torch.int32
    )
    _same(_binary(kernels, x, y, "shr", undefined=True)[inside], expected)


UNARY_TRUTH: dict[str, Callable[..., Any]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "sqrt_rn": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": np.vectorize(math.erf),
}
SPACINGS = {"exp": 3, "log": 4, "exp2": 2, "log2": 3, "sin": 2, "cos": 2, "rsqrt": 2, "erf": 1}
"""Largest distances to the rounded truth, in numbers of the type; 0 for all others. Those of numpy's functions are the
errors that its own accuracy tests allow. A root and a quotient are two roundings; torch's erf is documented with 1."""


@pytest.mark.parametrize("operation", UNARY_TRUTH)
def test_unary_functions(kernels: Any, operation: str) -> None:
    x = torch.tensor(
        [value for value in FLOATS if operation not in ("sin", "cos") or abs(value) < 1e5], dtype=torch.float32
    )
    with np.errstate(all="ignore"):
        truth = UNARY_TRUTH[operation](x.double().numpy())
    actual, expected = _unary(kernels, x, operation), _round(truth, torch.float32)
    if operation in SPACINGS:
        np.testing.assert_array_max_ulp(actual.numpy(), expected.numpy(), maxulp=SPACINGS[operation])
    else:
        _same(actual, expected)


def test_integer_unary(kernels: Any) -> None:
    x = torch.tensor(INTEGERS, dtype=torch.int32)
    _same(_unary(kernels, x, "invert"), ~x)
    _same(_unary(kernels, x, "neg"), -x)
    _same(_unary(kernels, x[x > -(2**31)], "abs"), x[x > -(2**31)].abs())
