"""Row blocks: the query rows of a batch and the keys that they see, as dense float64 tensors padded to one shape.

On the host numpy compares 30,000 numbers, or counts those of as many that hold, in a fifth of the time of torch 2.13,
and finds the largest of a few thousand in a third. To count a few takes a quarter of the time of asking for any. The
oracle asks some ten times for each case.

Sequences of similar lengths share a block and long queries are cut into several, so that there is little padding.
Padding repeats the last row or key of its sequence, so a block holds only real data: slots that no row sees are never
read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.inputs.tensors import AttentionTensors, Store, taken


def some(mask: torch.Tensor) -> bool:
    """Return whether some element holds."""
    return bool(np.count_nonzero(mask.numpy())) if mask.is_cpu else bool(mask.any())


def some_between(numbers: torch.Tensor, low: float, high: float) -> bool:
    """Return whether some number is above ``low`` and below ``high``."""
    if not numbers.is_cpu:
        return bool(((numbers > low) & (numbers < high)).any())
    array = numbers.numpy()
    return bool(((array > low) & (array < high)).any())


def minimum_of(numbers: torch.Tensor) -> float:
    """Return the smallest number of at least one; NaN if there is any."""
    return float(numbers.numpy().min()) if numbers.is_cpu else float(numbers.min())


def maximum_of(numbers: torch.Tensor) -> float:
    """Return the largest number of at least one; NaN if there is any."""
    return float(numbers.numpy().max()) if numbers.is_cpu else float(numbers.max())


def every(mask: torch.Tensor) -> bool:
    """Return whether all elements hold."""
    return bool(np.count_nonzero(mask.numpy()) == mask.numel()) if mask.is_cpu else bool(mask.all())


def has_zero(numbers: torch.Tensor) -> bool:
    """Return whether some number is 0."""
    if not numbers.is_cpu:
        return bool((numbers == 0.0).any())
    return bool(np.count_nonzero(numbers.numpy()) < numbers.numel())


def places_of(mask: torch.Tensor) -> torch.Tensor:
    """Return the places along the last axis at which some element holds, in order."""
    mask = mask.flatten(0, -2)
    return torch.from_numpy(np.flatnonzero(mask.numpy().any(axis=0))) if mask.is_cpu else mask.any(0).nonzero()[:, 0]


Array: TypeAlias = np.typing.NDArray[Any]

MAX_BLOCK_SCORES = 2**20
"""Largest number of scores of a block, including padding; limits the memory to about 100 MB."""

BLOCK_COST = 2**20
"""The cost of one more block, in scores times ``head_size + SCORE_COST``: the calls of about 1 ms on one core."""

SCORE_COST = 40
"""The cost of one score beside its ``head_size`` products: about forty elementwise operations."""


@dataclass(frozen=True)
class RowBlock:
    """``B`` spans of up to ``Q`` query tokens that see up to ``K`` keys.

    - ``tokens`` int64 ``[B, Q]``: rows of q and out.
    - ``queries`` float64 ``[B, num_kv_heads, Q, group, head_size]``.
    - ``keys``, ``values`` float64 ``[B, num_kv_heads, K, head_size]``: dequantised.
    - ``visible`` bool ``[B, Q, K]``.
    - ``position`` int64 ``[B, Q]`` of the queries, ``key_position`` int64 ``[B, K]``, ``context_len`` int64 ``[B]``.
    - ``reach``, ``num_visible`` float64 ``[B, Q]``: the distance between the first and the last visible key, and the
      number of visible keys, which is 0 where the bits of a mask hide all.
    - ``qq_bias`` float64 ``[B, Q, K]``: 0 where masked.
    """

    tokens: torch.Tensor
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    visible: torch.Tensor
    position: torch.Tensor
    key_position: torch.Tensor
    context_len: torch.Tensor
    reach: torch.Tensor
    num_visible: torch.Tensor
    qq_bias: torch.Tensor | None

    @cached_property
    def hidden(self) -> torch.Tensor:
        """The opposite of ``visible``, in a shape that broadcasts with scores ``[B, num_kv_heads, Q, group, K]``."""
        return ~self.visible[:, None, :, None]

    @cached_property
    def empty(self) -> torch.Tensor | None:
        """Bool ``[B, Q]``, which rows see no key; None where every row sees one."""
        empty = self.num_visible == 0.0
        return empty if some(empty) else None

    @cached_property
    def magnitudes(self) -> torch.Tensor:
        """The magnitudes of the values, which several terms of the bound need."""
        return self.values.abs()


class Span(NamedTuple):
    """``num_rows`` query tokens of a sequence from ``first_row`` on, which see ``num_keys`` keys together."""

    sequence: int
    first_row: int
    num_rows: int
    first_key: int
    num_keys: int


def row_blocks(tensors: AttentionTensors) -> Iterator[RowBlock]:
    """Yield blocks that contain each row of the batch at least once; padding repeats the last row of a span.

    Rows whose positions let them see no key are in none.
    """
    starts = [0]
    for query_len in tensors.query_lens:
        starts.append(starts[-1] + query_len)
    store = Store(tensors)
    for spans in _grouped(_spans(tensors), *tensors.query.shape[1:]):
        yield _block(tensors, spans, starts, store)


def cost_of(case: AttentionCase) -> int:
    """Return about what the oracle costs for a case, in the unit of ``BLOCK_COST``."""
    scores = 0
    for sequence in case.sequences:
        scores += sequence.query_len * case.visibility.most_keys(sequence.query_len, sequence.seq_len)
    return scores * case.heads.num_query_heads * (case.heads.head_size + SCORE_COST)


def _spans(tensors: AttentionTensors) -> list[Span]:
    spans = []
    num_heads, visibility = tensors.query.shape[1], tensors.visibility
    for sequence, (query_len, context_len) in enumerate(zip(tensors.query_lens, tensors.context_lens, strict=True)):
        if tensors.answers and not tensors.answers[sequence]:
            continue
        step = max(1, MAX_BLOCK_SCORES // max(1, num_heads * (query_len + context_len)))
        seeing = visibility.rows_with_keys(query_len, context_len)
        for row in seeing[::step]:
            num_rows = min(step, seeing.stop - row)
            first, last = (visibility.position(each, context_len) for each in (row, row + num_rows - 1))
            first_key = visibility.first(first)
            num_keys = visibility.last(last, query_len + context_len) + 1 - first_key
            spans.append(Span(sequence, row, num_rows, first_key, num_keys))
    return spans


def _grouped(spans: list[Span], num_heads: int, head_size: int) -> Iterator[list[Span]]:
    """Yield groups of spans of similar lengths, in which the padding costs less than another block."""
    group: list[Span] = []
    rows = keys = padded = 0
    for span in sorted(spans, key=lambda span: (span.num_keys, span.num_rows)):
        rows, keys = max(rows, span.num_rows), max(keys, span.num_keys)
        separate, together = span.num_rows * span.num_keys * num_heads, (len(group) + 1) * rows * keys * num_heads
        extra = (together - padded - separate) * (head_size + SCORE_COST)
        if group and (extra > BLOCK_COST or together > MAX_BLOCK_SCORES):
            yield group
            group, rows, keys, together = [], span.num_rows, span.num_keys, separate
        group.append(span)
        padded = together
    if group:
        yield group


def _block(tensors: AttentionTensors, spans: list[Span], starts: list[int], store: Store) -> RowBlock:
    """Return the block of some spans. Indices are computed by numpy, whose calls cost least for a few numbers."""
    table = np.array(
        [
            (s.sequence, starts[s.sequence], s.first_row, s.num_rows, s.first_key, s.num_keys,
             tensors.context_lens[s.sequence], tensors.query_lens[s.sequence])
            for s in spans
        ]
    )  # fmt: skip
    sequence, start, first_row, num_rows, first_key, num_keys, context_len, query_len = table.T[..., None]
    row = first_row + np.minimum(np.arange(max(s.num_rows for s in spans)), num_rows - 1)
    column = np.arange(max(s.num_keys for s in spans))
    key_position = first_key + np.minimum(column, num_keys - 1)
    position = tensors.visibility.position(row, context_len)
    first, last = tensors.visibility.first(position), tensors.visibility.last(position, context_len + query_len)
    keys_of_rows = key_position[:, None]
    seen = (keys_of_rows >= first[:, :, None]) & (keys_of_rows <= last[:, :, None]) & (column < num_keys)[:, None]

    def placed(array: Array) -> torch.Tensor:
        return torch.from_numpy(array).to(tensors.query.device)

    farthest, bias = (last - first).astype(np.float64), None
    num_visible = farthest + 1
    if tensors.qq_bias is not None:
        matrix = _qq_bias(tensors.qq_bias.double().cpu().numpy(), row, key_position - context_len)
        seen &= matrix > -np.inf
        bias = placed(np.where(seen, matrix, 0.0))
    if tensors.has_bits:
        seen &= _bits(tensors, spans, row, key_position)
    if tensors.qq_bias is not None or tensors.has_bits:
        num_visible = seen.sum(-1, dtype=np.float64)
        farthest = _distance(seen, keys_of_rows)
    tokens = placed(start + row)
    keys, values = store.gather(sequence, key_position)
    if tensors.has_bits:  # keys that no row sees may hold NaN
        unseen = placed(~seen.any(1))[:, None, :, None]
        keys, values = keys.masked_fill_(unseen, 0.0), values.masked_fill_(unseen, 0.0)
    return RowBlock(
        tokens=tokens,
        queries=_queries(tensors, tokens),
        keys=keys,
        values=values,
        visible=placed(seen),
        position=placed(position),
        key_position=placed(key_position),
        context_len=placed(context_len[:, 0]),
        reach=placed(farthest),
        num_visible=placed(num_visible),
        qq_bias=bias,
    )


def _bits(tensors: AttentionTensors, spans: list[Span], row: Array, key_position: Array) -> Array:
    """Return the bits of a mask ``[B, Q, K]``."""
    masks = (tensors.mask_of(span.sequence) for span in spans)
    return np.stack(
        [
            mask[rows[:, None], keys]
            for mask, rows, keys in zip(masks, row, key_position, strict=True)
            if mask is not None
        ]
    )


def _distance(seen: Array, key_position: Array) -> Array:
    """Return the distance from the first to the last key that each row sees, 0 where it sees none."""
    last = np.where(seen, key_position, -1).max(-1)
    first = np.where(seen, key_position, np.iinfo(np.int64).max).min(-1)
    distance: Array = np.maximum(last - first, 0).astype(np.float64)
    return distance


def _qq_bias(matrix: Array, row: Array, column: Array) -> Array:
    """Return ``matrix[row, column]`` as float64 ``[B, Q, K]``, and 0 for columns outside the matrix."""
    inside = (column >= 0) & (column < matrix.shape[1])
    bias = matrix[row[:, :, None], np.where(inside, column, 0)[:, None]].astype(np.float64)
    return np.where(inside[:, None], bias, 0.0)


def _queries(tensors: AttentionTensors, tokens: torch.Tensor) -> torch.Tensor:
    queries = taken(tensors.query, (tokens,))
    grouped = queries.view(*tokens.shape, tensors.num_kv_heads, -1, queries.shape[-1])
    return grouped.transpose(1, 2).contiguous().double()


def largest_seen(block: RowBlock, numbers: torch.Tensor) -> torch.Tensor:
    """Return the largest of ``numbers`` over the keys of each query token, ``[B, Q, num_kv_heads, N]``.

    ``numbers`` are ``[B, num_kv_heads, K, N]``.
    The visible keys of a token are treated as one range without gaps; where a bias of -inf hides a key in between, it
    counts too. The largest number of a range comes from two overlapping ranges whose length is a power of two. Few
    tokens read all their numbers instead, one token after the other.
    """
    seen = block.visible.int()
    first, last = seen.argmax(-1), seen.shape[-1] - 1 - seen.flip(-1).argmax(-1)
    if first.numel() <= 4 * seen.shape[-1].bit_length():
        return _one_by_one(numbers, first, last)
    length = last - first + 1
    remaining = numbers.transpose(1, 2)
    result = remaining.new_empty(*first.shape, *remaining.shape[2:])
    width = 1
    while True:
        rows = (length >= width) & (length < 2 * width)
        index = rows.nonzero()[:, 0]
        result[rows] = torch.maximum(remaining[index, first[rows]], remaining[index, last[rows] - width + 1])
        if not some(length >= 2 * width):
            return result
        remaining = torch.maximum(remaining[:, :-width], remaining[:, width:])
        width *= 2


def _one_by_one(numbers: torch.Tensor, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    rows = (
        numbers[span, :, start : end + 1].amax(1)
        for span, ends in enumerate(zip(first.tolist(), last.tolist(), strict=True))
        for start, end in zip(*ends, strict=True)
    )
    return torch.stack(list(rows)).view(*first.shape, numbers.shape[1], numbers.shape[3])
