"""Attention in plain torch that normalises in several ways. All of them are right, but those that lose a key."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

SEGMENT = 500
LONG = 600
"""Shorter sequences lose no key."""
Average = Callable[[torch.Tensor, torch.Tensor, torch.dtype], torch.Tensor]


def _unified(average: Average, lost: int | None, q: Any, k: Any, v: Any, out: Any, given: dict[str, Any]) -> None:
    starts = given["cu_seqlens_q"].tolist()
    for index, seq_len in enumerate(given["seqused_k"].tolist()):
        rows = slice(starts[index], starts[index + 1])
        if rows.start == rows.stop:
            continue
        positions = torch.arange(seq_len)
        pages = given["block_table"][index].long()[positions // k.shape[1]]
        slots = positions % k.shape[1]
        keys, values = (
            each[pages, slots].float().repeat_interleave(q.shape[1] // k.shape[2], dim=1).transpose(0, 1)
            for each in (k, v)
        )
        query = q[rows].float().transpose(0, 1)
        scores = query @ keys.transpose(1, 2) * given["softmax_scale"]
        last = seq_len - (rows.stop - rows.start) + torch.arange(rows.stop - rows.start)
        hidden = positions > last[:, None]
        if lost is not None and seq_len > LONG:
            hidden |= positions == lost % seq_len
        scores = scores.masked_fill(hidden, -torch.inf)
        out[rows] = average(scores, values, q.dtype).transpose(0, 1).to(out.dtype)


def _last(scores: torch.Tensor, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights.to(dtype).float() @ values / weights.sum(-1, keepdim=True)


def _first(scores: torch.Tensor, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return scores.softmax(-1).to(dtype).float() @ values


def _first_in_float32(scores: torch.Tensor, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return scores.softmax(-1) @ values


def _segments(scores: torch.Tensor, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Divide last in short sequences, and merge normalised segments of long ones."""
    if scores.shape[-1] <= 2 * SEGMENT:
        return _last(scores, values, dtype)
    parts = range(0, scores.shape[-1], SEGMENT)
    averages = torch.stack([_last(scores[..., s : s + SEGMENT], values[:, s : s + SEGMENT], dtype) for s in parts])
    logs = torch.stack([scores[..., s : s + SEGMENT].logsumexp(-1, keepdim=True) for s in parts])
    return ((logs - logs.logsumexp(0)).exp() * averages.nan_to_num(0.0)).sum(0)


def target(average: Average, lost: int | None = None) -> Callable[..., None]:
    def unified_attention(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        seqused_k: torch.Tensor,
        softmax_scale: float,
        block_table: torch.Tensor,
    ) -> None:
        given = {"cu_seqlens_q": cu_seqlens_q, "seqused_k": seqused_k, "softmax_scale": softmax_scale}
        partial(_unified, average, lost)(q, k, v, out, {**given, "block_table": block_table})

    return unified_attention


divides_last = target(_last)
divides_first = target(_first)
divides_first_in_float32 = target(_first_in_float32)
merges_long = target(_segments)
loses_a_key = target(_last, 3000)
AVERAGES = {"last": _last, "first": _first, "first in float32": _first_in_float32, "segments": _segments}
