"""Targets that keep something between calls, wrongly or rightly; attention itself is ``torch_attention.py``'s."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parent))
from torch_attention import unified_attention as _attention  # noqa: E402

_lengths: dict[int, list[int]] = {}
_orders: dict[Any, torch.Tensor] = {}
_sums: dict[Any, torch.Tensor] = {}


def cached_by_pointer(
    q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal, window_size,
    block_table, softcap, q_descale, k_descale, v_descale, alibi_slopes=None, qq_bias=None, sinks=None,
    output_scale=None,
) -> None:
    """Wrong: keeps the lengths on the host for the address of the tensor that holds them."""
    given = dict(locals())
    if seqused_k.data_ptr() not in _lengths:
        _lengths[seqused_k.data_ptr()] = seqused_k.tolist()
    _attention(**{**given, "seqused_k": torch.tensor(_lengths[seqused_k.data_ptr()])})


def cached_by_shape(
    q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal, window_size,
    block_table, softcap, q_descale, k_descale, v_descale, alibi_slopes=None, qq_bias=None, sinks=None,
    output_scale=None,
) -> None:
    """Wrong: keeps the lengths of the sequences for the number of them and the longest."""
    given = dict(locals())
    key = len(seqused_k), max_seqlen_k
    if key not in _orders:
        _orders[key] = seqused_k.clone()
    _attention(**{**given, "seqused_k": _orders[key]})


def keeps_scratch(
    q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal, window_size,
    block_table, softcap, q_descale, k_descale, v_descale, alibi_slopes=None, qq_bias=None, sinks=None,
    output_scale=None,
) -> None:
    """Wrong: adds to scratch that only the first call of a shape finds full of zeros."""
    given = dict(locals())
    shape = tuple(out.shape)
    if shape not in _sums:
        _sums[shape] = torch.zeros(shape)
    own = torch.empty_like(out)
    _attention(**{**given, "out": own})
    rows = int(cu_seqlens_q[-1])
    _sums[shape][:rows] += own[:rows].float()
    out[:rows] = _sums[shape][:rows].to(out.dtype)
