"""Extend attention in plain torch, written without any use of fuzz_attn, and a variant that is wrong with a mask."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch


def extend_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    sm_scale: float | None = None,
    is_causal: bool = True,
    window_size: tuple[int, int] = (-1, -1),
    chunk_size: int = 0,
    custom_mask: torch.Tensor | None = None,
    mask_indptr: torch.Tensor | None = None,
) -> None:
    """Write the attention of every new token into ``out``."""
    starts, contexts = qo_indptr.tolist(), kv_indptr.tolist()
    for sequence in range(len(starts) - 1):
        rows = slice(starts[sequence], starts[sequence + 1])
        slots = kv_indices[contexts[sequence] : contexts[sequence + 1]].long()
        query_len, context_len = rows.stop - rows.start, len(slots)
        position, key = torch.arange(query_len)[:, None] + context_len, torch.arange(context_len + query_len)
        hidden = key > position if is_causal else torch.zeros(query_len, len(key), dtype=torch.bool)
        left, right = window_size
        if left >= 0:
            hidden |= key < position - left
        if right >= 0 and not is_causal:
            hidden |= key > position + right
        if chunk_size:
            hidden |= key // chunk_size != position // chunk_size
        if custom_mask is not None and mask_indptr is not None:
            first = int(mask_indptr[sequence])
            hidden |= ~custom_mask[first : first + hidden.numel()].view(hidden.shape)
        needed = ~hidden.all(0)
        keys, values = (
            torch.cat([buffer[slots], new[rows]]).float().where(needed[:, None, None], torch.zeros(()))
            for buffer, new in ((k_buffer, k), (v_buffer, v))
        )
        group = q.shape[1] // k.shape[1]
        scores = torch.einsum("ihd,jhd->hij", q[rows].float(), keys.repeat_interleave(group, 1))
        scores *= q.shape[2] ** -0.5 if sm_scale is None else sm_scale
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out[rows] = torch.einsum("hij,jhd->ihd", weights, values.repeat_interleave(group, 1)).to(out.dtype)


@wraps(extend_attention)
def wrong_with_custom_mask(**given: Any) -> None:
    """Overwrite a row if there is a custom mask."""
    extend_attention(**given)
    if given["custom_mask"] is not None and len(given["out"]):
        given["out"][int(given["qo_indptr"][-1]) - 1, 0] = 77.0
