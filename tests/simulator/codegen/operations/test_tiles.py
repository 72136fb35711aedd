"""Reductions, scans, rearrangements, dot products and masked loads of tiles against torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl

from fuzz_attn.simulator.session import simulate

KERNELS = "operation_kernels.py"


NAN = float("nan")


def _same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0, atol=0, equal_nan=True)


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
def test_reductions(kernels: Any, operation: str, dtype: torch.dtype, axis: int) -> None:
    x = torch.randint(1, 4, (3, 8, 16), generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = REDUCE_TRUTH[operation](x, axis + 1).to(dtype)
    out = torch.empty(3, 16 if axis == 0 else 8, dtype=dtype)
    with simulate():
        kernels.reduce_kernel[(3,)](x, out, OPERATION=operation, AXIS=axis, ROWS=8, COLUMNS=16)
    _same(out, expected)


@pytest.mark.parametrize("operation", ["argmax", "argmin"])
def test_places_of_truth_values(kernels: Any, operation: str) -> None:
    x = torch.randint(0, 2, (3, 8, 16), generator=torch.Generator().manual_seed(1), dtype=torch.bool)
    out = torch.empty(3, 8, dtype=torch.int32)
    with simulate():
        kernels.reduce_kernel[(3,)](x, out, OPERATION=operation, AXIS=1, ROWS=8, COLUMNS=16)
    _same(out, REDUCE_TRUTH[operation](x.int(), 2).to(torch.int32))


@pytest.mark.parametrize("size", [8, 128])
def test_maximum_ignores_nan_unless_all_are_nan(kernels: Any, size: int) -> None:
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
def test_reduction_by_a_function_that_does_not_commute(kernels: Any, axis: int) -> None:
    x = torch.randint(-2, 3, (3, 8, 8), generator=torch.Generator().manual_seed(3)).float()
    out = torch.empty(3, 8)
    with simulate():
        kernels.reduce_kernel[(3,)](x, out, OPERATION="affine", AXIS=axis, ROWS=8, COLUMNS=8)
    _same(out, _affine(x.movedim(axis + 1, -1))[-1])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("operation", ["cumsum", "cumprod", "affine"])
def test_scans(kernels: Any, operation: str, reverse: bool, axis: int) -> None:
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
def test_rearrangements(kernels: Any, operation: str) -> None:
    x = torch.stack([torch.arange(32), torch.arange(32).flip(0), torch.arange(32) * 3]).to(torch.int32)
    out = torch.empty_like(x)
    with simulate():
        kernels.shape_kernel[(3,)](x, out, OPERATION=operation)
    _same(out, SHAPE_TRUTH[operation](x).to(torch.int32))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_dot_multiplies_exactly_and_adds_in_float32(kernels: Any, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randint(-4, 5, size, generator=generator).to(dtype) for size in ((3, 16, 32), (32, 16)))
    out = torch.empty(3, 16, 16)
    with simulate():
        kernels.dot_kernel[(3,)](a, b, out, M=16, N=16, K=32, PRECISION="ieee")
    _same(out, a.float() @ b.float())


def test_dot_of_integers(kernels: Any) -> None:
    generator = torch.Generator().manual_seed(6)
    a, b = (torch.randint(-128, 128, size, generator=generator).to(torch.int8) for size in ((2, 16, 32), (32, 16)))
    out = torch.empty(2, 16, 16, dtype=torch.int32)
    with simulate():
        kernels.dot_kernel[(2,)](a, b, out, M=16, N=16, K=32, PRECISION="ieee")
    _same(out, (a.int() @ b.int()).to(torch.int32))


@pytest.mark.parametrize(("precision", "lost"), [("ieee", 0.0), ("tf32", 2**-11 + 2**-23), ("tf32x3", 0.0)])
def test_a_dot_product_reads_as_much_of_float32_as_it_says(kernels: Any, precision: str, lost: float) -> None:
    a, out = torch.full((1, 16, 16), 1 + 2**-9 + 2**-11 + 2**-23), torch.empty(1, 16, 16)
    with simulate() as session:
        kernels.dot_kernel[(1,)](a, -torch.eye(16), out, M=16, N=16, K=16, PRECISION=precision)
    _same(out, lost - a)
    assert {dot.precision for kernel in session.arithmetic for dot in kernel.dots} == {precision}
    with simulate(session.simulator) as session:
        kernels.dot_kernel[(1,)](a.bfloat16(), torch.eye(16).bfloat16(), out, M=16, N=16, K=16, PRECISION=precision)
    assert {dot.precision for kernel in session.arithmetic for dot in kernel.dots} == {""}, "no float32 is cut"


def _let_through(form: str, rows: int) -> torch.Tensor:
    row, column = torch.arange(rows)[:, None], torch.arange(16)[None, :]
    mask = row % 3 == 1 if form == "rows" else column < 5 if "prefixes" in form else (row * 16 + column) % 7 == 3
    return mask.expand(rows, 16)


@pytest.mark.parametrize("rows", [4, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["rows", "prefixes", "prefixes_literal", "scattered", "scattered_literal", "array"])
def test_what_a_mask_leaves_out_is_the_other_down_to_its_sign(
    kernels: Any, form: str, dtype: torch.dtype, rows: int
) -> None:
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


def _tiles() -> torch.Tensor:
    return torch.randperm(96, generator=torch.Generator().manual_seed(8)).reshape(3, 4, 8).float() % 31 - 15


def _scanned(x: torch.Tensor, dim: int, reverse: bool) -> torch.Tensor:
    """The three scans of `combine_three`, one after the other."""
    moved = (x.flip(dim) if reverse else x).movedim(dim, -1).double()
    parts = [moved, moved + 1, moved * 3]
    running = [[part[..., 0]] for part in parts]
    for place in range(1, moved.shape[-1]):
        (a, b, c), (d, e, f) = (one[-1] for one in running), (part[..., place] for part in parts)
        for one, value in zip(running, (a * d, b * d + e, torch.maximum(c, f)), strict=True):
            one.append(value)
    results = [torch.stack(one, -1).movedim(-1, dim) for one in running]
    return torch.stack([one.flip(dim) if reverse else one for one in results], 1).float()


@pytest.mark.parametrize(("dim", "reverse"), [(0, False), (0, True), (1, False), (1, True)])
def test_a_scan_of_three_tiles(kernels: Any, dim: int, reverse: bool) -> None:
    x = _tiles().clamp(-2, 2)
    out = torch.empty(3, 3, 4, 8)
    with simulate():
        kernels.tile_kernel[(3,)](x, out, OPERATION="scan", DIM=dim, FLAG=reverse)
    _same(out, _scanned(x, dim + 1, reverse))


has_cat_of_axes = pytest.mark.skipif(
    "dim" not in inspect.signature(tl.cat).parameters, reason="Triton 3.6 has no tl.cat along an axis"
)


@pytest.mark.parametrize(
    ("operation", "dim"),
    [
        pytest.param("cat", 0, marks=has_cat_of_axes),
        pytest.param("cat", 1, marks=has_cat_of_axes),
        ("gather", 0),
        ("gather", 1),
        ("flip", 0),
    ],
)
def test_rearrangements_along_an_axis(kernels: Any, operation: str, dim: int) -> None:
    x = _tiles()
    places = (torch.arange(32).view(4, 8) * 5 + torch.arange(3).view(3, 1, 1)) % (4 if dim == 0 else 8)
    expected = {
        "cat": torch.cat([x, -x], dim + 1),
        "gather": x.gather(dim + 1, places),
        "flip": x.flip(dim + 1),
    }[operation]
    out = torch.empty_like(expected)
    with simulate():
        kernels.tile_kernel[(3,)](x, out, OPERATION=operation, DIM=dim, FLAG=False)
    _same(out, expected)


@pytest.mark.parametrize("descending", [False, True])
def test_a_sort_of_rows(kernels: Any, descending: bool) -> None:
    x, out = _tiles(), torch.empty(3, 4, 8)
    with simulate():
        kernels.tile_kernel[(3,)](x, out, OPERATION="sort", DIM=1, FLAG=descending)
    _same(out, x.sort(2, descending=descending).values)


def test_the_largest_of_each_row(kernels: Any) -> None:
    x, out = _tiles(), torch.empty(3, 4, 2)
    with simulate():
        kernels.tile_kernel[(3,)](x, out, OPERATION="topk", DIM=1, FLAG=False)
    _same(out, x.topk(2, 2).values)


@pytest.mark.parametrize("size", [0, 20, 32])
def test_a_histogram_counts_where_its_mask_holds(kernels: Any, size: int) -> None:
    x = torch.randint(-2, 10, (3, 32), generator=torch.Generator().manual_seed(9)).to(torch.int32)
    out = torch.empty(3, 8, dtype=torch.int32)
    with simulate():
        kernels.masked_histogram_kernel[(3,)](x, out, size)
    counted = [[int((row[:size] == number).sum()) for number in range(8)] for row in x]
    assert out.tolist() == counted
