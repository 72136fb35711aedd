"""Assembly and functions of CUDA's library against torch and numpy."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fuzz_attn.errors import UnsupportedOperation
from fuzz_attn.simulator.session import simulate

KERNELS = "operation_kernels.py"

NAN = float("nan")
SPECIAL = [0.0, -0.0, 1.0, -1.5, 2.5, 0.25, 5.0, 448.0, 500.0, -1e9, 1e-40, -3e-39, NAN, float("inf"), -float("inf")]


def _floats(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    drawn = torch.randn(101, generator=torch.Generator().manual_seed(1)) * 3
    return torch.cat([torch.tensor(SPECIAL), drawn]).to(dtype)


def _integers() -> torch.Tensor:
    drawn = torch.randint(-(2**31), 2**31, (113,), generator=torch.Generator().manual_seed(2))
    return torch.cat([torch.tensor([0, 1, -1, 2**31 - 1, -(2**31), 0x80FF]), drawn]).to(torch.int32)


def _flushed(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.abs() < torch.finfo(torch.float32).tiny, x * 0, x)


def _run(kernel: Any, operation: str, x: torch.Tensor, y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    out = torch.zeros(x.shape, dtype=dtype)
    with simulate() as session:
        kernel[(-(-x.numel() // 64),)](x, y, out, x.numel(), OPERATION=operation, BLOCK=64)
    assert not session.findings
    return out


def _fp4(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])

    def code(number: float) -> int:
        if np.isnan(number):
            return 7
        distances = np.abs(grid - min(abs(number), 6))
        nearest = np.flatnonzero(distances == distances.min())
        return int(min(nearest, key=lambda place: place % 2)) + 8 * int(np.signbit(number))

    pairs = zip(x.tolist(), y.tolist(), strict=True)
    return torch.tensor([code(low) | code(high) << 4 for low, high in pairs], dtype=torch.uint8)


def _bytes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    low, high = x.numpy().view(np.uint8).reshape(-1, 4), y.numpy().view(np.uint8).reshape(-1, 4)
    sign = np.where(high[:, 0] >= 128, 255, 0).astype(np.uint8)
    picked = np.stack([low[:, 0], low[:, 1], sign, high[:, 1]], axis=1)
    return torch.from_numpy(np.ascontiguousarray(picked).view(np.int32).ravel())


def _e4m3(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-448, 448).to(torch.float8_e4m3fn)


EXACT: dict[str, tuple[torch.dtype, torch.dtype, Callable[..., torch.Tensor]]] = {
    "add": (torch.float32, torch.float32, lambda x, y: x + y),
    "mul": (torch.float32, torch.float32, lambda x, y: x * y),
    "add_ftz": (torch.float32, torch.float32, lambda x, y: _flushed(_flushed(x) + _flushed(y))),
    "div": (torch.float32, torch.float32, lambda x, y: x / y),
    "fma": (torch.float32, torch.float32, lambda x, y: (x.double() * y + x).float()),
    "fma_bf16": (torch.bfloat16, torch.bfloat16, lambda x, y: (x.double() * y + x).bfloat16()),
    "e4m3": (torch.float32, torch.float8_e4m3fn, lambda x, _: _e4m3(x)),
    "e4m3_of_four": (torch.float32, torch.float8_e4m3fn, lambda x, _: _e4m3(x)),
    "widen_e4m3": (torch.float8_e4m3fn, torch.float16, lambda x, _: x.half()),
    "e2m1": (torch.float32, torch.uint8, _fp4),
    "bf16_pair": (torch.float32, torch.bfloat16, lambda x, _: x.bfloat16()),
    "majority": (torch.int32, torch.int32, lambda x, y: x & y | x & 255 | y & 255),
    "bytes": (torch.int32, torch.int32, _bytes),
    "larger": (torch.int32, torch.int32, torch.maximum),
    "shift": (torch.int32, torch.int32, lambda x, y: (x << 3) | ((y >> 29) & 7)),
}


@pytest.mark.parametrize("operation", EXACT)
def test_exact_instructions(kernels: Any, operation: str) -> None:
    source, target, truth = EXACT[operation]
    x = _floats(source) if source.is_floating_point else _integers()
    y = x if source.itemsize == 1 else x.flip(0)
    out = _run(kernels.assembly_kernel, operation, x, y, target)
    torch.testing.assert_close(out.double(), truth(x, y).double(), rtol=0, atol=0, equal_nan=True)


def test_fused_multiply_add_of_assembly_rounds_once(kernels: Any) -> None:
    # The exact sum is 4 - 5.6e-9 above the lower neighbour and 4 + 5.6e-9 below the upper one: float64 makes it a tie.
    x = torch.tensor([-5.587935447692871e-09], dtype=torch.float32)
    y = torch.tensor([-1.2142905485426688e16], dtype=torch.float32)
    assert _run(kernels.assembly_kernel, "fma", x, y, torch.float32).item() == 67853768.0


APPROXIMATE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp2": lambda x: _flushed(torch.exp2(_flushed(x))),
    "tanh": torch.tanh,
    "reciprocal": lambda x: 1 / _flushed(x),
    "rsqrt": torch.rsqrt,
}


@pytest.mark.parametrize("operation", APPROXIMATE)
def test_approximate_instructions(kernels: Any, operation: str) -> None:
    x = _floats()
    out = _run(kernels.assembly_kernel, operation, x, x, torch.float32)
    torch.testing.assert_close(out, APPROXIMATE[operation](x), rtol=1e-6, atol=1e-45, equal_nan=True)


def test_rounding_to_integers_saturates(kernels: Any) -> None:
    x = torch.tensor([0.5, 1.5, -2.5, 3e9, -3e9, NAN])
    out = _run(kernels.assembly_kernel, "round", x, x, torch.int32)
    assert out.tolist() == [0, 2, -2, 2**31 - 1, -(2**31), 0]


def test_assembly_in_loops_and_branches_and_on_the_way_to_an_address(kernels: Any) -> None:
    x, out = torch.arange(24.0).view(3, 8), torch.zeros(3, 8)
    with simulate() as session:
        kernels.mixed_assembly_kernel[(3,)](x, out, 2)
    steps = torch.tensor([[2.0], [3.0], [4.0]])
    expected = x + steps * torch.arange(8) + steps * (steps - 1) / 2
    assert torch.equal(out, expected * torch.tensor([[1.0], [2.0], [1.0]]))
    assert not session.findings


def test_a_clock_rises_and_a_processor_has_a_number(kernels: Any) -> None:
    out = torch.zeros(4, 3, dtype=torch.int64)
    with simulate():
        kernels.clock_kernel[(4,)](out)
    first, second, processor = out.unbind(1)
    assert (first > 0).all()
    assert (second >= first).all()
    assert processor.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("atom.global.add.u32 $0, [$1], 1;", "atom.global.add.u32 $0, [$1], 1"),
        ("mov.b32 $0, $1; shfl.sync.bfly.b32 $0, $1, 1, 31, -1;", "shfl.sync.bfly.b32 $0, $1, 1, 31, -1"),
        ("add.rz.f32 $0, $1, $1;", "add.rz.f32 $0, $1, $1"),
        ("{ .reg .pred p; setp.gt.s32 p, $1, 3; @p mov.b32 $0, 1; }", "@p mov.b32 $0, 1"),
        ("v_exp_f32 $0, $1", "v_exp_f32 $0, $1"),
        ("{ .reg .b16 t; mov.b32 $0, t; }", "mov.b32 $0, t"),
        ("{ .reg .b16 t; mov.b16 t, 1; mov.b32 $0, t; }", "mov.b32 $0, t"),
        ("mov.u32 $0, %laneid;", "mov.u32 $0, %laneid"),
        ("// nothing", "no value for $0"),
    ],
)
def test_unknown_assembly_is_refused_by_the_first_instruction(kernels: Any, text: str, named: str) -> None:
    x, out = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    with simulate(), pytest.raises(UnsupportedOperation) as caught:
        kernels.any_assembly_kernel[(1,)](x, out, TEXT=text, BLOCK=8)
    assert f"tt.elementwise_inline_asm of {named} is not supported" in str(caught.value)
    file, _, line = str(caught.value).rpartition(", at ")[2].rpartition(":")
    assert "inline_asm_elementwise(TEXT" in linecache.getline(file, int(line))


LIBRARY: dict[str, tuple[torch.dtype, Callable[..., torch.Tensor]]] = {
    "fast_expf": (torch.float32, lambda x, _: x.exp()),
    "fast_dividef": (torch.float32, lambda x, y: x / y),
    "fast_logf": (torch.float32, lambda x, _: x.log()),
    "pow": (torch.float32, lambda x, y: x**y),
    "log1p": (torch.float32, lambda x, _: x.log1p()),
    "atan2": (torch.float32, torch.atan2),
    "erfc": (torch.float32, lambda x, _: torch.erfc(x)),
    "round": (torch.float32, lambda x, _: x.sign() * (x.abs() + 0.5).floor()),
    "nearbyint": (torch.float32, lambda x, _: x.round()),
    "copysign": (torch.float32, torch.copysign),
    "div_rn": (torch.float32, lambda x, y: x / y),
    "fma": (torch.float32, lambda x, y: (x.double() * y + x).float()),
    "float_as_int": (torch.int32, lambda x, _: x.view(torch.int32)),
    "finite": (torch.int32, lambda x, _: x.isfinite()),
    "signbit": (torch.int32, lambda x, _: x.signbit()),
    "saturate": (torch.float32, lambda x, _: x.nan_to_num(nan=0.0).clamp(0, 1)),
}


@pytest.mark.parametrize("operation", LIBRARY)
def test_library_functions_of_floats(kernels: Any, operation: str) -> None:
    target, truth = LIBRARY[operation]
    x = _floats()
    x = x[x.abs() != 1e9] if operation == "round" else x  # what the truth here rounds
    y = x.flip(0)
    out = _run(kernels.library_kernel, operation, x, y, target)
    torch.testing.assert_close(out, truth(x, y).to(target), rtol=1e-6, atol=1e-45, equal_nan=True)


@pytest.mark.parametrize(
    ("operation", "target", "expected"),
    [
        ("llrint", torch.int64, [2, -2, 0, 3 * 10**9, -(2**63)]),
        ("float2int_rd", torch.int32, [2, -3, 0, 2**31 - 1, 0]),
    ],
)
def test_library_conversions(kernels: Any, operation: str, target: torch.dtype, expected: list[int]) -> None:
    x = torch.tensor([2.5, -2.5, 0.4, 3e9, NAN])
    assert _run(kernels.library_kernel, operation, x, x, target).tolist() == expected


BITS: dict[str, Callable[[int], int]] = {
    "clz": lambda x: 32 - x.bit_length(),
    "ffs": lambda x: (x & -x).bit_length(),
    "popc": lambda x: x.bit_count(),
    "brev": lambda x: int(f"{x:032b}"[::-1], 2),
}


@pytest.mark.parametrize("operation", BITS)
def test_library_functions_of_bits(kernels: Any, operation: str) -> None:
    x = _integers()
    out = _run(kernels.library_kernel, operation, x, x, torch.int32)
    assert [number % 2**32 for number in out.tolist()] == [BITS[operation](number % 2**32) for number in x.tolist()]


def test_an_unknown_library_function_is_refused_by_its_name(kernels: Any) -> None:
    x = torch.ones(8)
    with pytest.raises(UnsupportedOperation, match=r"tt\.extern_elementwise __nv_fdiv_rz is not supported"):
        _run(kernels.library_kernel, "div_rz", x, x, torch.float32)
