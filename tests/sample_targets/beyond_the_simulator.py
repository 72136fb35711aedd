"""Right targets whose kernels the simulator cannot run, each for the reason in its docstring."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from functools import wraps
from typing import Any

import torch
import triton
import triton.language as tl
from torch_attention import unified_attention as right_attention  # type: ignore[import-not-found] # lies beside this file


@triton.jit
def choose_kernel(first_ptr, second_ptr, target_ptr, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    chosen = tl.where(offsets % 2 == 0, first_ptr + offsets, second_ptr + offsets)
    tl.store(target_ptr + offsets, tl.load(chosen))


@wraps(right_attention)
def unified_attention(**given: Any) -> None:
    """Selects between pointers into two tensors."""
    target = torch.empty(16)
    choose_kernel[(1,)](torch.zeros(16), torch.ones(16), target, SIZE=16)
    assert target.sum() == 8
    right_attention(**given)


@wraps(right_attention)
def has_something_else(**given: Any) -> None:
    """Works without its kernel if the launch fails."""
    target = torch.empty(16)
    try:
        choose_kernel[(1,)](torch.zeros(16), torch.ones(16), target, SIZE=16)
    except Exception:  # noqa: BLE001 - as cautious targets do in practice
        target.zero_()[::2] = 1
    right_attention(**given)


@wraps(right_attention)
def gives_another_reason(**given: Any) -> None:
    """Reports a failed launch as a refusal of its own."""
    try:
        unified_attention(**given)
    except Exception as error:
        raise ValueError("not on this device") from error


@wraps(right_attention)
def beyond_for_long_sequences(**given: Any) -> None:
    """Is beyond the simulator only if a sequence has more than two keys."""
    (unified_attention if bool((given["seqused_k"] > 2).any()) else right_attention)(**given)


@triton.jit
def dense_kernel(target_ptr, stride, SIZE: tl.constexpr):
    tl.static_assert(stride == 1)
    offsets = tl.arange(0, SIZE)
    tl.store(target_ptr + offsets, offsets.to(tl.float32))


@wraps(right_attention)
def needs_a_constant(**given: Any) -> None:
    """Asserts at compile time that an integer argument is 1, which Triton specialises on."""
    target = torch.empty(16)
    dense_kernel[(1,)](target, target.stride(0), SIZE=16)
    assert target[15] == 15
    right_attention(**given)
