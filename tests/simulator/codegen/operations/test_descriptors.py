"""Tensor descriptors, made in a kernel or by its launcher."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from fuzz_attn.simulator.findings import FindingKind
from fuzz_attn.simulator.session import simulate

KERNELS = "foreign_kernels.py"


def _matrix(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(1.0, rows * columns + 1).reshape(rows, columns).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
@pytest.mark.parametrize(("rows", "columns"), [(32, 32), (20, 24), (33, 48), (1, 16)])
def test_a_tiled_copy_stores_all_elements_and_nothing_else(
    kernels: Any, rows: int, columns: int, dtype: torch.dtype
) -> None:
    x = _matrix(rows, columns, dtype)
    out = torch.zeros(rows + 1, columns, dtype=dtype)
    with simulate() as session:
        kernels.descriptor_kernel[(-(-rows // 16),)](x, out, rows, columns, columns, ROWS=16, COLUMNS=16)
    assert torch.equal(out[:rows], x * 2)
    assert not out[rows:].any()
    assert not session.findings


def test_elements_outside_of_the_shape_are_not_read_though_the_tensor_has_them(kernels: Any) -> None:
    x, out = _matrix(32, 32), torch.zeros(32, 32)
    with simulate() as session:
        kernels.descriptor_kernel[(2,)](x, out, 20, 24, 32, ROWS=16, COLUMNS=16)
    expected = torch.zeros(32, 32)
    expected[:20, :24] = x[:20, :24] * 2
    assert torch.equal(out, expected)
    assert not session.findings


@pytest.mark.parametrize(("row", "column"), [(-3, 0), (0, 8), (5, -4), (-16, 4), (0, 0)])
def test_elements_outside_of_the_shape_are_zero(kernels: Any, interpreter: Any, row: int, column: int) -> None:
    x = _matrix(16, 20)
    out = torch.full((16, 16), 7.0)
    with simulate() as session:
        kernels.shifted_descriptor_kernel[(1,)](x, out, 20, row, column, SIZE=16)
    around = torch.nn.functional.pad(x, (16, 32, 16, 32))
    assert torch.equal(out, around[16 + row : 32 + row, 16 + column : 32 + column])
    assert not session.findings
    (_, interpreted, *_), _ = interpreter.launch(
        kernels.__file__, "shifted_descriptor_kernel", (1,), x, torch.full((16, 16), 7.0), 20, row, column, SIZE=16
    )
    assert torch.equal(out, interpreted)


@pytest.mark.parametrize(("rows", "columns"), [(16, 48), (16, 12), (9, 40)])
def test_a_descriptor_that_branches_and_loops_carry(kernels: Any, interpreter: Any, rows: int, columns: int) -> None:
    x = _matrix(16, columns)
    out = torch.zeros(16, 16)
    with simulate() as session:
        kernels.chosen_descriptor_kernel[(1,)](x, out, rows, columns, SIZE=16)
    arguments = (x, torch.zeros(16, 16), rows, columns)
    (_, interpreted, *_), _ = interpreter.launch(
        kernels.__file__, "chosen_descriptor_kernel", (1,), *arguments, SIZE=16
    )
    assert torch.equal(out, interpreted)
    assert not session.findings


def test_a_tile_of_three_dimensions(kernels: Any) -> None:
    x = torch.arange(2 * 20 * 16.0).reshape(2, 20, 16)
    out = torch.zeros(2, 16, 16)
    with simulate() as session:
        kernels.batched_descriptor_kernel[(2,)](x, out, 20, 320, ROWS=16, COLUMNS=16)
    assert torch.equal(out, x[:, 1:17])
    assert not session.findings


def test_a_shape_that_reaches_outside_of_its_tensor_is_found_at_the_access(kernels: Any) -> None:
    x, out = _matrix(20, 24), torch.zeros(22, 24)
    with simulate() as session:
        kernels.descriptor_kernel[(2,)](x, out, 22, 24, 24, ROWS=16, COLUMNS=16)
    (finding,) = session.findings
    assert (finding.kind, finding.tensor, finding.index) == (FindingKind.OUT_OF_BOUNDS_LOAD, "x_ptr", 480)
    assert "x.load([row, column])" in linecache.getline(finding.location.file, finding.location.line)


def test_strides_that_reach_outside_of_their_tensor_are_found(kernels: Any) -> None:
    x, out = _matrix(20, 24), torch.zeros(20, 32)
    with simulate() as session:
        kernels.descriptor_kernel[(2,)](x, out, 20, 24, 32, ROWS=16, COLUMNS=16)
    assert {(finding.kind, finding.tensor) for finding in session.findings} == {
        (FindingKind.OUT_OF_BOUNDS_LOAD, "x_ptr")
    }


@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_a_descriptor_that_the_launcher_makes(kernels: Any, padding: str) -> None:
    x, out = _matrix(20, 16), torch.zeros(32, 16)
    given = TensorDescriptor.from_tensor(x, [16, 16], padding)
    with simulate() as session:
        for factor in (2, 3):
            kernels.given_descriptor_kernel[(2,)](given, TensorDescriptor.from_tensor(out, [16, 16]), factor, ROWS=16)
            assert torch.equal(out[:20], x * factor)
            assert out[20:].isnan().all() if padding == "nan" else not out[20:].any()
    assert not session.findings


def test_a_descriptor_of_the_launcher_that_reaches_outside_of_its_tensor(kernels: Any) -> None:
    x, out = _matrix(20, 16), torch.zeros(32, 16)
    given = TensorDescriptor(x, [24, 16], [16, 1], [16, 16])
    with simulate() as session:
        kernels.given_descriptor_kernel[(2,)](given, TensorDescriptor.from_tensor(out, [16, 16]), 2, ROWS=16)
    (finding,) = session.findings
    assert (finding.kind, finding.tensor, finding.index) == (FindingKind.OUT_OF_BOUNDS_LOAD, "x", 320)


def test_descriptors_with_other_tiles_are_other_kernels(kernels: Any) -> None:
    x = _matrix(32, 16)
    with simulate() as session:
        for rows in (16, 32, 16):
            out = torch.zeros(32, 16)
            tiles = [TensorDescriptor.from_tensor(tensor, [rows, 16]) for tensor in (x, out)]
            kernels.given_descriptor_kernel[(32 // rows,)](*tiles, 2, ROWS=rows)
            assert torch.equal(out, x * 2)
    assert session.simulator.lowering.count == 2
