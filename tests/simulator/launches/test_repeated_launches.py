"""A launch reuses what it shares with an earlier one, and only that."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from fuzz_attn.errors import SimulatorError
from fuzz_attn.simulator.access_checks import FindingKind
from fuzz_attn.simulator.session import Session, simulate
from fuzz_attn.simulator.simulator import Simulator

KERNELS = "operation_kernels.py"
SIMULATOR = Simulator()


@triton.jit
def scaled_copy(x_ptr, x_stride, out_ptr, out_stride, factor, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    inside = tl.arange(0, BLOCK) < columns
    x = tl.load(x_ptr + row * x_stride + tl.arange(0, BLOCK), mask=inside)
    tl.store(out_ptr + row * out_stride + tl.arange(0, BLOCK), (x * factor).to(x.dtype), mask=inside)


@triton.jit
def sign_of(out_ptr, number):
    tl.store(out_ptr, 1.0 / number)


@triton.jit
def sign_of_constant(x_ptr, out_ptr, NUMBER: tl.constexpr):
    tl.store(out_ptr, 1.0 / tl.load(x_ptr, mask=tl.program_id(0) > 0, other=NUMBER))


def launched(x: torch.Tensor, out: torch.Tensor, factor: float = 1.0) -> Session:
    """Copy the rows of `x` to `out` in a session of its own."""
    with simulate(SIMULATOR) as session:
        scaled_copy[(x.shape[0],)](x, x.stride(0), out, out.stride(0), factor, x.shape[1], BLOCK=16)
    return session


def copied(x: torch.Tensor, out: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    """Launch as `launched` does, assert that nothing is found, and return what was written."""
    assert launched(x, out, factor).findings == []
    return out


def test_other_numbers_in_the_same_tensors() -> None:
    x, out = torch.randn(4, 12), torch.zeros(4, 12)
    for factor in (1.0, 2.0, 1.0, -0.5, 3.0, 7.0, 11.0, 1.0):
        x.copy_(torch.randn(4, 12))
        assert torch.equal(copied(x, out, factor), x * factor)


def test_other_strides_shapes_and_offsets_of_the_same_storage() -> None:
    storage = torch.randn(512)
    for shape, strides, offset in [
        ((4, 12), (12, 1), 0),
        ((4, 12), (16, 1), 0),
        ((4, 12), (16, 1), 3),
        ((6, 12), (16, 1), 3),
        ((4, 9), (16, 1), 3),
        ((4, 12), (0, 1), 5),
        ((4, 12), (12, 1), 0),
    ]:
        x = storage.as_strided(shape, strides, offset)
        assert torch.equal(copied(x, torch.zeros(shape)), x)


def test_another_type_at_the_same_address() -> None:
    x = torch.randn(4, 12, generator=torch.Generator().manual_seed(1))
    assert not x.view(torch.bfloat16).isnan().any()  # arithmetic keeps no NaN's bits
    assert torch.equal(copied(x, torch.zeros(4, 12)), x)
    halves = x.view(torch.bfloat16)[:, :12]
    out = copied(halves, torch.zeros(4, 12, dtype=torch.bfloat16))
    assert torch.equal(out.view(torch.int16), halves.contiguous().view(torch.int16))


def test_another_grid() -> None:
    x, out = torch.randn(40, 12), torch.zeros(40, 12)
    for rows in (3, 40, 7):
        out.zero_()
        with simulate(SIMULATOR) as session:
            scaled_copy[(rows,)](x, 12, out, 12, 1.0, 12, BLOCK=16)
        assert session.findings == []
        assert torch.equal(out[:rows], x[:rows])
        assert not out[rows:].any()


def test_numbers_that_are_equal_but_differ_and_nan() -> None:
    out = torch.zeros(1)
    for number in (0.0, -0.0, 2.0, float("inf"), float("nan"), -0.0, 0.0):
        with simulate(SIMULATOR):
            sign_of[(1,)](out, number)
        with np.errstate(all="ignore"):
            expected = np.float32(1.0) / np.float32(number)
        np.testing.assert_array_equal(out.numpy()[0], expected)


def test_constants_that_are_equal_but_differ(kernels: Any) -> None:
    out = torch.zeros(1)
    for number in (0.0, kernels.MINUS_ZERO, 2.0, float("nan"), kernels.MINUS_ZERO, 0.0):
        with simulate(SIMULATOR), np.errstate(all="ignore"):
            sign_of_constant[(1,)](torch.ones(1), out, NUMBER=number)
            expected = np.float32(1.0) / np.float32(number)
        np.testing.assert_array_equal(out.numpy()[0], expected)


def test_a_rejected_launch_leaves_nothing_watched() -> None:
    out = torch.zeros(4, 12)
    with simulate(SIMULATOR):
        x = torch.empty(4, 12)
        with pytest.raises(SimulatorError, match="is on meta"):
            scaled_copy[(4,)](x, 12, out.to("meta"), 12, 1.0, 12, BLOCK=16)
    x.copy_(torch.randn(4, 12))
    assert torch.equal(copied(x, out), x)


def test_each_launch_watches_its_own_tensors() -> None:
    out = torch.zeros(4, 12)
    with simulate(SIMULATOR) as session:
        x = torch.empty(4, 12)
        scaled_copy[(4,)](x, 12, out, 12, 1.0, 12, BLOCK=16)
    assert [finding.kind for finding in session.findings] == [FindingKind.UNINITIALISED_READ]
    x.copy_(torch.randn(4, 12))
    copied(x, out)
    with simulate(SIMULATOR) as session:
        scaled_copy[(4,)](x, 12, out, 6, 1.0, 12, BLOCK=16)
    assert FindingKind.RACE in {finding.kind for finding in session.findings}
    copied(x, out)


def test_bounds_are_those_of_the_view_that_is_passed() -> None:
    x, out = torch.randn(4, 16), torch.zeros(4, 12)
    assert launched(x[:, :12], out).findings == []
    with simulate(SIMULATOR) as session:
        scaled_copy[(4,)](x[:, :11], 16, out, 12, 1.0, 12, BLOCK=16)
    (finding,) = session.findings
    assert finding.kind is FindingKind.OUT_OF_BOUNDS_LOAD
