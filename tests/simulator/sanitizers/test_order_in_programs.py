"""Accesses within one program: loads of what other threads stored, and elements of one store that meet."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from fuzz_attn.simulator.access_checks import Finding, FindingKind
from fuzz_attn.simulator.session import simulate

KERNELS = "gpu_kernels.py"


def _line(kernel: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(kernel.fn)
    return next(first + index for index, line in enumerate(lines) if text in line)


def _reversed(kernels: Any, shift: int, between: str = "", block: int = 128, **options: Any) -> list[Finding]:
    x, scratch, out = torch.rand(2 * block), torch.zeros(2 * block), torch.zeros(2 * block)
    with simulate() as session:
        kernels.reversed_kernel[(2,)](x, scratch, out, BLOCK=block, SHIFT=shift, BETWEEN=between, **options)
    return session.findings


@pytest.mark.parametrize(("shift", "block"), [(32, 128), (1, 128), (64, 128), (96, 1024)])
def test_a_load_of_what_another_thread_stored_is_found(kernels: Any, shift: int, block: int) -> None:
    found = _reversed(kernels, shift, block=block)
    assert [(one.kind, one.tensor) for one in found] == [(FindingKind.UNORDERED_LOAD, "scratch_ptr")]
    assert found[0].location.line == _line(kernels.reversed_kernel, "tl.load(scratch_ptr")
    assert "tl.debug_barrier()" in found[0].message


@pytest.mark.parametrize(
    ("shift", "between", "options"),
    [
        (0, "", {}),  # each thread loads what it stored
        (32, "barrier", {}),
        (32, "sum", {}),  # the compiler adds a barrier for the sum
        (32, "", {"num_warps": 1}),
        (64, "", {"num_warps": 2}),  # position 64 belongs to warp 0 again, with one element for each thread
    ],
)
def test_ordered_loads_are_not_found(kernels: Any, shift: int, between: str, options: dict[str, Any]) -> None:
    kinds = [one.kind for one in _reversed(kernels, shift, between, **options)]
    assert FindingKind.UNORDERED_LOAD not in kinds


def test_elements_that_one_thread_may_hold_are_not_found(kernels: Any) -> None:
    """A thread may hold 1 or 4 float32 elements of a block of 1,024, which moves a rotation by 32 between warps."""
    assert not _reversed(kernels, 8, block=64)
    found = _reversed(kernels, 32, block=1024)
    assert all(one.count < 1024 for one in found)


def test_a_store_that_changes_nothing_is_not_found(kernels: Any) -> None:
    zeros = [torch.zeros(256) for _ in range(3)]
    with simulate() as session:
        kernels.reversed_kernel[(2,)](*zeros, BLOCK=128, SHIFT=32, BETWEEN="")
    assert not session.findings


@pytest.mark.parametrize("barriers", [False, True])
def test_an_iteration_that_loads_what_the_one_before_stored(kernels: Any, barriers: bool) -> None:
    for steps in (1, 3):
        with simulate() as session:
            kernels.doubling_kernel[(1,)](torch.rand(128), STEPS=steps, BLOCK=128, BARRIERS=barriers)
        expected = [FindingKind.UNORDERED_LOAD] if steps > 1 and not barriers else []
        assert [one.kind for one in session.findings] == expected


@pytest.mark.parametrize(
    ("name", "first", "row", "column", "found"),
    [
        ("as it is", 0, 64, 1, False),
        ("transposed", 0, 1, 64, False),  # the compiler lets threads hold columns, and so each loads what it stored
        ("rows reversed", 63 * 64, -64, 1, True),
    ],
)
def test_a_tile_that_is_loaded_again(kernels: Any, name: str, first: int, row: int, column: int, found: bool) -> None:
    x, scratch, out = torch.rand(64, 64), torch.zeros(64, 64), torch.zeros(64, 64)
    with simulate() as session:
        kernels.transposed_kernel[(1,)](x, scratch, out, SIZE=64, FIRST=first, ROW=row, COLUMN=column)
    expected = {"as it is": x, "transposed": x.T, "rows reversed": x.flip(0)}[name]
    assert torch.equal(out, expected)
    assert [one.kind for one in session.findings] == [FindingKind.UNORDERED_LOAD] * found


@pytest.mark.parametrize(("group", "expected"), [(1, []), (2, [FindingKind.CONFLICTING_STORE])])
def test_two_elements_of_a_tile_that_meet(kernels: Any, group: int, expected: list[FindingKind]) -> None:
    out = torch.zeros(16)
    with simulate() as session:
        kernels.grouped_store_kernel[(1,)](torch.arange(16.0), out, GROUP=group, BLOCK=16)
    assert [one.kind for one in session.findings] == expected
    if expected:
        assert (session.findings[0].count, session.findings[0].index) == (8, 0)
        assert session.findings[0].location.line == _line(kernels.grouped_store_kernel, "tl.store")
    with simulate() as session:
        kernels.grouped_store_kernel[(1,)](torch.full((16,), float("nan")), out, GROUP=group, BLOCK=16)
    assert not session.findings


def test_rows_of_one_program_that_overlap(kernels: Any) -> None:
    x = torch.rand(2, 4, 16)
    for stride, expected in ((16, []), (12, [FindingKind.CONFLICTING_STORE])):
        out = torch.zeros(2, 64)
        with simulate() as session:
            kernels.row_store_kernel[(2,)](x, out, stride, ROWS=4, COLUMNS=16)
        assert [one.kind for one in session.findings] == expected
