"""Targets in Triton that keep something between calls: wrong ones, and right ones beside them."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one; torch.cuda has no types.

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
import triton
import triton.language as tl

from fuzz_attn.kernels.unified_attention import unified_attention

BLOCK = 256
_lengths: dict[int, torch.Tensor] = {}
_by_shape: dict[tuple[int, int], torch.Tensor] = {}
_scales: dict[tuple[Any, ...], float] = {}
_sums: dict[tuple[int, ...], torch.Tensor] = {}
_room: dict[Any, torch.Tensor] = {}
_side: list[torch.cuda.Stream] = []
_own = threading.local()
_lock = threading.Lock()


@triton.jit
def add_kernel(total_ptr, own_ptr, size, BLOCK: tl.constexpr):
    """Add ``own`` to ``total``, both [size]."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < size
    total = tl.load(total_ptr + place, mask=mask, other=0.0)
    own = tl.load(own_ptr + place, mask=mask, other=0.0)
    tl.store(total_ptr + place, total + own, mask=mask)


@triton.jit
def copy_kernel(to_ptr, from_ptr, size, BLOCK: tl.constexpr):
    """Copy [size] numbers."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < size
    tl.store(to_ptr + place, tl.load(from_ptr + place, mask=mask, other=0), mask=mask)


@wraps(unified_attention)
def cached_by_pointer(**given: Any) -> None:
    """Wrong: the lengths are kept for the address of the tensor that holds them."""
    lengths = given["seqused_k"]
    kept = _lengths.setdefault(lengths.data_ptr(), lengths.clone())
    unified_attention(**{**given, "seqused_k": kept[: len(lengths)]})


@wraps(unified_attention)
def cached_by_shape(**given: Any) -> None:
    """Wrong: the lengths are kept for the number of sequences and the longest of them."""
    lengths = given["seqused_k"]
    kept = _by_shape.setdefault((len(lengths), given["max_seqlen_k"]), lengths.clone())
    unified_attention(**{**given, "seqused_k": kept})


@wraps(unified_attention)
def cached_without_the_scale(**given: Any) -> None:
    """Wrong: what is planned for a shape is kept, and one argument that it follows from is not in the key."""
    scale = _scales.setdefault((given["q"].shape, given["max_seqlen_k"]), given["softmax_scale"])
    unified_attention(**{**given, "softmax_scale": scale})


@wraps(unified_attention)
def keeps_scratch(**given: Any) -> None:
    """Wrong: a kernel adds to scratch that only the first call of a shape finds full of zeros."""
    out = given["out"]
    own, rows = torch.zeros(out.shape, dtype=out.dtype, device=out.device), int(given["cu_seqlens_q"][-1])
    unified_attention(**{**given, "out": own})
    total = _sums.setdefault(tuple(out.shape), torch.zeros(out.shape, device=out.device))
    add_kernel[(triton.cdiv(own.numel(), BLOCK),)](total, own.float(), own.numel(), BLOCK)
    out[:rows] = total[:rows].to(out.dtype)


@wraps(unified_attention)
def fails_after_an_error(**given: Any) -> None:
    """Wrong: what a call that raised has noted in its thread is still there in the next one."""
    scale = given["softmax_scale"] * (2.0 if getattr(_own, "runs", False) else 1.0)
    _own.runs = True
    unified_attention(**{**given, "softmax_scale": scale})
    _own.runs = False


def _with_room(key: Any, given: dict[str, Any]) -> None:
    """Run the launcher with lengths that lie in the room of a key."""
    lengths = given["seqused_k"]
    if key not in _room or _room[key].numel() < len(lengths):
        _room[key] = torch.empty(2 * len(lengths), dtype=lengths.dtype, device=lengths.device)
    copy_kernel[(triton.cdiv(len(lengths), BLOCK),)](_room[key], lengths.contiguous(), len(lengths), BLOCK)
    given = {**given, "seqused_k": _room[key][: len(lengths)]}
    unified_attention(**given)


@wraps(unified_attention)
def shares_scratch(**given: Any) -> None:
    """Wrong: two threads have one buffer for the lengths."""
    _with_room("all", given)


@wraps(unified_attention)
def scratch_of_all_streams(**given: Any) -> None:
    """Wrong on a GPU: a lock keeps threads apart, but the work of two streams has one buffer for the lengths."""
    with _lock:
        _with_room("all", given)


@wraps(unified_attention)
def scratch_of_each_stream(**given: Any) -> None:
    """Right: the work of each stream has a buffer of its own."""
    with _lock:
        _with_room(_current(), given)


def _current() -> int:
    return torch.cuda.current_stream().cuda_stream if torch.cuda.is_initialized() else 0


@contextmanager
def _in_side_stream(*, joined: bool) -> Iterator[None]:
    """Launch in a stream of the target's own; ``joined`` to the current one before and after."""
    if not torch.cuda.is_initialized():
        yield
        return
    if not _side:
        _side.append(torch.cuda.Stream())
    side, current = _side[0], torch.cuda.current_stream()
    if joined:
        side.wait_stream(current)
    with torch.cuda.stream(side):
        yield
    if joined:
        current.wait_stream(side)


@wraps(unified_attention)
def beside_the_stream(**given: Any) -> None:
    """Wrong on a GPU: its stream waits neither for the inputs nor lets anybody wait for the output."""
    with _in_side_stream(joined=False):
        unified_attention(**given)


@wraps(unified_attention)
def joins_its_stream(**given: Any) -> None:
    """Right: it launches in a stream of its own, which is joined to the current one."""
    with _in_side_stream(joined=True):
        unified_attention(**given)


@wraps(unified_attention)
def right_unified(**given: Any) -> None:
    """Right: it keeps nothing."""
    unified_attention(**given)
