"""Grids that a GPU refuses to launch."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from fuzz_attn.simulator.access_checks import FindingKind
from fuzz_attn.simulator.session import simulate


@triton.jit
def counting_kernel(out_ptr):
    tl.atomic_add(out_ptr, 1)


@pytest.mark.parametrize(
    ("grid", "axis", "size", "limit"),
    [
        ((1, 65536), "y", 65536, 65535),
        ((1, 1, 65536), "z", 65536, 65535),
        ((2, 1, 3_000_000), "z", 3_000_000, 65535),
        ((2**31,), "x", 2**31, 2**31 - 1),
    ],
)
def test_a_grid_that_is_too_large_is_found_and_does_not_run(
    grid: tuple[int, ...], axis: str, size: int, limit: int
) -> None:
    out = torch.zeros(1, dtype=torch.int32)
    with simulate() as session:
        for _ in range(2):
            counting_kernel[grid](out)
    assert out.item() == 0
    (finding,) = session.findings
    assert (finding.kind, finding.tensor, finding.index) == (FindingKind.GRID_TOO_LARGE, f"grid.{axis}", size)
    assert (finding.bounds, finding.count) == ((0, limit + 1), 2)
    assert finding.message == f"{size} programs along {axis}, and a GPU launches at most {limit}"
    assert finding.location.file == __file__
    assert finding.location.line == inspect.getsourcelines(counting_kernel.fn)[1]


@pytest.mark.parametrize("grid", [(65536,), (1, 65535), (1, 1, 65535), (0,), (3, 0, 2)])
def test_a_grid_within_the_limits_runs(grid: Any) -> None:
    out = torch.zeros(1, dtype=torch.int32)
    with simulate() as session:
        counting_kernel[grid](out)
    expected = 1
    for extent in grid:
        expected *= extent
    assert out.item() == expected
    assert not session.findings
