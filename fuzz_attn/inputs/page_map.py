"""Page map: which physical slot holds which key, and which keys the cache holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.recipes import Custom
from fuzz_attn.inputs.batch_rows import Rows, custom_masks, needed_keys, rows_of
from fuzz_attn.inputs.random_bits import Integers, Stream
from fuzz_attn.inputs.storage import table_poison

_PERMUTATION, _REPETITION = 1, 2


@dataclass(frozen=True)
class PageMap:
    """Where the keys of a batch lie.

    ``block_table`` ``[num_seqs, max_blocks]`` holds garbage past each sequence's last page. ``slots`` ``[total_keys]``
    is the flat slot (block * block_size + offset) of every key, sequence after sequence. ``held`` bool
    ``[total_keys]`` is whether the cache holds the key: some row may see it, and it is not a new key that a stale cache
    lacks. No key lies in a page before ``first_block``.
    """

    num_blocks: int
    first_block: int
    block_table: Integers
    slots: Integers
    held: np.typing.NDArray[np.bool_]


def page_map(case: AttentionCase) -> PageMap:
    """Return the page map of a case."""
    logical, num_unique = _logical_pages(case)
    used, first_block = max(1, num_unique + case.pages.spare_blocks), case.pages.first_block
    order = Stream(case.seed, _PERMUTATION).permutation(used) if case.pages.permuted else np.arange(used)
    order, num_blocks = order + first_block, used + first_block
    rows = [order[np.asarray(pages, dtype=np.int64)] for pages in logical]
    width = max((len(row) for row in rows), default=0) + case.pages.extra_columns
    table = np.full((len(rows), width), table_poison(case.poison.table, num_blocks), dtype=np.int64)
    for sequence, row in enumerate(rows):
        table[sequence, : len(row)] = row
    keys = rows_of(case)
    return PageMap(num_blocks, first_block, table, _slots(case, keys, table), _held(case, keys))


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


def _slots(case: AttentionCase, keys: Rows, table: Integers) -> Integers:
    pages, offsets = np.divmod(keys.key_position, case.pages.block_size)
    slots: Integers = table[keys.key_sequence, pages] * case.pages.block_size + offsets
    return slots


def _held(case: AttentionCase, keys: Rows) -> np.typing.NDArray[np.bool_]:
    """Return which keys the cache holds: those that some row may see, none if no row is answered."""
    held = needed_of_batch(case, keys)
    if case.stale_cache:
        ends = np.where(np.array(case.reads_packed, dtype=np.bool_), keys.context, keys.total)
        held &= keys.key_position < ends[keys.key_sequence]
    return held


def needed_of_batch(case: AttentionCase, keys: Rows) -> np.typing.NDArray[np.bool_]:
    """Return bool ``[total_keys]``: whether a kernel may need a key of a batch; none of a sequence not answered."""
    answered = (keys.query > 0) & np.array(case.answers, dtype=np.bool_)
    bits = custom_masks(case)
    if isinstance(case.mask, Custom) and case.mask.poisoned:
        lengths = zip(case.sequences, bits, strict=True)
        parts = [needed_keys(case.visibility, s.query_len, s.context_len, mask) for s, mask in lengths]
        return np.concatenate([np.zeros(0, np.bool_), *parts]) & answered[keys.key_sequence]
    first = case.visibility.first(case.visibility.position(np.zeros_like(keys.context), keys.context))
    last = case.visibility.last(case.visibility.position(keys.query - 1, keys.context), keys.total)
    needed = keys.key_position >= np.where(answered, first, keys.total)[keys.key_sequence]
    return needed & (keys.key_position <= last[keys.key_sequence])


def _seq_lens(case: AttentionCase) -> list[int]:
    return [sequence.seq_len for sequence in case.sequences]


def _pages_of(case: AttentionCase, seq_len: int) -> int:
    return -(-seq_len // case.pages.block_size)
