"""The simulator against a GPU: the same kernels on the same bits, an operation each."""

from __future__ import annotations

import inspect
import os
from typing import Any

import pytest
import torch
import triton
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


def _both(
    kernel: Any,
    grid: int,
    inputs: list[torch.Tensor],
    out: torch.Tensor,
    *rest: Any,
    within: Any = 0,
    near: Any = 0,
    **constants: Any,
) -> None:
    """Run a kernel in the simulator and on the GPU, and assert outputs that are equal.

    Or they are `within` a relative error, or as `near` as an absolute one.

    Any NaN equals any other.
    """
    on_gpu = out.cuda()
    kernel[(grid,)](*(x.cuda() for x in inputs), on_gpu, *rest, **constants)
    with simulate():
        kernel[(grid,)](*inputs, out, *rest, **constants)
    torch.testing.assert_close(out.double(), on_gpu.cpu().double(), rtol=within, atol=near, equal_nan=True)


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


ASSEMBLED = {
    "add": (torch.float32, torch.float32),
    "mul": (torch.float32, torch.float32),
    "add_ftz": (torch.float32, torch.float32),
    "div": (torch.float32, torch.float32),
    "fma": (torch.float32, torch.float32),
    "e4m3": (torch.float32, torch.float8_e4m3fn),
    "e4m3_of_four": (torch.float32, torch.float8_e4m3fn),
    "widen_e4m3": (torch.float8_e4m3fn, torch.float16),
    "bf16_pair": (torch.float32, torch.bfloat16),
    "fma_bf16": (torch.bfloat16, torch.bfloat16),
    "round": (torch.float32, torch.int32),
    "majority": (torch.int32, torch.int32),
    "bytes": (torch.int32, torch.int32),
    "larger": (torch.int32, torch.int32),
    "shift": (torch.int32, torch.int32),
}
"""Instructions that an H100 has, with the types of operands and result."""


