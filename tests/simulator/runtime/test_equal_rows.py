"""Equal rows of a dot product have equal bits, so that two programs which store the same row do not race."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from fuzz_attn.simulator.session import simulate

PROGRAM = Path(__file__).with_name("equal_rows_program.py")


@triton.jit
def shared_row_kernel(x_ptr, y_ptr, out_ptr, SHIFT: tl.constexpr):
    """Both programs store row 16 of the product; it is row 16 of the first tile and row 16 - SHIFT of the second."""
    first = tl.program_id(0) * SHIFT
    rows = first + tl.arange(0, 32)[:, None]
    x = tl.load(x_ptr + rows * 64 + tl.arange(0, 64)[None, :])
    y = tl.load(y_ptr + tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :])
    columns = tl.arange(0, 64)[None, :]
    tl.store(out_ptr + rows * 64 + columns, tl.dot(x, y, input_precision="ieee"), mask=rows == 16)


def test_equal_rows_have_equal_bits(module_at: Callable[[Path], ModuleType]) -> None:
    with np.errstate(invalid="ignore"):
        module_at(PROGRAM).main()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kernels_of_blas", ["Haswell", "Nehalem"])
def test_equal_rows_have_equal_bits_under_any_kernels_of_blas(kernels_of_blas: str) -> None:
    environment = dict(os.environ, OPENBLAS_CORETYPE=kernels_of_blas)
    subprocess.run([sys.executable, "-W", "ignore", str(PROGRAM)], env=environment, check=True)


@pytest.mark.parametrize("shift", [1, 2, 5, 7, 12])
def test_two_programs_that_store_the_same_row_do_not_race(shift: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(64, 64, generator=generator) for _ in range(2))
    out = torch.zeros(64, 64)
    with simulate() as session:
        shared_row_kernel[(2,)](x, y, out, SHIFT=shift)
    assert not session.findings
    torch.testing.assert_close(out[16], x[16] @ y)
