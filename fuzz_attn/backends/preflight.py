"""Preflight: checks that a backend loads, casts and multiplies each dtype correctly, before a campaign blames a kernel.

Import this module only after the backend is prepared: its kernels are decorated on import.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import torch
import triton
import triton.language as tl
from triton.compiler import CompilationError

from fuzz_attn.case.parts import FP8_DTYPES, WIDE_DTYPES
from fuzz_attn.inputs.storage import TORCH_DTYPES
from fuzz_attn.ttir.interpreter_compat import InterpreterError

SIZE = 16
_FLOATS = tuple(TORCH_DTYPES[name] for name in WIDE_DTYPES)
_FP8 = tuple(TORCH_DTYPES[name] for name in FP8_DTYPES)


@triton.jit
def _cast_kernel(source_ptr, target_ptr, size: tl.constexpr):
    offsets = tl.arange(0, size)
    tl.store(target_ptr + offsets, tl.load(source_ptr + offsets).to(target_ptr.dtype.element_ty))


@triton.jit
def _add_kernel(source_ptr, target_ptr, size: tl.constexpr):
    offsets = tl.arange(0, size)
    x = tl.load(source_ptr + offsets)
    tl.store(target_ptr + offsets, x + x)


@triton.jit
def _dot_kernel(a_ptr, b_ptr, target_ptr, size: tl.constexpr):
    rows = tl.arange(0, size)[:, None] * size + tl.arange(0, size)[None, :]
    product = tl.dot(tl.load(a_ptr + rows), tl.load(b_ptr + rows), input_precision="ieee")
    tl.store(target_ptr + rows, product)


@triton.jit
def _operator_kernel(target_ptr, size: tl.constexpr):
    offsets = tl.arange(0, size)
    inside = (offsets > 2) and (offsets < size - 1)
    outside = (offsets < 2) or (offsets > size - 3)
    tl.store(target_ptr + offsets, inside.to(tl.int32) + 2 * outside + 4 * (not inside))


@triton.jit
def _mask_kernel(limit_ptr, target_ptr, size: tl.constexpr):
    offsets = tl.arange(0, size)
    tl.store(target_ptr + offsets, 1, mask=(offsets > 2) & (tl.load(limit_ptr) > 0))


def operator_defects() -> Iterator[str]:
    """Yield ``operator:and`` if `and`, `or` and `not` of blocks are wrong, and ``mask:scalar`` for a scalar in a mask.

    Compilers warn of the former, so this runs no compiler.
    """
    actual = torch.zeros(SIZE, dtype=torch.int32)
    _operator_kernel[(1,)](actual, size=SIZE)
    places = torch.arange(SIZE)
    inside, outside = (places > 2) & (places < SIZE - 1), (places < 2) | (places > SIZE - 3)
    if not torch.equal(actual, (inside + 2 * outside + 4 * ~inside).int()):
        yield "operator:and"
    if not all(_mask_is_right(limit) for limit in (0, 1)):
        yield "mask:scalar"


def _mask_is_right(limit: int) -> bool:
    actual = torch.zeros(SIZE, dtype=torch.int32)
    try:
        _mask_kernel[(1,)](torch.tensor([limit]), actual, size=SIZE)
    except InterpreterError:
        return False
    return torch.equal(actual, (limit * (torch.arange(SIZE) > 2)).int())


def defects(device: str) -> Iterator[str]:
    """Yield the name of each defect found: ``cast:float32->bfloat16``, ``add:bfloat16``, ``dot:bfloat16``."""
    for source, target in _casts():
        if not _holds(_cast_is_right, source, target, device):
            yield f"cast:{_name(source)}->{_name(target)}"
    for dtype in _FLOATS:
        if not _holds(_add_is_right, dtype, device):
            yield f"add:{_name(dtype)}"
    for dtype in _FLOATS:
        if not _holds(_dot_is_right, dtype, device):
            yield f"dot:{_name(dtype)}"


def _holds(probe: Callable[..., bool], *arguments: object) -> bool:
    """Return whether a probe compiles and its operation is correct; a GPU may lack a type altogether."""
    try:
        return probe(*arguments)
    except CompilationError:
        return False


def _casts() -> Iterator[tuple[torch.dtype, torch.dtype]]:
    for half in _FLOATS[1:]:
        yield torch.float32, half
        yield half, torch.float32
        yield torch.int32, half
    for one_byte in _FP8:
        for wide in _FLOATS:
            yield one_byte, wide
        yield torch.float32, one_byte


@cache
def _samples() -> torch.Tensor:
    """Return 256 numbers that round up, down, to even, over a power of two, and below the smallest normal."""
    steps = torch.arange(SIZE, dtype=torch.float64)
    mantissas = 1.0 + torch.cat((steps / 2**4, steps / 2**9 + 2.0**-5, 1.0 - steps / 2**11 - 2.0**-12, steps / 2**14))
    exponents = torch.tensor([-7.0, -3.0, 0.0, 6.0], dtype=torch.float64)
    return (mantissas[None, :] * 2.0 ** exponents[:, None]).reshape(-1).float()


def _cast_is_right(source: torch.dtype, target: torch.dtype, device: str) -> bool:
    samples = (_samples() * (1 if source.is_floating_point else 1024)).to(source).to(device)
    actual = torch.zeros(samples.shape, dtype=target, device=device)
    _cast_kernel[(1,)](samples, actual, size=samples.numel())
    return torch.equal(actual.float(), samples.to(target).float())


def _add_is_right(dtype: torch.dtype, device: str) -> bool:
    samples = _samples().to(dtype).to(device)
    actual = torch.zeros_like(samples)
    _add_kernel[(1,)](samples, actual, size=samples.numel())
    return torch.equal(actual, samples + samples)


def _dot_is_right(dtype: torch.dtype, device: str) -> bool:
    """Multiply small integers, exact in every type and order of accumulation."""
    values = torch.arange(SIZE * SIZE, device=device).reshape(SIZE, SIZE)
    a, b = (values % 7 - 3).to(dtype), (values % 5 - 2).to(dtype)
    actual = torch.zeros((SIZE, SIZE), dtype=torch.float32, device=device)
    _dot_kernel[(1,)](a, b, actual, size=SIZE)
    return torch.equal(actual, a.float() @ b.float())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
