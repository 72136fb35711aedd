"""Every operation against a numpy or torch truth, on tables of edge values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl

from fuzz_attn.errors import LoopLimitError
from fuzz_attn.simulator import FindingKind, simulate
from tests.simulator import operation_kernels as kernels

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


def _binary(x: torch.Tensor, y: torch.Tensor, operation: str) -> torch.Tensor:
    out = torch.empty_like(x)
    with simulate() as session:
        kernels.binary_kernel[(-(-x.numel() // 64),)](x, y, out, x.numel(), OPERATION=operation, BLOCK=64)
    assert not session.findings
    return out


def _unary(x: torch.Tensor, operation: str) -> torch.Tensor:
    out = torch.empty_like(x)
    with simulate() as session:
        kernels.unary_kernel[(-(-x.numel() // 64),)](x, out, x.numel(), OPERATION=operation, BLOCK=64)
    assert not session.findings
    return out


def _cast(
    x: torch.Tensor, to: torch.dtype, name: Any, rounding: str | None = None, bitcast: bool = False
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
def test_float32_arithmetic(operation: str) -> None:
    x, y = _pairs(FLOATS, torch.float32)
    with np.errstate(all="ignore"):
        truth = FLOAT_TRUTH[operation](x.numpy(), y.numpy())
    _same(_binary(x, y, operation), _round(truth, torch.float32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("operation", HALF_OPERATIONS)
def test_half_arithmetic_rounds_each_operation(operation: str, dtype: torch.dtype) -> None:
    x, y = _pairs([*FLOATS[:8], 65504.0, 6e-8, INF, -INF, NAN, 0.33325195, 1.0009766], dtype)
    with np.errstate(all="ignore"):
        truth = FLOAT_TRUTH[operation](x.float().numpy(), y.float().numpy())
    _same(_binary(x, y, operation), _round(truth, dtype))


def test_fused_multiply_add_rounds_once() -> None:
    x, y = _pairs([1 + 2**-12, 1 - 2**-12, 3.0, -1.0, 1e20, INF, NAN], torch.float32)
    with np.errstate(all="ignore"):
        truth = x.double().numpy() * y.double().numpy() + x.double().numpy()
    _same(_binary(x, y, "fma"), _round(truth, torch.float32))


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
def test_signed_integers_wrap(operation: str, dtype: torch.dtype, bits: int) -> None:
    values = [_wrap(value, bits) for value in INTEGERS] + [2 ** (bits - 1) - 1, -(2 ** (bits - 1))]
    x, y = _pairs(values, dtype)
    truth = [_wrap(INTEGER_TRUTH[operation](a, b), bits) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    _same(_binary(x, y, operation), torch.tensor(truth, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_division_truncates_and_remainder_follows_the_dividend(dtype: torch.dtype) -> None:
    x, y = _pairs([value for value in INTEGERS if value], dtype)
    pairs = list(zip(x.tolist(), y.tolist(), strict=True))
    bits = 32 if dtype == torch.int32 else 64
    quotients = [_wrap(_quotient(a, b), bits) for a, b in pairs]
    _same(_binary(x, y, "floordiv"), torch.tensor(quotients, dtype=dtype))
    remainders = [a - _quotient(a, b) * b for a, b in pairs]
    _same(_binary(x, y, "mod"), torch.tensor(remainders, dtype=dtype))


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
def test_unsigned_integers(operation: str) -> None:
    values = [1, 2, 3, 7, 31, 100, 2**31 - 1, 2**31, 2**32 - 1, 2**32 - 7, 65536]
    x, y = _pairs(values, torch.uint32)
    truth = [UNSIGNED_TRUTH[operation](a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    actual = _binary(x, y, operation).tolist()
    assert [a for a, t in zip(actual, truth, strict=True) if t is not None] == [t for t in truth if t is not None]


def test_arithmetic_shift_keeps_the_sign() -> None:
    x, y = _pairs([-(2**31), -7, -1, 0, 5, 31], torch.int32)
    inside = (y >= 0) & (y < 32)
    expected = torch.tensor(
        [a >> b for a, b in zip(x[inside].tolist(), y[inside].tolist(), strict=True)], dtype=torch.int32
    )
    _same(_binary(x, y, "shr")[inside], expected)


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
ROUNDED_ONCE = {"neg", "abs", "sqrt", "sqrt_rn", "floor", "ceil"}


@pytest.mark.parametrize("operation", UNARY_TRUTH)
def test_unary_functions(operation: str) -> None:
    x = torch.tensor(
        [value for value in FLOATS if operation not in ("sin", "cos") or abs(value) < 1e5], dtype=torch.float32
    )
    with np.errstate(all="ignore"):
        truth = UNARY_TRUTH[operation](x.double().numpy())
    actual, expected = _unary(x, operation), _round(truth, torch.float32)
    if operation in ROUNDED_ONCE:
        _same(actual, expected)
    else:
        # numpy's own tests hold its vectorised functions to 4 units in the last place: exp 3, log 4, sin and cos 2.
        torch.testing.assert_close(actual, expected, rtol=4 * 2.0**-23, atol=4 * 2.0**-149, equal_nan=True)


def test_integer_unary() -> None:
    x = torch.tensor(INTEGERS, dtype=torch.int32)
    _same(_unary(x, "invert"), ~x)
    _same(_unary(x, "neg"), -x)
    _same(_unary(x[x > -(2**31)], "abs"), x[x > -(2**31)].abs())


# Casts.

ALL_16 = torch.arange(65536, dtype=torch.int32).to(torch.uint16)
ALL_8 = torch.arange(256, dtype=torch.int32).to(torch.uint8)
HALVES = [torch.float16, torch.bfloat16]
FP8 = [(torch.float8_e4m3fn, tl.float8e4nv, 448.0), (torch.float8_e5m2, tl.float8e5, 57344.0)]


@pytest.mark.parametrize("dtype", HALVES)
def test_all_half_bit_patterns_widen(dtype: torch.dtype) -> None:
    x = ALL_16.view(dtype)
    _same(_cast(x, torch.float32, tl.float32), x.float())


@pytest.mark.parametrize(
    ("source", "target", "name"),
    [(torch.float16, torch.bfloat16, tl.bfloat16), (torch.bfloat16, torch.float16, tl.float16)],
)
def test_all_half_bit_patterns_to_the_other_half(source: torch.dtype, target: torch.dtype, name: Any) -> None:
    x = ALL_16.view(source)
    _same(_cast(x, target, name), x.float().to(target))


def _saturated(x: torch.Tensor, dtype: torch.dtype, largest: float) -> torch.Tensor:
    return x.float().clamp(-largest, largest).to(dtype)


@pytest.mark.parametrize("source", HALVES)
@pytest.mark.parametrize(("dtype", "name", "largest"), FP8)
def test_all_half_bit_patterns_to_fp8_saturate(
    source: torch.dtype, dtype: torch.dtype, name: Any, largest: float
) -> None:
    x = ALL_16.view(source)
    _same(_cast(x, dtype, name), _saturated(x, dtype, largest))


@pytest.mark.parametrize(("dtype", "name", "largest"), FP8)
@pytest.mark.parametrize(
    ("target", "target_name"), [(torch.float32, tl.float32), (torch.float16, tl.float16), (torch.bfloat16, tl.bfloat16)]
)
def test_all_fp8_bit_patterns_widen(
    dtype: torch.dtype, name: Any, largest: float, target: torch.dtype, target_name: Any
) -> None:
    x = ALL_8.view(dtype)
    _same(_cast(x, target, target_name), x.float().to(target))


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
def test_float32_rounds_to_nearest_even(dtype: torch.dtype, name: Any) -> None:
    x = _around_halves(dtype)
    expected = x.to(dtype)
    _same(_cast(x, dtype, name), expected)
    small = x[:900]
    _same(_cast(small, dtype, name), expected[:900])


@pytest.mark.parametrize(("dtype", "name", "largest"), FP8)
def test_float32_to_fp8_rounds_to_nearest_even_and_saturates(dtype: torch.dtype, name: Any, largest: float) -> None:
    x = _around_halves(torch.float16)
    _same(_cast(x, dtype, name), _saturated(x, dtype, largest))


def test_rounding_towards_zero() -> None:
    x = torch.tensor([1.124, -1.124, 1.9, -1.9, 3.0, 57343.0, 0.0, NAN, 1.0], dtype=torch.float32)
    actual = _cast(x, torch.float8_e5m2, tl.float8e5, rounding="rtz").float()
    expected = torch.tensor([1.0, -1.0, 1.75, -1.75, 3.0, 49152.0, 0.0, NAN, 1.0])
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", HALVES)
def test_bits_survive_a_bitcast(dtype: torch.dtype) -> None:
    number = ALL_16.view(dtype).float()
    quiet = ALL_16[~number.isnan()]
    back = _cast(quiet.view(dtype), torch.int16, tl.int16, bitcast=True)
    assert torch.equal(back, quiet.view(torch.int16))


def test_float32_bitcast() -> None:
    x = torch.tensor(FLOATS, dtype=torch.float32)
    assert torch.equal(_cast(x, torch.int32, tl.int32, bitcast=True), x.view(torch.int32))


def test_float_to_integer_saturates_and_truncates() -> None:
    x = torch.tensor([0.0, 1.9, -1.9, 2.5, 3e9, -3e9, INF, -INF, NAN, 2147483520.0], dtype=torch.float32)
    expected = [0, 1, -1, 2, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 0, 2147483520]
    assert _cast(x, torch.int32, tl.int32).tolist() == expected


INTEGER_CASTS = [
    (torch.int32, torch.int8, tl.int8), (torch.int32, torch.int64, tl.int64), (torch.int8, torch.int32, tl.int32),
    (torch.uint8, torch.int32, tl.int32), (torch.int64, torch.int32, tl.int32), (torch.int32, torch.int16, tl.int16),
    (torch.int32, torch.float32, tl.float32), (torch.int64, torch.float32, tl.float32),
    (torch.uint8, torch.float32, tl.float32),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target", "name"), INTEGER_CASTS)
def test_integer_casts(source: torch.dtype, target: torch.dtype, name: Any) -> None:
    x = torch.tensor([*INTEGERS, 255, 128, 127, -128, 2**24 + 1], dtype=torch.int64).to(source)
    _same(_cast(x, target, name), x.to(target))


# Tiles.

REDUCE_TRUTH: dict[str, Callable[..., Any]] = {
    "sum": lambda x, axis: x.sum(axis),
    "max": lambda x, axis: x.amax(axis),
    "min": lambda x, axis: x.amin(axis),
    "argmax": lambda x, axis: x.argmax(axis),
    "argmin": lambda x, axis: x.argmin(axis),
    "product": lambda x, axis: x.prod(axis),
    "first_clamped": lambda x, axis: x.select(axis, 0).clamp(min=2),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
@pytest.mark.parametrize("operation", REDUCE_TRUTH)
def test_reductions(operation: str, dtype: torch.dtype, axis: int) -> None:
    x = torch.randint(1, 4, (3, 8, 16), generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = REDUCE_TRUTH[operation](x, axis + 1).to(dtype)
    out = torch.empty(3, 16 if axis == 0 else 8, dtype=dtype)
    with simulate():
        kernels.reduce_kernel[(3,)](x, out, OPERATION=operation, AXIS=axis, ROWS=8, COLUMNS=16)
    _same(out, expected)


@pytest.mark.parametrize("operation", ["argmax", "argmin"])
def test_places_of_truth_values(operation: str) -> None:
    x = torch.randint(0, 2, (3, 8, 16), generator=torch.Generator().manual_seed(1), dtype=torch.bool)
    out = torch.empty(3, 8, dtype=torch.int32)
    with simulate():
        kernels.reduce_kernel[(3,)](x, out, OPERATION=operation, AXIS=1, ROWS=8, COLUMNS=16)
    _same(out, REDUCE_TRUTH[operation](x.int(), 2).to(torch.int32))


@pytest.mark.parametrize("size", [8, 128])
def test_maximum_ignores_nan_unless_all_are_nan(size: int) -> None:
    x = torch.randn(2, 16, size, generator=torch.Generator().manual_seed(2))
    x[0, 0, 3], x[1, 2, :] = NAN, NAN
    out = torch.empty(2, 16)
    with simulate():
        kernels.reduce_kernel[(2,)](x, out, OPERATION="max", AXIS=1, ROWS=16, COLUMNS=size)
    _same(out, torch.from_numpy(np.fmax.reduce(x.numpy(), axis=2)))


def _affine(values: torch.Tensor) -> list[torch.Tensor]:
    """The running composition of the maps t -> v t + v."""
    scale, shift = values[..., 0], values[..., 0]
    running = [shift]
    for index in range(1, values.shape[-1]):
        scale, shift = scale * values[..., index], shift * values[..., index] + values[..., index]
        running.append(shift)
    return running


@pytest.mark.parametrize("axis", [0, 1])
def test_reduction_by_a_function_that_does_not_commute(axis: int) -> None:
    x = torch.randint(-2, 3, (3, 8, 8), generator=torch.Generator().manual_seed(3)).float()
    out = torch.empty(3, 8)
    with simulate():
        kernels.reduce_kernel[(3,)](x, out, OPERATION="affine", AXIS=axis, ROWS=8, COLUMNS=8)
    _same(out, _affine(x.movedim(axis + 1, -1))[-1])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("operation", ["cumsum", "cumprod", "affine"])
def test_scans(operation: str, reverse: bool, axis: int) -> None:
    x = torch.randint(-2, 3, (3, 8, 16), generator=torch.Generator().manual_seed(4)).float()
    out = torch.empty_like(x)
    with simulate():
        kernels.scan_kernel[(3,)](x, out, OPERATION=operation, AXIS=axis, REVERSE=reverse, ROWS=8, COLUMNS=16)
    source = x.flip(axis + 1) if reverse else x
    if operation == "affine":
        expected = torch.stack(_affine(source.movedim(axis + 1, -1)), -1).movedim(-1, axis + 1)
    else:
        expected = getattr(torch, operation)(source, axis + 1)
    _same(out, expected.flip(axis + 1) if reverse else expected)


def _row_sums(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1, 4, 8).sum(2, keepdim=True).expand(-1, 4, 8).reshape(-1, 32)


SHAPE_TRUTH: dict[str, Callable[..., Any]] = {
    "trans": lambda x: x.view(-1, 4, 8).mT.reshape(-1, 32),
    "permute": lambda x: x.view(-1, 2, 4, 4).permute(0, 3, 1, 2).reshape(-1, 32),
    "join": lambda x: x.view(-1, 16, 2).flip(2).reshape(-1, 32),
    "gather": lambda x: x.flip(1),
    "histogram": lambda x: torch.stack([torch.bincount(row % 8, minlength=32) for row in x]),
    "sort": lambda x: ((x * 7) % 32).sort(1).values,
    "flip": lambda x: x.flip(1),
    "broadcast": _row_sums,
}


@pytest.mark.parametrize("operation", SHAPE_TRUTH)
def test_rearrangements(operation: str) -> None:
    x = torch.stack([torch.arange(32), torch.arange(32).flip(0), torch.arange(32) * 3]).to(torch.int32)
    out = torch.empty_like(x)
    with simulate():
        kernels.shape_kernel[(3,)](x, out, OPERATION=operation)
    _same(out, SHAPE_TRUTH[operation](x).to(torch.int32))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_dot_multiplies_exactly_and_adds_in_float32(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randint(-4, 5, size, generator=generator).to(dtype) for size in ((3, 16, 32), (32, 16)))
    out = torch.empty(3, 16, 16)
    with simulate():
        kernels.dot_kernel[(3,)](a, b, out, M=16, N=16, K=32, PRECISION="ieee")
    _same(out, a.float() @ b.float())


def test_dot_of_integers() -> None:
    generator = torch.Generator().manual_seed(6)
    a, b = (torch.randint(-128, 128, size, generator=generator).to(torch.int8) for size in ((2, 16, 32), (32, 16)))
    out = torch.empty(2, 16, 16, dtype=torch.int32)
    with simulate():
        kernels.dot_kernel[(2,)](a, b, out, M=16, N=16, K=32, PRECISION="ieee")
    _same(out, (a.int() @ b.int()).to(torch.int32))


@pytest.mark.parametrize("precision", ["ieee", "tf32", "tf32x3"])
def test_a_dot_product_reads_all_of_float32(precision: str) -> None:
    a, out = torch.full((1, 16, 16), 1 + 2**-12), torch.empty(1, 16, 16)
    with simulate():
        kernels.dot_kernel[(1,)](a, torch.eye(16), out, M=16, N=16, K=16, PRECISION=precision)
    _same(out, a)


def _let_through(form: str, rows: int) -> torch.Tensor:
    row, column = torch.arange(rows)[:, None], torch.arange(16)[None, :]
    mask = row % 3 == 1 if form == "rows" else column < 5 if "prefixes" in form else (row * 16 + column) % 7 == 3
    return mask.expand(rows, 16)


@pytest.mark.parametrize("rows", [4, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["rows", "prefixes", "prefixes_literal", "scattered", "scattered_literal", "array"])
def test_what_a_mask_leaves_out_is_the_other_down_to_its_sign(form: str, dtype: torch.dtype, rows: int) -> None:
    step = 1 if form == "rows" or "prefixes" in form else 2
    x = torch.randint(1, 100, (rows * 16 * step,), generator=torch.Generator().manual_seed(8)).to(dtype)
    for filler in (-0.0, 0.0, 4.0):
        out = torch.empty(rows, 16)
        with simulate() as session:
            kernels.filler_kernel[(1,)](x, out, filler, FORM=form, ROWS=rows, COLUMNS=16)
        assert not session.findings
        other = torch.tensor(kernels.MINUS_ZERO if "literal" in form else filler)
        if form == "array":
            other = torch.arange(rows * 16).view(rows, 16)
        expected = torch.where(_let_through(form, rows), x[::step].view(rows, 16), other.to(dtype))
        torch.testing.assert_close(out, 1 / expected.float(), rtol=0, atol=0)


def _atomic_truth(operation: str, target: list[int], x: list[int]) -> tuple[list[int], list[int]]:
    old = [0] * len(x)
    updates: dict[str, Callable[[int, int], int]] = {
        "add": lambda a, b: a + b, "max": max, "min": min, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b, "xchg": lambda a, b: b,
    }  # fmt: skip
    for index, value in enumerate(x):
        if index % 16 != 3:
            slot = index % len(target)
            old[index], target[slot] = target[slot], updates[operation](target[slot], value)
    return target, old


ARITHMETIC_ATOMICS = ["add", "max", "min", "xchg"]
ATOMICS = [(torch.int32, name) for name in [*ARITHMETIC_ATOMICS, "and", "or", "xor"]]
ATOMICS += [(torch.float32, name) for name in ARITHMETIC_ATOMICS]


@pytest.mark.parametrize(("dtype", "operation"), ATOMICS)
def test_atomics_happen_in_the_order_of_programs(dtype: torch.dtype, operation: str) -> None:
    x = torch.randint(-9, 10, (64,), generator=torch.Generator().manual_seed(7))
    target = torch.arange(5) - 2
    final, old = _atomic_truth(operation, target.tolist(), x.tolist())
    memory, seen = target.to(dtype), torch.zeros(64, dtype=dtype)
    with simulate() as session:
        kernels.atomic_kernel[(4,)](memory, seen, x.to(dtype), OPERATION=operation, BLOCK=16, SLOTS=5)
    assert not session.findings
    assert memory.tolist() == final
    # Triton makes a float's maximum of two integer atomics, one for each sign, so other programs come in between.
    if dtype == torch.int32 or operation not in ("max", "min"):
        assert seen.tolist() == old


def test_a_spin_lock_works() -> None:
    lock, count, log = (torch.zeros(size, dtype=torch.int32) for size in (1, 1, 5))
    with simulate() as session:
        kernels.lock_kernel[(5,)](lock, count, log)
    # The race sanitizer does not know that a lock orders accesses.
    assert {finding.kind for finding in session.findings} == {FindingKind.RACE}
    assert (lock.item(), count.item(), log.tolist()) == (0, 5, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("operation", ["for", "while"])
def test_a_loop_that_would_hang_is_an_error(operation: str) -> None:
    limits = torch.tensor([3, 2**31 - 1], dtype=torch.int32)
    with simulate(), pytest.raises(LoopLimitError, match="the limit is 65536"):
        kernels.control_kernel[(2,)](torch.zeros(2, dtype=torch.int32), limits, OPERATION=operation)


# Control flow.


def _branches(value: int) -> int:
    return value * 100 if value > 6 else value * 10 if value > 3 else value


def _halved(limit: int) -> int:
    return sum(outer.bit_length() - 1 for outer in range(limit, 0, -3))


def _downwards(limit: int) -> int:
    total = 0
    for i in range(limit, 0, -2):
        total = total * 2 + i
    return total


def _nested(program: int, limit: int) -> int:
    return sum(j + i for i in range(program % 3, limit, 2) for j in range(i, limit))


def _returned_in_branch(program: int, limit: int) -> int | None:
    if limit <= 4:
        return -limit * 2
    return None if program % 2 == 0 else (7 + limit) * 2


# What each program stores, from (program, limit, all limits); None where it returns before its store.
CONTROL: dict[str, Callable[[int, int, list[int]], int | None]] = {
    "for": lambda program, limit, limits: sum(i * program for i in range(limit)),
    "nested": lambda program, limit, limits: _nested(program, limit),
    "negative_step": lambda program, limit, limits: _downwards(limit),
    "while": lambda program, limit, limits: sum(range(limit, 0, -(program + 1))),
    "pointer_while": lambda program, limit, limits: sum(limits[program : program + limit]) * 100 + 1,
    "pointer_for": lambda program, limit, limits: sum(limits[program : program + limit]) * 4,
    "nested_while": lambda program, limit, limits: _halved(limit),
    "if": lambda program, limit, limits: limit * 3 if limit % 2 == 0 else sum(limits[:limit]),
    "early_return": lambda program, limit, limits: None if limit > 4 or program == 2 else limit + 1100,
    "return_in_branch": lambda program, limit, limits: _returned_in_branch(program, limit),
    "helper_returns": lambda program, limit, limits: _branches(limit) + _branches(program),
    "store_in_branch": lambda program, limit, limits: -1 if limit > 3 else limit,
}
LIMITS = [[5, 0, 3, 7, 1, 8, 2, 4, 6], [3] * 9, [0] * 9, [8, 8, 8, 8, 0, 0, 0, 0, 1]]


@pytest.mark.parametrize("operation", CONTROL)
@pytest.mark.parametrize("limits", LIMITS, ids=["mixed", "equal", "zero", "two-sided"])
def test_divergent_control_flow(operation: str, limits: list[int]) -> None:
    out = torch.full((9,), -12345, dtype=torch.int32)
    with simulate() as session:
        kernels.control_kernel[(9,)](out, torch.tensor(limits, dtype=torch.int32), OPERATION=operation)
    truth = [CONTROL[operation](program, limit, limits) for program, limit in enumerate(limits)]
    assert out.tolist() == [-12345 if value is None else value for value in truth]
    assert not session.findings
