"""Targets that accept an argument in an unusual form and get it wrong; and right ones beside them.

They compute attention, merge two states or write a cache, and are right on all usual arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch_attention import unified_attention  # type: ignore[import-not-found] # found beside this file, as a user's is
from with_flags import _decode  # type: ignore[import-not-found] # as above

Target = Callable[..., None]


def _with(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Target:
    """Return attention with another tensor in the place of an argument."""

    @wraps(unified_attention)
    def variant(**given: Any) -> None:
        tensor = given[name]
        unified_attention(**{**given, name: None if tensor is None else change(tensor)})

    return variant


def _bytes_as(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what a kernel reads that takes a vector, or the rows of a table, for one of another type."""
    found = tensor.contiguous().view(torch.uint8)
    count = found.shape[-1] // dtype.itemsize
    found = found[..., : count * dtype.itemsize].contiguous().view(dtype)
    return found[..., : tensor.shape[-1]] if count >= tensor.shape[-1] else found.repeat_interleave(2, -1)


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return what a kernel reads that rounds an address down to a multiple of 16 bytes."""
    place = tensor.storage_offset() - tensor.data_ptr() % 16 // tensor.element_size()
    return tensor.as_strided(tensor.shape, tensor.stride(), place)


def _of_device(tensor: torch.Tensor) -> torch.Tensor:
    """Return zeros where a tensor cannot be read on this device."""
    return torch.zeros(tensor.shape, dtype=tensor.dtype) if tensor.is_meta else tensor


table_of_int64 = _with("block_table", lambda table: _bytes_as(table, torch.int32))
slopes_of_float64 = _with("alibi_slopes", lambda slopes: _bytes_as(slopes, torch.float32))
unaligned_starts = _with("cu_seqlens_q", _aligned)
table_elsewhere = _with("block_table", _of_device)


def _dense(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Return what a kernel reads that gets the strides of all axes but the last one: numbers below ``count``.

    Others stay right, because torch refuses them.
    """
    found = tensor.as_strided(tensor.shape, (*tensor.stride()[:-1], 1))
    return torch.where((found < 0) | (found >= count), tensor, found)


def dense_metadata(q, k, v, out, cu_seqlens_q, seqused_k, block_table, softmax_scale):  # type: ignore[no-untyped-def]
    """Wrong: three tensors are read as if they were dense, for one reason."""
    given = {"q": q, "k": k, "v": v, "out": out, "softmax_scale": softmax_scale}
    missing = dict.fromkeys(("max_seqlen_q", "max_seqlen_k", "q_descale", "k_descale", "v_descale"))
    lengths = _dense(seqused_k, 2**31 - 1).clamp(cu_seqlens_q.diff(), seqused_k)
    starts, pages = _dense(cu_seqlens_q, len(q) + 1), _dense(block_table, len(k))
    metadata = {"cu_seqlens_q": starts, "seqused_k": lengths, "block_table": pages}
    unified_attention(**given, **missing, **metadata, causal=True, window_size=(-1, -1), softcap=0.0)


def strided_lengths(query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale):  # type: ignore[no-untyped-def]
    """Wrong: the kernel reads the lengths as if they were dense. Nothing tells it their stride."""
    if block_table.numel() and block_table.stride(-1) != 1:
        raise ValueError(f"block_table has a last stride of {block_table.stride(-1)}, must be 1")
    flags = {"BACKWARD": False, "ABSOLUTE": False, "BROKEN": False}
    _decode(query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale, tile=16, **flags)


@wraps(unified_attention)
def overwritten_queries(**given: Any) -> None:
    """Wrong where the output is q: the rows of the output are cleared before q is read."""
    given["out"][: int(given["cu_seqlens_q"][-1])].zero_()
    unified_attention(**given)


@wraps(unified_attention)
def garbage_without_sequences(**given: Any) -> None:
    """Wrong without sequences: the first row of the output is written all the same."""
    if not len(given["seqused_k"]) and len(given["out"]):
        given["out"][0] = 0.0
    unified_attention(**given)


@wraps(unified_attention)
def refusing(**given: Any) -> None:
    """Right: everything unusual is refused."""
    for name in ("seqused_k", "cu_seqlens_q", "block_table"):
        tensor = given[name]
        if tensor.dtype != torch.int32 or (tensor.numel() and tensor.stride(-1) != 1) or not tensor.is_cpu:
            raise ValueError(f"{name} must be int32 with a last stride of 1 on the CPU")
    for name in ("alibi_slopes", "sinks", "q_descale", "k_descale", "v_descale"):
        if given[name] is not None and given[name].dtype == torch.float64:
            raise ValueError(f"{name} must not be float64")
    if given["out"].data_ptr() == given["q"].data_ptr() and given["q"].numel():
        raise ValueError("out must not be q")
    unified_attention(**given)


def _merged(
    output: torch.Tensor,
    prefix_output: torch.Tensor,
    prefix_lse: torch.Tensor,
    suffix_output: torch.Tensor,
    suffix_lse: torch.Tensor,
    output_lse: torch.Tensor,
    *,
    early: bool,
) -> None:
    rows, lses = len(prefix_lse), torch.stack((prefix_lse, suffix_lse))
    top = lses.amax(0)
    weights = (lses - top.masked_fill(top == -torch.inf, 0.0)).exp()
    total = weights.sum(0)
    shares = (weights / total.masked_fill(total == 0.0, 1.0))[..., None]
    outputs = [each[:rows].float().masked_fill((lses[number] == -torch.inf)[..., None], 0.0)
               for number, each in enumerate((prefix_output, suffix_output))]  # fmt: skip
    if early:
        output[:rows] = (shares[0] * outputs[0]).to(output.dtype)
        suffix = suffix_output[:rows].float().masked_fill((lses[1] == -torch.inf)[..., None], 0.0)
        output[:rows] = (shares[0] * outputs[0] + shares[1] * suffix).to(output.dtype)
    else:
        output[:rows] = (shares[0] * outputs[0] + shares[1] * outputs[1]).to(output.dtype)
    output_lse[:rows] = top + total.log()


def merge_early(output, prefix_output, prefix_lse, suffix_output, suffix_lse, output_lse):  # type: ignore[no-untyped-def]
    """Wrong where the output is that of the second state, which is read again after the first write."""
    _merged(output, prefix_output, prefix_lse, suffix_output, suffix_lse, output_lse, early=True)


def merge(output, prefix_output, prefix_lse, suffix_output, suffix_lse, output_lse):  # type: ignore[no-untyped-def]
    """Right, also in the place of a state."""
    _merged(output, prefix_output, prefix_lse, suffix_output, suffix_lse, output_lse, early=False)


def _write(key: torch.Tensor, value: torch.Tensor, caches: tuple[torch.Tensor, ...], slots: torch.Tensor) -> None:
    for new, cache in zip((key, value), caches, strict=True):
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                cache[slot // cache.shape[1], slot % cache.shape[1]] = new[token].to(cache.dtype)


def write_slots_of_int64(key, value, key_cache, value_cache, slot_mapping):  # type: ignore[no-untyped-def]
    """Wrong for int32 slots, which are read as half as many int64."""
    slots = slot_mapping.contiguous()
    if slots.dtype == torch.int32:
        slots = slots[: len(slots) // 2 * 2].view(torch.int64) % 2**32
    _write(key, value, (key_cache, value_cache), slots)


def write(key, value, key_cache, value_cache, slot_mapping):  # type: ignore[no-untyped-def]
    """Right for slots of both types."""
    _write(key, value, (key_cache, value_cache), slot_mapping)
