"""Targets that keep something between calls: wrong ones, and right ones beside them. What they compute is attention."""

from __future__ import annotations

import threading
import weakref
from functools import lru_cache, wraps
from typing import Any

import torch
from torch_attention import unified_attention  # type: ignore[import-not-found] # found beside this file, as a user's is

_lengths: dict[int, list[int]] = {}
_by_shape: dict[tuple[int, int], torch.Tensor] = {}
_sums: dict[tuple[int, ...], torch.Tensor] = {}
_seen: dict[int, tuple[Any, int, list[int]]] = {}
_buffers: dict[int, torch.Tensor] = {}
_room: dict[str, torch.Tensor] = {}
_keys: dict[str, int] = {}
_own = threading.local()


class _Refusing:
    """An object that cannot be asked for an attribute that it lacks, as ``pytest.mark``."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name} is unknown")


_refusing = _Refusing()


@wraps(unified_attention)
def cached_by_pointer(**given: Any) -> None:
    """Wrong: the lengths on the host are kept for the address of the tensor that holds them."""
    lengths = given["seqused_k"]
    if lengths.data_ptr() not in _lengths:
        _lengths[lengths.data_ptr()] = lengths.tolist()
    unified_attention(**{**given, "seqused_k": torch.tensor(_lengths[lengths.data_ptr()])})


@wraps(unified_attention)
def cached_by_shape(**given: Any) -> None:
    """Wrong: the lengths are kept for the number of sequences and the longest of them."""
    lengths = given["seqused_k"]
    key = len(lengths), given["max_seqlen_k"]
    if key not in _by_shape:
        _by_shape[key] = lengths.clone()
    unified_attention(**{**given, "seqused_k": _by_shape[key]})


@wraps(unified_attention)
def keeps_scratch(**given: Any) -> None:
    """Wrong: it adds to scratch that only the first call of a shape finds full of zeros."""
    out = given["out"]
    own, rows = torch.zeros_like(out), int(given["cu_seqlens_q"][-1])
    unified_attention(**{**given, "out": own})
    total = _sums.setdefault(tuple(out.shape), torch.zeros(out.shape))
    total[:rows] += own[:rows].float()
    out[:rows] = total[:rows].to(out.dtype)


@wraps(unified_attention)
def fails_after_an_error(**given: Any) -> None:
    """Wrong: what a call that raised has noted in its thread is still there in the next one."""
    scale = given["softmax_scale"] * (2.0 if getattr(_own, "runs", False) else 1.0)
    _own.runs = True
    unified_attention(**{**given, "softmax_scale": scale})
    _own.runs = False


@wraps(unified_attention)
def shares_scratch(**given: Any) -> None:
    """Wrong: two threads have one buffer for the lengths."""
    lengths = given["seqused_k"]
    if "lengths" not in _room or _room["lengths"].numel() < len(lengths):
        _room["lengths"] = torch.empty(2 * len(lengths), dtype=lengths.dtype)
    room = _room["lengths"]
    room[: len(lengths)] = lengths
    scale = given["softmax_scale"] * 1.0
    unified_attention(**{**given, "seqused_k": room[: len(lengths)], "softmax_scale": scale})


@wraps(unified_attention)
def halves_the_scale(**given: Any) -> None:
    """Wrong in each call, whatever came before: scores are half of what they must be."""
    unified_attention(**{**given, "softmax_scale": given["softmax_scale"] / 2})


@wraps(unified_attention)
def grows_one_late(**given: Any) -> None:
    """Wrong: room for keys that is made larger one key too late, and never smaller."""
    longest = given["max_seqlen_k"]
    if longest > _keys.get("room", -2) + 1:
        _keys["room"] = max(128, 1 << (longest - 1).bit_length())
    unified_attention(**{**given, "seqused_k": given["seqused_k"].clamp(max=_keys["room"])})


@lru_cache
def _positions(size: int) -> torch.Tensor:
    return torch.arange(size)


@wraps(unified_attention)
def right_by_shape(**given: Any) -> None:
    """Right: what is kept for a shape follows from the shape."""
    assert len(_positions(given["max_seqlen_k"])) == given["max_seqlen_k"]
    unified_attention(**given)


@wraps(unified_attention)
def right_by_pointer(**given: Any) -> None:
    """Right: what is kept for an address is used for the same tensor with the same contents only."""
    lengths: Any = given["seqused_k"]
    tensor, version, numbers = _seen.get(lengths.data_ptr(), (None, -1, []))
    if tensor is None or tensor() is not lengths or version != lengths._version:
        numbers = lengths.tolist()
        _seen[lengths.data_ptr()] = weakref.ref(lengths), lengths._version, numbers
    unified_attention(**{**given, "seqused_k": torch.tensor(numbers)})


@wraps(unified_attention)
def right_scratch(**given: Any) -> None:
    """Right: a buffer of each thread that grows, and is made anew by each call."""
    out, buffer = given["out"], _buffers.setdefault(threading.get_ident(), torch.empty(0))
    if buffer.numel() < out.numel():
        buffer = _buffers[threading.get_ident()] = torch.empty(out.numel())
    own, rows = buffer[: out.numel()].view(out.shape).to(out.dtype), int(given["cu_seqlens_q"][-1])
    own.fill_(float("nan"))
    unified_attention(**{**given, "out": own})
    out[:rows] = own[:rows]


@wraps(unified_attention)
def right_in_threads(**given: Any) -> None:
    """Right: each thread has a buffer of its own."""
    lengths = given["seqused_k"]
    if getattr(_own, "room", lengths[:0]).numel() < len(lengths):
        _own.room = torch.empty(2 * len(lengths), dtype=lengths.dtype)
    _own.room[: len(lengths)] = lengths
    unified_attention(**{**given, "seqused_k": _own.room[: len(lengths)]})
