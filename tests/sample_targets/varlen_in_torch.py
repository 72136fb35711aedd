"""Attention over packed keys in plain torch, with FlashAttention's names and written without any use of fuzz_attn."""

from __future__ import annotations

import torch


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> torch.Tensor:
    """Return the attention output of every query token."""
    out = torch.zeros(*q.shape[:2], v.shape[2], dtype=q.dtype)
    starts, firsts = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for sequence in range(len(starts) - 1):
        rows = slice(starts[sequence], starts[sequence + 1])
        keys = slice(firsts[sequence], firsts[sequence + 1])
        query_len, key_len = rows.stop - rows.start, keys.stop - keys.start
        if not (query_len and key_len):
            continue
        behind = torch.arange(key_len) - torch.arange(query_len)[:, None] - (key_len - query_len)
        hidden = behind > 0 if causal else torch.zeros_like(behind, dtype=torch.bool)
        left, right = window_size
        hidden |= (left >= 0) & (behind < -left)
        hidden |= (right >= 0) & (behind > right)
        unused = hidden.all(0)[:, None, None]
        dense = (tensor[keys].float().masked_fill(unused, 0.0) for tensor in (k, v))
        own_keys, values = (each.repeat_interleave(q.shape[1] // k.shape[1], 1) for each in dense)
        scores = torch.einsum("ihd,jhd->hij", q[rows].float(), own_keys)
        scores *= q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out[rows] = torch.einsum("hij,jhd->ihd", weights, values).to(out.dtype)
    return out