@pytest.mark.parametrize("operation", ASSEMBLED)
def test_exact_instructions(kernels: Any, operation: str) -> None:
    source, target = ASSEMBLED[operation]
    x = _patterns(torch.float32).view(torch.int32) if source == torch.int32 else _patterns(source)
    y = x if source in FP8 else x.roll(1)
    constants = {"OPERATION": operation, "BLOCK": 1024}
    grid = -(-x.numel() // 1024)
    _both(kernels.assembly_kernel, grid, [x, y], torch.zeros(x.numel(), dtype=target), x.numel(), **constants)


@pytest.mark.parametrize("operation", ["exp2", "tanh", "reciprocal", "rsqrt"])
def test_approximate_instructions(kernels: Any, operation: str) -> None:
    x = torch.randn(1 << 16, generator=torch.Generator().manual_seed(2)) * 4
    constants = {"OPERATION": operation, "BLOCK": 1024}
    # PTX states 2^-10.987 for tanh and 2^-22 or less for the others.
    off = 2.0**-10 if operation == "tanh" else 2.0**-21
    _both(kernels.assembly_kernel, 64, [x, x], torch.zeros_like(x), x.numel(), within=off, **constants)


LIBRARY = {
    **dict.fromkeys(["copysign", "div_rn", "fma", "nearbyint", "round", "saturate"], (torch.float32, torch.float32)),
    **dict.fromkeys(["float2int_rd", "float_as_int", "finite", "signbit"], (torch.float32, torch.int32)),
    **dict.fromkeys(["clz", "ffs", "popc", "brev"], (torch.int32, torch.int32)),
    "llrint": (torch.float32, torch.int64),
}


@pytest.mark.parametrize("operation", LIBRARY)
def test_exact_library_functions(kernels: Any, operation: str) -> None:
    source, target = LIBRARY[operation]
    x = _patterns(torch.float32)
    # Triton compiles CUDA's library so that it flushes denormals, which the simulator keeps (docs/backends.md). Of the
    # other numbers those are left whose products and quotients are no denormals either.
    x = x[(x == 0.0) | (x.abs() > 2.0**-60) & (x.abs() < 2.0**60) | ~x.isfinite()][: 900 * 1024]
    x = x[: len(x) // 1024 * 1024].view(source)
    constants = {"OPERATION": operation, "BLOCK": 1024}
    out = torch.zeros(x.numel(), dtype=target)
    _both(kernels.library_kernel, x.numel() // 1024, [x, x.roll(1)], out, x.numel(), **constants)


@pytest.mark.parametrize("operation", ["fast_expf", "fast_dividef", "fast_logf", "pow", "log1p", "atan2", "erfc"])
def test_approximate_library_functions(kernels: Any, operation: str) -> None:
    x = torch.rand(1 << 16, generator=torch.Generator().manual_seed(3)) * 4 + 0.5
    constants = {"OPERATION": operation, "BLOCK": 1024}
    off = 2.0**-18
    near = 2.0**-21 if operation == "fast_logf" else 0.0  # CUDA states an absolute error between 0.5 and 2
    _both(
        kernels.library_kernel, 64, [x, x.roll(1)], torch.zeros_like(x), x.numel(), within=off, near=near, **constants
    )


TILES = [("cat", 0, 64), ("cat", 1, 64)] if "dim" in inspect.signature(tl.cat).parameters else []  # since Triton 3.7
TILES += [("scan", 0, 96), ("scan", 1, 96), ("gather", 0, 32), ("gather", 1, 32)]
TILES += [("flip", 0, 32), ("flip", 1, 32), ("sort", 1, 32), ("topk", 1, 8)]


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize(("operation", "dim", "size"), TILES)
def test_tiles(kernels: Any, operation: str, dim: int, size: int, flag: bool) -> None:
    # Small whole numbers, whose products are exact in any order.
    x = torch.randint(-2, 3, (3 * 32,), generator=torch.Generator().manual_seed(4)).float()
    constants = {"OPERATION": operation, "DIM": dim, "FLAG": flag}
    _both(kernels.tile_kernel, 3, [x], torch.zeros(3 * size), **constants)


@pytest.mark.parametrize("size", [0, 20, 32])
def test_masked_histograms(kernels: Any, size: int) -> None:
    x = torch.randint(0, 8, (96,), generator=torch.Generator().manual_seed(5)).to(torch.int32)
    _both(kernels.masked_histogram_kernel, 3, [x], torch.zeros(24, dtype=torch.int32), size)


@pytest.mark.parametrize("operation", ["add", "max", "min", "and", "or", "xor"])
def test_what_atomics_leave_in_memory(kernels: Any, operation: str) -> None:
    x = torch.randint(-9, 10, (64,), generator=torch.Generator().manual_seed(6)).to(torch.int32)
    target, on_gpu = torch.arange(5, dtype=torch.int32), torch.arange(5, dtype=torch.int32, device="cuda")
    constants = {"OPERATION": operation, "BLOCK": 16, "SLOTS": 5}
    kernels.atomic_kernel[(4,)](on_gpu, torch.zeros_like(x).cuda(), x.cuda(), **constants)
    with simulate():
        kernels.atomic_kernel[(4,)](target, torch.zeros_like(x), x, **constants)
    assert torch.equal(target, on_gpu.cpu())


@pytest.mark.parametrize("padding", ["zero", "nan"])
@pytest.mark.parametrize(
    "dtype", [torch.float32]
)  # two bytes: an illegal instruction on an H100 (Triton 3.6), not understood
def test_padding(kernels: Any, dtype: torch.dtype, padding: str) -> None:
    triton.set_allocator(lambda size, _, __: torch.empty(size, dtype=torch.int8, device="cuda"))
    x = torch.arange(6 * 24.0).reshape(6, 24).to(dtype)  # rows of a multiple of 16 bytes, as the hardware asks
    _both(kernels.padded_descriptor_kernel, 1, [x], torch.zeros(8, 16, dtype=dtype), 6, 24, PADDING=padding)


def test_an_ieee_dot_reads_all_of_float32_as_the_hardware_does(kernels: Any) -> None:
    a = torch.randn(4, 16, 16, generator=torch.Generator().manual_seed(1))
    constants = {"M": 16, "N": 16, "K": 16, "PRECISION": "ieee"}
    _both(kernels.dot_kernel, 4, [a, torch.eye(16)], torch.zeros(4, 16, 16), **constants)
