"""Ranges of keys: the largest of some numbers per key over the keys that each query token sees."""

from __future__ import annotations

import torch

from fuzz_attn.oracle.masks import some
from fuzz_attn.oracle.row_blocks import RowBlock


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
