"""Kernels whose launches pass tuples, with launchers that make these tuples from plain arguments."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Matrix(NamedTuple):
    """A matrix with contiguous rows; `scale` has a number for each row, or is None."""

    data: torch.Tensor
    row_stride: int
    scale: torch.Tensor | None = None


class Options(NamedTuple):
    """Two matrices, numbers of several types, and an empty tuple."""

    source: Matrix
    target: Matrix
    factor: float
    double: bool
    shifts: tuple[int, ...]
    unused: tuple[()] = ()


@triton.jit
def load_row(matrix, row, columns, num_columns):
    values = tl.load(matrix.data + row * matrix.row_stride + columns, mask=columns < num_columns, other=0.0)
    if matrix.scale is not None:
        values = values * tl.load(matrix.scale + row)
    return values


@triton.jit
def plain_tuple_kernel(pointers, sizes, BLOCK: tl.constexpr):
    """Add two vectors; `pointers` is (x, y, out), `sizes` is (shift, num_elements)."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < sizes[1]
    total = tl.load(pointers[0] + offsets, mask=mask) + tl.load(pointers[1] + offsets, mask=mask)
    tl.store(pointers[2] + offsets, total + sizes[0], mask=mask)


@triton.jit
def named_tuple_kernel(source, target, num_columns, BLOCK: tl.constexpr):
    """Copy rows; a row's scale is applied where `source` has one."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    values = load_row(source, row, columns, num_columns)
    tl.store(target.data + row * target.row_stride + columns, values, mask=columns < num_columns)


@triton.jit
def nested_tuple_kernel(options, num_columns, BLOCK: tl.constexpr):
    """Copy rows as the options say: times the factor, twice if asked, plus each shift."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    values = load_row(options.source, row, columns, num_columns) * options.factor
    if options.double:
        values = values * 2
    for index in tl.static_range(len(options.shifts)):
        values += options.shifts[index]
    target = options.target
    tl.store(target.data + row * target.row_stride + columns, values, mask=columns < num_columns)


@triton.jit
def twice(values):
    return values * 2


@triton.jit
def negated(values):
    return -values


@triton.jit
def constant_tuple_kernel(out_ptr, choice):
    """Store a constant of the tuple, as its function maps it; `choice` is (block, value, function)."""
    BLOCK: tl.constexpr = choice[0]
    tl.store(out_ptr + tl.arange(0, BLOCK), choice[2](tl.full([BLOCK], choice[1], tl.float32)))


@triton.jit
def flat_constant_kernel(out_ptr, block, value):
    """Store a value; both others are made constants by the caller, without an annotation."""
    tl.store(out_ptr + tl.arange(0, block), tl.full([block], value, tl.float32))


def add_plain(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, shift: int) -> None:
    """Store `x + y + shift` to `out`."""
    size = x.numel()
    plain_tuple_kernel[(triton.cdiv(size, 16),)]((x, y, out), (shift, size), BLOCK=16)


def copy_named(x: torch.Tensor, out: torch.Tensor, scale: torch.Tensor | None) -> None:
    """Store `x`, each row times its scale, to `out`."""
    source, target = Matrix(x, x.stride(0), scale), Matrix(out, out.stride(0))
    named_tuple_kernel[(x.shape[0],)](source, target, x.shape[1], BLOCK=16)


def copy_nested(
    x: torch.Tensor,
    out: torch.Tensor,
    factor: float,
    shifts: tuple[int, ...],
    scale: torch.Tensor | None,
    *,
    double: bool,
) -> None:
    """Store `x * scale * factor (* 2) + sum(shifts)` to `out`."""
    source, target = Matrix(x, x.stride(0), scale), Matrix(out, out.stride(0))
    options = Options(source, target, factor, double, shifts)
    nested_tuple_kernel[(x.shape[0],)](options, num_columns=x.shape[1], BLOCK=16)
