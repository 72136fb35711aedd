"""Row blocks: the query rows of a batch and the keys they see, as dense float64 tensors padded to one shape.

Ragged sequences are cut and grouped so that little is wasted: sequences of similar lengths share a block, long queries
are cut into several. Padding repeats the last row or key of its sequence, so that everything in a block is real data:
slots that no row may see are never read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fuzz_attn.tensors import AttentionTensors

MAX_BLOCK_SCORES = 2**20
"""Scores of a block, padding included, beyond which rows go to another block; keeps the memory near 100 MB."""

BLOCK_COST = 2**19
"""What another block costs in calls, in scores times ``head_size + SCORE_COST``: about 0.5 ms on one core."""

SCORE_COST = 40
"""What a score costs by itself, beside its ``head_size`` products: some forty elementwise operations."""


@dataclass(frozen=True)
class RowBlock:
    """Rows of some sequences, ``B`` spans of up to ``Q`` query tokens that see up to ``K`` keys.

    ``tokens`` int64 ``[B, Q]``, row of q and out; ``queries`` float64 ``[B, num_kv_heads, Q, group, head_size]``;
    ``keys`` and ``values`` float64 ``[B, num_kv_heads, K, head_size]``, dequantised as the specification says;
    ``visible`` bool ``[B, Q, K]``; ``position`` int64 ``[B, Q]`` of the query and ``key_position`` ``[B, K]``;
    ``context_len`` int64 ``[B]``; ``qq_bias`` float64 ``[B, Q, K]``, 0 where masked.
    """

    tokens: torch.Tensor
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    visible: torch.Tensor
    position: torch.Tensor
    key_position: torch.Tensor
    context_len: torch.Tensor
    qq_bias: torch.Tensor | None


@dataclass(frozen=True)
class Span:
    """``num_rows`` query tokens of a sequence from ``first_row`` on, and the ``num_keys`` keys that they see."""

    sequence: int
    first_row: int
    num_rows: int
    first_key: int
    num_keys: int


def row_blocks(tensors: AttentionTensors) -> Iterator[RowBlock]:
    """Yield blocks that hold each row of the batch at least once (a padded row repeats the last of its span)."""
    starts = [0]
    for query_len in tensors.query_lens:
        starts.append(starts[-1] + query_len)
    for spans in _grouped(_spans(tensors), *tensors.query.shape[1:]):
        yield _block(tensors, spans, starts)


def _spans(tensors: AttentionTensors) -> list[Span]:
    spans = []
    num_heads = tensors.query.shape[1]
    for sequence, (query_len, context_len) in enumerate(zip(tensors.query_lens, tensors.context_lens, strict=True)):
        step = max(1, MAX_BLOCK_SCORES // max(1, num_heads * (query_len + context_len)))
        for row in range(0, query_len, step):
            num_rows = min(step, query_len - row)
            first_key = max(0, context_len + row - tensors.window + 1) if tensors.window else 0
            spans.append(Span(sequence, row, num_rows, first_key, context_len + row + num_rows - first_key))
    return spans


def _grouped(spans: list[Span], num_heads: int, head_size: int) -> Iterator[list[Span]]:
    """Yield groups of spans of similar lengths, for which padding costs less than a block of their own would."""
    group: list[Span] = []
    rows = keys = padded = 0
    for span in sorted(spans, key=lambda span: (span.num_keys, span.num_rows)):
        rows, keys = max(rows, span.num_rows), max(keys, span.num_keys)
        alone, together = span.num_rows * span.num_keys * num_heads, (len(group) + 1) * rows * keys * num_heads
        extra = (together - padded - alone) * (head_size + SCORE_COST)
        if group and (extra > BLOCK_COST or together > MAX_BLOCK_SCORES):
            yield group
            group, rows, keys, together = [], span.num_rows, span.num_keys, alone
        group.append(span)
        padded = together
    if group:
        yield group


def _block(tensors: AttentionTensors, spans: list[Span], starts: list[int]) -> RowBlock:
    device = tensors.query.device
    table = torch.tensor(
        [
            (s.sequence, starts[s.sequence], s.first_row, s.num_rows, s.first_key, s.num_keys,
             tensors.context_lens[s.sequence])
            for s in spans
        ],
        device=device,
    )  # fmt: skip
    sequence, start, first_row, num_rows, first_key, num_keys, context_len = table.T[..., None]
    row = first_row + torch.minimum(torch.arange(max(s.num_rows for s in spans), device=device), num_rows - 1)
    column = torch.arange(max(s.num_keys for s in spans), device=device)
    key_position = first_key + torch.minimum(column, num_keys - 1)
    position = context_len + row
    visible = _causal(position, key_position, tensors.window) & (column < num_keys)[:, None]
    bias = None
    if tensors.qq_bias is not None:
        bias = _qq_bias(tensors.qq_bias, row, key_position - context_len)
        visible &= bias > -torch.inf
        bias = bias.masked_fill_(~visible, 0.0)
    keys, values = _cached(tensors, sequence, key_position)
    return RowBlock(
        tokens=start + row,
        queries=_queries(tensors, start + row),
        keys=keys,
        values=values,
        visible=visible,
        position=position,
        key_position=key_position,
        context_len=context_len[:, 0],
        qq_bias=bias,
    )


def _causal(position: torch.Tensor, key_position: torch.Tensor, window: int) -> torch.Tensor:
    distance = position[:, :, None] - key_position[:, None]
    return (distance >= 0) & (distance < window) if window else distance >= 0


def _qq_bias(matrix: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Return ``matrix[row, column]`` as float64 ``[B, Q, K]``, 0 for columns that the matrix does not have."""
    inside = (column >= 0) & (column < matrix.shape[1])
    bias = matrix[row[:, :, None], torch.where(inside, column, 0)[:, None]].double()
    return bias.masked_fill_(~inside[:, None], 0.0)


def _queries(tensors: AttentionTensors, tokens: torch.Tensor) -> torch.Tensor:
    queries = _taken(tensors.query, (tokens,)).double()
    grouped = queries.view(*tokens.shape, tensors.key_cache.shape[2], -1, queries.shape[-1])
    return grouped.transpose(1, 2).contiguous()


def _cached(
    tensors: AttentionTensors, sequence: torch.Tensor, key_position: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return K and V ``[B, num_kv_heads, K, head_size]``: in fp8 as stored when q is fp8 too, else dequantised."""
    block_size = tensors.key_cache.shape[1]
    block = tensors.block_table[sequence, key_position // block_size].long()
    index = block, key_position % block_size
    dtype = tensors.query.dtype
    keys = _dequantised(_taken(tensors.key_cache, index), tensors.k_scale, dtype)
    values = _dequantised(_taken(tensors.value_cache, index), tensors.v_scale, dtype)
    return keys.transpose(1, 2).contiguous(), values.transpose(1, 2).contiguous()


def _taken(tensor: torch.Tensor, index: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return ``tensor[index]`` for any type; fp8 has no indexing of its own on every device."""
    if tensor.dtype.itemsize == 1:
        return tensor.view(torch.uint8)[index].view(tensor.dtype)
    return tensor[index]


def _dequantised(stored: torch.Tensor, scale: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Return the float64 values that the specification multiplies: fp8 times its scale, rounded to the type of q."""
    if stored.dtype.itemsize > 1 or dtype.itemsize == 1:
        return stored.double()
    scaled = stored.float()
    if scale is not None:
        scaled *= scale
    return scaled.to(dtype).double()
