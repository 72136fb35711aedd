"""Right targets that refuse some cases, and targets whose exceptions are no refusals."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import triton
import triton.language as tl
from torch_attention import unified_attention  # type: ignore[import-not-found] # found beside this file, as a user's is
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime import JITFunction

Target = Callable[..., None]


def _kernel(x_ptr):
    tl.store(x_ptr, 0)


_any_kernel: Any = JITFunction(_kernel)  # compiled, also in an interpreting process


def _after(check: Callable[..., None]) -> Target:
    """Return the right attention behind a check of its arguments."""

    @wraps(unified_attention)
    def variant(**given: Any) -> None:
        check(**given)
        unified_attention(**given)

    return variant


def _few(q: torch.Tensor, k: torch.Tensor, out: torch.Tensor, sinks: torch.Tensor | None, **_: Any) -> None:
    assert q.shape[2] in (64, 128), f"head size {q.shape[2]} is not supported"
    if not q.dtype == k.dtype == out.dtype == torch.float16:
        raise NotImplementedError(f"only float16, not {q.dtype}")
    if sinks is not None:
        raise ValueError("sinks are not supported")


def _nothing(**_: Any) -> None:
    raise NotImplementedError("not yet")


def _other_gpu(**_: Any) -> None:
    _any_kernel._pack_args(make_backend(GPUTarget("cuda", 90, 32)), {"waves_per_eu": 2}, {}, [], None)


def _sinks_in_windows(sinks: torch.Tensor | None, window_size: tuple[int, int], **_: Any) -> None:
    assert sinks is None or window_size[0] < 0, "no sinks in windows"


def _no_sinks(sinks: torch.Tensor | None, **_: Any) -> None:
    assert sinks is None


def _short(max_seqlen_k: int, **_: Any) -> None:
    assert max_seqlen_k <= 20


def _small_numbers(q: torch.Tensor, **_: Any) -> None:
    assert bool((q.float().abs() < 30).all()), "large numbers"


def _index(q: torch.Tensor, **_: Any) -> None:
    (0,) * 8 + (q.shape[2] // (q.shape[2] - 16),)


def _after_launch(q: torch.Tensor, **_: Any) -> None:
    _run(q.device, SIZE=16, KIND="fits")
    assert q.shape[2] != 16, "too late"


def _after_writing(out: torch.Tensor, **_: Any) -> None:
    out.zero_()
    assert out.shape[2] != 16, "too late"


@triton.jit
def sized_kernel(target_ptr, SIZE: tl.constexpr, KIND: tl.constexpr):
    offsets = tl.arange(0, 16)
    if KIND == "static_assert":
        tl.static_assert(SIZE >= 32, "heads of 32 or more")
    elif KIND == "arange":
        tl.store(target_ptr + tl.arange(0, SIZE), 0.0)
    elif KIND == "dot":
        tile = tl.zeros((16, SIZE), tl.float16)
        tl.store(target_ptr + offsets, tl.sum(tl.dot(tile, tile.T), 1))
    elif KIND == "unknown_name":
        tl.store(target_ptr + offsets, nothing_of_that_name)  # type: ignore[name-defined]  # noqa: F821 - the defect


def _run(device: torch.device, SIZE: int, KIND: str) -> None:
    sized_kernel[(1,)](torch.zeros(1024, device=device), SIZE=SIZE, KIND=KIND)


def _compiling(kind: str) -> Target:
    return _after(lambda q, **_: _run(q.device, SIZE=q.shape[2], KIND=kind))


refuses_sinks = _after(_no_sinks)
accepts_few = _after(_few)
refuses_all = _after(_nothing)
needs_another_gpu = _after(_other_gpu)
refuses_sinks_in_windows = _after(_sinks_in_windows)
refuses_long = _after(_short)
asserts_on_data = _after(_small_numbers)
divides_by_zero = _after(_index)
asserts_after_launch = _after(_after_launch)
asserts_after_writing = _after(_after_writing)
static_assert = _compiling("static_assert")
needs_power_of_two = _compiling("arange")
needs_large_dot = _compiling("dot")
does_not_compile = _compiling("unknown_name")
