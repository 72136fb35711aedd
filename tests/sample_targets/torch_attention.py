"""Unified paged attention in plain torch, written without any use of fuzz_attn, and wrong variants of it.

The right one is ``tests/sample_targets/torch_attention.py:unified_attention``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch

Target = Callable[..., None]


@dataclass(frozen=True)
class Mistakes:
    """The mistakes of a variant; none by default."""

    longer_window: int = 0
    transposed_bias: bool = False
    last_row_unwritten: bool = False
    swapped_scales: bool = False
    reads_dead_slots: bool = False


def unified_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,
    seqused_k: torch.Tensor,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    block_table: torch.Tensor,
    softcap: float,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None = None,
    qq_bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    output_scale: torch.Tensor | None = None,
) -> None:
    """Write the attention of every query token into ``out``."""
    _attend(**locals())


def _attend(mistakes: Mistakes = Mistakes(), **given: Any) -> None:
    starts, lengths = given["cu_seqlens_q"].tolist(), given["seqused_k"].tolist()
    for index, seq_len in enumerate(lengths):
        rows = slice(starts[index], starts[index + 1])
        if rows.start < rows.stop:
            _attend_one(given, index, rows, seq_len, mistakes)


def _attend_one(given: dict[str, Any], index: int, rows: slice, seq_len: int, mistakes: Mistakes) -> None:
    """Write the rows of one sequence; scores are ``[heads, queries, keys]``."""
    query = given["q"][rows].float()
    context_len = seq_len - query.shape[0]
    left = given["window_size"][0]
    window = left + 1 + mistakes.longer_window if left >= 0 else seq_len
    positions = readable(seq_len, context_len, window, given["k"].shape[1], mistakes)
    scales = given["k_descale"], given["v_descale"]
    key_scale, value_scale = reversed(scales) if mistakes.swapped_scales else scales
    keys = gathered(given["k"], given, index, positions, key_scale)
    values = gathered(given["v"], given, index, positions, value_scale)
    scores = torch.einsum("ihd,jhd->hij", query, keys) * given["softmax_scale"]
    if given["softcap"] > 0:
        scores = given["softcap"] * torch.tanh(scores / given["softcap"])
    scores = scores + biases(given, query.shape[0], positions - context_len, mistakes)
    distance = (context_len + torch.arange(query.shape[0]))[:, None] - positions
    scores.masked_fill_((distance < 0) | (distance >= window), -torch.inf)
    weights = _softmax(scores, given["sinks"])
    result = torch.einsum("hij,jhd->ihd", weights, values)
    written = query.shape[0] - mistakes.last_row_unwritten
    given["out"][rows][:written] = stored(result, given["out"].dtype, given["output_scale"])[:written]


def readable(seq_len: int, context_len: int, window: int, block_size: int, mistakes: Mistakes) -> torch.Tensor:
    """Return the positions of the keys that some row sees."""
    end = -(-seq_len // block_size) * block_size if mistakes.reads_dead_slots else seq_len
    return torch.arange(max(0, context_len - window + 1), end)


def gathered(
    cache: torch.Tensor, given: dict[str, Any], index: int, positions: torch.Tensor, scale: torch.Tensor | None
) -> torch.Tensor:
    """Return the keys or values of one sequence, ``[positions, query heads, head_size]`` in float32."""
    block_size = cache.shape[1]
    pages = given["block_table"][index].long()[positions // block_size]
    cached = cache[pages, positions % block_size].float()
    if scale is not None:
        cached = (cached * scale).to(given["q"].dtype).float()
    return cached.repeat_interleave(given["q"].shape[1] // cache.shape[2], dim=1)


def biases(given: dict[str, Any], query_len: int, relative: torch.Tensor, mistakes: Mistakes) -> torch.Tensor:
    """Return the sum of ALiBi and the query-query bias; ``relative`` are key positions relative to the context."""
    slopes, bias = given["alibi_slopes"], given["qq_bias"]
    total = torch.zeros(given["q"].shape[1], query_len, len(relative))
    if slopes is not None:
        total += slopes[:, None, None] * relative
    if bias is not None:
        if mistakes.transposed_bias:
            side = min(bias.shape)
            bias = bias[:side, :side].T
        columns = (relative >= 0) & (relative < bias.shape[1])
        rows = min(query_len, bias.shape[0])
        total[:, :rows, columns] += bias[:rows, relative[columns]]
    return total


def _softmax(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    if sinks is None:
        return scores.softmax(dim=-1)
    sink = sinks.float()[:, None, None].expand(*scores.shape[:2], 1)
    return torch.cat((scores, sink), dim=-1).softmax(dim=-1)[..., :-1]


def stored(result: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor | None) -> torch.Tensor:
    if dtype.itemsize > 1:
        return result.to(dtype)
    assert scale is not None
    largest = torch.finfo(dtype).max
    return (result * (1.0 / scale)).clamp(-largest, largest).to(dtype)


def _wrong(**mistakes: Any) -> Target:
    """Return a variant with the published signature and some mistakes."""

    @wraps(unified_attention)
    def variant(**given: Any) -> None:
        _attend(Mistakes(**mistakes), **given)

    return variant


window_one_too_long = _wrong(longer_window=1)
transposed_bias = _wrong(transposed_bias=True)
last_row_unwritten = _wrong(last_row_unwritten=True)
swapped_scales = _wrong(swapped_scales=True)
poison_leaks = _wrong(reads_dead_slots=True)
