"""Tensor descriptors, made in a kernel or by its launcher."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from fuzz_attn.errors import LoweringError
from fuzz_attn.simulator.access_checks import FindingKind
from fuzz_attn.simulator.session import simulate
from fuzz_attn.simulator.simulator import Simulator

KERNELS = "foreign_kernels.py"
VERSION = tuple(map(int, triton.__version__.split(".")[:2]))


@pytest.fixture
def operations(module_at: Any) -> Any:
    """Return the module with a kernel for each family of operations."""
    return module_at(Path(__file__).parents[2] / "kernels" / "operation_kernels.py")


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
    with simulate(Simulator()) as session:
        for rows in (16, 32, 16):
            out = torch.zeros(32, 16)
            tiles = [TensorDescriptor.from_tensor(tensor, [rows, 16]) for tensor in (x, out)]
            kernels.given_descriptor_kernel[(32 // rows,)](*tiles, 2, ROWS=rows)
            assert torch.equal(out, x * 2)
    assert session.simulator.lowering.count == 2


@pytest.mark.parametrize("padding", ["zero", "nan"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_the_padding_of_a_descriptor_in_each_type(operations: Any, dtype: torch.dtype, padding: str) -> None:
    x, out = _matrix(6, 20).fmod(9).to(dtype), torch.zeros(8, 16, dtype=dtype)
    with simulate() as session:
        operations.padded_descriptor_kernel[(1,)](x, out, 6, 20, PADDING=padding)
    outside = float("nan") if padding == "nan" else 0.0
    expected = torch.full((8, 16), outside)
    expected[:5] = x.float()[1:, 4:]
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=0, equal_nan=True)
    assert not session.findings


@pytest.mark.skipif(VERSION <= (3, 6), reason="Triton 3.6 makes no fp8 constants")
def test_the_nan_padding_of_a_given_descriptor_in_fp8(kernels: Any) -> None:
    x, out = _matrix(20, 16).fmod(9).to(torch.float8_e4m3fn), torch.zeros(32, 16, dtype=torch.float8_e4m3fn)
    tiles = TensorDescriptor.from_tensor(x, [16, 16], "nan"), TensorDescriptor.from_tensor(out, [16, 16])
    with simulate() as session:
        kernels.given_descriptor_kernel[(2,)](*tiles, 1, ROWS=16)
    assert torch.equal(out[:20].float(), x.float())
    assert out[20:].float().isnan().all()
    assert not session.findings


ROWS = [0, 19, 3, 4, 7, 20, -1, 2]


def test_a_gather_of_rows_reads_zeros_for_those_outside(operations: Any) -> None:
    x, out = _matrix(20, 24), torch.full((8, 16), 7.0)
    with simulate() as session:
        operations.indexed_descriptor_kernel[(1,)](x, torch.tensor(ROWS, dtype=torch.int32), out, 20, 24, GATHERS=True)
    expected = [x[row, 4:20] if row in range(20) else torch.zeros(16) for row in ROWS]
    assert torch.equal(out, torch.stack(expected))
    assert not session.findings


def test_a_scatter_of_rows_stores_nothing_outside(operations: Any) -> None:
    x, out = _matrix(8, 16), torch.zeros(20, 24)
    with simulate() as session:
        operations.indexed_descriptor_kernel[(1,)](x, torch.tensor(ROWS, dtype=torch.int32), out, 20, 24, GATHERS=False)
    expected = torch.zeros(20, 24)
    for row, source in zip(ROWS, x, strict=True):
        if row in range(20):
            expected[row, 4:20] = source
    assert torch.equal(out, expected)
    assert not session.findings


@pytest.mark.parametrize(
    ("operation", "dtype"),
    [("add", torch.float32), ("add", torch.bfloat16), ("add", torch.int32), ("max", torch.int32)],
)
def test_tiles_that_several_programs_update(operations: Any, operation: str, dtype: torch.dtype) -> None:
    x, out = _matrix(8, 16, dtype), torch.full((10, 24), 50, dtype=dtype)
    expected = out.clone()
    for first in (0, 4):
        part = expected[first : first + 8, 4:20]
        expected[first : first + 8, 4:20] = (
            part + x[: len(part)] if operation == "add" else part.maximum(x[: len(part)])
        )
    with simulate() as session:
        operations.updating_descriptor_kernel[(2,)](x, out, 10, 24, OPERATION=operation)
    assert torch.equal(out, expected)
    assert not session.findings


REMOVED = VERSION >= (3, 9)
has_block_pointers = pytest.mark.skipif(REMOVED, reason="Triton 3.9 removed block pointers")


@has_block_pointers
@pytest.mark.filterwarnings("ignore:.* deprecated:UserWarning")
@pytest.mark.parametrize("padding", ["zero", "nan"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_pointer_that_advances(operations: Any, dtype: torch.dtype, padding: str) -> None:
    x, out = _matrix(6, 20, dtype), torch.zeros(8, 32, dtype=dtype)
    with simulate() as session:
        operations.block_pointer_kernel[(1,)](x, out, 6, 20, PADDING=padding, CHECKED=True)
    outside = float("nan") if padding == "nan" else 0.0
    around = torch.nn.functional.pad(x.float(), (0, 32, 0, 16), value=outside)
    expected = torch.cat([around[1:9, 4:20], around[1:9, 12:28]], dim=1)
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=0, equal_nan=True)
    assert not session.findings


@has_block_pointers
@pytest.mark.filterwarnings("ignore:.* deprecated:UserWarning")
def test_a_block_pointer_without_a_check_reads_outside_of_its_tensor(operations: Any) -> None:
    with simulate() as session:
        operations.block_pointer_kernel[(1,)](_matrix(6, 20), torch.zeros(8, 32), 6, 20, PADDING="zero", CHECKED=False)
    assert {finding.kind for finding in session.findings} == {FindingKind.OUT_OF_BOUNDS_LOAD}


@pytest.mark.skipif(not REMOVED, reason="Triton has block pointers")
def test_block_pointers_that_triton_removed_are_refused_in_its_words(operations: Any) -> None:
    with simulate(), pytest.raises(LoweringError, match="Block pointers have been removed"):
        operations.block_pointer_kernel[(1,)](_matrix(6, 20), torch.zeros(8, 32), 6, 20, PADDING="zero", CHECKED=True)
