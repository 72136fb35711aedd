"""Targets whose mistakes a GPU shows and a CPU does not, or shows in another way."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import triton
import triton.language as tl

from fuzz_attn.kernels.unified_attention import unified_attention

LONG = 8
"""Keys of a sequence beyond which these targets misbehave."""


@triton.jit(do_not_specialize=["offset"])
def store_kernel(target_ptr, offset):
    tl.store(target_ptr + offset.to(tl.int64), 0.0)


@triton.jit(do_not_specialize=["rounds"])
def spin_kernel(target_ptr, rounds):
    """Multiply and add in one dependent chain, which takes four seconds for 2^31 rounds."""
    value = tl.load(target_ptr)
    for _ in range(rounds):
        value = value * 1.0000001 + 1e-9
    tl.store(target_ptr, value)


def _after(misbehave: Callable[..., None]) -> Callable[..., None]:
    """Return the project's own launcher with a call after it where a sequence is long."""

    @wraps(unified_attention)
    def variant(**given: Any) -> None:
        unified_attention(**given)
        if given["max_seqlen_k"] > LONG:
            misbehave(**given)

    return variant


def _with_sinks(misbehave: Callable[..., None]) -> Callable[..., None]:
    """Return the project's own launcher with a call after it where there are sinks, as in a quarter of drawn cases."""

    @wraps(unified_attention)
    def variant(**given: Any) -> None:
        unified_attention(**given)
        if given.get("sinks") is not None:
            misbehave(**given)

    return variant


def _store_outside(out: torch.Tensor, **_: Any) -> None:
    store_kernel[(1,)](out, 2**40)


def _store_behind_scratch(out: torch.Tensor, **_: Any) -> None:
    store_kernel[(1,)](torch.empty(5, device=out.device), 5)


def _store_before_output(out: torch.Tensor, **_: Any) -> None:
    store_kernel[(1,)](out, -3)


def _spin(out: torch.Tensor, times: int = 8, **_: Any) -> None:
    scratch = torch.zeros(1, device=out.device)
    for _again in range(times):
        spin_kernel[(1,)](scratch, 2**31 - 1)


def _hang(out: torch.Tensor, **_: Any) -> None:
    _spin(out, times=100)


def _exit(**_: Any) -> None:
    os._exit(3)


def _read_scratch(out: torch.Tensor, **_: Any) -> None:
    out[:1] = torch.empty(1, device=out.device).to(out.dtype)


stores_outside = _after(_store_outside)
stores_behind_scratch = _after(_store_behind_scratch)
stores_before_output = _after(_store_before_output)
reads_scratch = _after(_read_scratch)
spins = _after(_spin)
faults_with_sinks = _with_sinks(_store_outside)
hangs_with_sinks = _with_sinks(_hang)
exits_with_sinks = _with_sinks(_exit)


@wraps(unified_attention)
def window_too_long(**given: Any) -> None:
    """Read one key more than the window allows."""
    left, right = given["window_size"]
    unified_attention(**{**given, "window_size": (left + (left >= 0), right)})
