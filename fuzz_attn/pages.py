"""The page map of a case: which physical slot holds which key, and which slots nobody may read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuzz_attn.case import AttentionCase
from fuzz_attn.poison import table_poison
from fuzz_attn.streams import Integers, Stream

_PERMUTATION, _REPETITION = 1, 2


@dataclass(frozen=True)
class PageMap:
    """Where the keys of a batch lie.

    ``block_table`` ``[num_seqs, max_blocks]``, garbage past each sequence's last page; ``slots`` ``[total_keys]``, the
    flat slot (block * block_size + offset) of every key, sequence after sequence; ``visible`` bool ``[total_keys]``,
    whether some row may read the key.
    """

    num_blocks: int
    block_table: Integers
    slots: Integers
    visible: np.typing.NDArray[np.bool_]


def page_map(case: AttentionCase) -> PageMap:
    """Return the page map that the case's recipe and seed describe."""
    logical, num_unique = _logical_pages(case)
    num_blocks = max(1, num_unique + case.pages.spare_blocks)
    order = Stream(case.seed, _PERMUTATION).permutation(num_blocks) if case.pages.permuted else np.arange(num_blocks)
    rows = [order[np.asarray(pages, dtype=np.int64)] for pages in logical]
    width = max((len(row) for row in rows), default=0) + case.pages.extra_columns
    table = np.full((len(rows), width), table_poison(case.poison.table, num_blocks), dtype=np.int64)
    for sequence, row in enumerate(rows):
        table[sequence, : len(row)] = row
    return PageMap(num_blocks, table, _slots(case, rows), _visible(case))


def _logical_pages(case: AttentionCase) -> tuple[list[list[int]], int]:
    """Return the pages of each sequence as numbers of unique pages, and how many of these there are."""
    stream = Stream(case.seed, _REPETITION) if case.pages.repeated else None
    longest = max((_pages_of(case, seq_len) for seq_len in _seq_lens(case)), default=0)
    shared = min(case.pages.shared_prefix, longest)
    unique = shared
    logical = []
    for seq_len in _seq_lens(case):
        count = _pages_of(case, seq_len)
        own = max(0, count - shared)
        pages = list(range(min(count, shared))) + list(range(unique, unique + own))
        unique += own
        if stream is not None and count > 1:
            later = int(stream.below(count - 1, 1)[0]) + 1
            pages[later] = pages[int(stream.below(later, 1)[0])]
        logical.append(pages)
    return logical, unique


def _slots(case: AttentionCase, rows: list[Integers]) -> Integers:
    size = case.pages.block_size
    offsets = np.arange(size)
    parts = [
        (row[:, None] * size + offsets).reshape(-1)[:seq_len]
        for row, seq_len in zip(rows, _seq_lens(case), strict=True)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _visible(case: AttentionCase) -> np.typing.NDArray[np.bool_]:
    """Return which keys some row sees: from the window's edge of the first row on; none if there is no row."""
    parts = []
    for sequence in case.sequences:
        first = max(0, sequence.context_len - case.window + 1) if case.window else 0
        keys = np.arange(sequence.seq_len)
        parts.append((keys >= first) & (sequence.query_len > 0))
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.bool_)


def _seq_lens(case: AttentionCase) -> list[int]:
    return [sequence.seq_len for sequence in case.sequences]


def _pages_of(case: AttentionCase, seq_len: int) -> int:
    return -(-seq_len // case.pages.block_size)
