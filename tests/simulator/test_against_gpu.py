"""The simulator against a GPU: casts, arithmetic and dot products of the same kernels on the same bits."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import triton.language as tl

from fuzz_attn.simulator.session import simulate

KERNELS = "operation_kernels.py"

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="compares with a GPU"),
    # Triton decides for a whole process whether it compiles or interprets.
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="compiles kernels: run it with `make gpu`"),
]

ALL_16 = torch.arange(65536, dtype=torch.int32).to(torch.uint16)
ALL_8 = torch.arange(256, dtype=torch.int32).to(torch.uint8)
FORMATS = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float8_e4m3fn: tl.float8e4nv,
    torch.float8_e5m2: tl.float8e5,
}
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def _patterns(dtype: torch.dtype) -> torch.Tensor:
    """Return all bit patterns of a narrow format; for float32, a million random ones."""
    if dtype == torch.float32:
        bits = torch.randint(-(2**31), 2**31 - 1, (1 << 20,), generator=torch.Generator().manual_seed(0))
        return bits.to(torch.int32).view(torch.float32)
    return (ALL_8 if dtype in FP8 else ALL_16).view(dtype)


def _both(kernel: Any, grid: int, inputs: list[torch.Tensor], out: torch.Tensor, *rest: Any, **constants: Any) -> None:
    """Run a kernel in the simulator and on the GPU, and assert equal outputs; any NaN equals any other."""
    on_gpu = out.cuda()
    kernel[(grid,)](*(x.cuda() for x in inputs), on_gpu, *rest, **constants)
    with simulate():
        kernel[(grid,)](*inputs, out, *rest, **constants)
    torch.testing.assert_close(out.double(), on_gpu.cpu().double(), rtol=0, atol=0, equal_nan=True)


# All conversions that Triton makes: not to the same format, and not from one fp8 format to the other.
PAIRS = [
    (source, target) for source in FORMATS for target in FORMATS if source != target and {source, target} != set(FP8)
]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_casts(kernels: Any, source: torch.dtype, target: torch.dtype) -> None:
    x = _patterns(source)
    if (source, target) == (torch.float8_e5m2, torch.bfloat16):
        # Triton 3.6 widens these in software and makes finite numbers of infinities and NaN; the simulator keeps them.
        x = x[x.float().isfinite()]
    out = torch.zeros(x.numel(), dtype=target)
    constants = {"TO": FORMATS[target], "ROUNDING": None, "BITCAST": False, "BLOCK": 1024}
    _both(kernels.cast_kernel, -(-x.numel() // 1024), [x], out, x.numel(), **constants)


@pytest.mark.parametrize(
    "operation", ["add", "sub", "mul", "max", "min", "max_nan", "min_nan", "div_rn", "lt", "where"]
)
def test_float32_arithmetic(kernels: Any, operation: str) -> None:
    x = _patterns(torch.float32)
    constants = {"OPERATION": operation, "BLOCK": 1024}
    _both(kernels.binary_kernel, 1024, [x, x.roll(1)], torch.zeros_like(x), x.numel(), **constants)


@pytest.mark.parametrize("target", [torch.int32, torch.int16, torch.int8])
def test_float_to_integer(kernels: Any, target: torch.dtype) -> None:
    x = _patterns(torch.float32)
    x = x[x.abs() < 2.0 ** (8 * torch.iinfo(target).bits // 8 - 1)] if target != torch.int32 else x
    name = {torch.int32: tl.int32, torch.int16: tl.int16, torch.int8: tl.int8}[target]
    out = torch.zeros(x.numel(), dtype=target)
    constants = {"TO": name, "ROUNDING": None, "BITCAST": False, "BLOCK": 1024}
    _both(kernels.cast_kernel, -(-x.numel() // 1024), [x], out, x.numel(), **constants)


def test_an_ieee_dot_reads_all_of_float32_as_the_hardware_does(kernels: Any) -> None:
    a = torch.randn(4, 16, 16, generator=torch.Generator().manual_seed(1))
    constants = {"M": 16, "N": 16, "K": 16, "PRECISION": "ieee"}
    _both(kernels.dot_kernel, 4, [a, torch.eye(16)], torch.zeros(4, 16, 16), **constants)
