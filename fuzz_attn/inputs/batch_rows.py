"""Batch rows: the query tokens and keys of a batch, flattened; which keys each token sees by the bits of a mask.

A page map says which physical slot holds which key.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeAlias

import numpy as np

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence
from fuzz_attn.case.recipes import Custom
from fuzz_attn.case.visibility import Visibility
from fuzz_attn.inputs.random_bits import Integers, Stream
from fuzz_attn.inputs.storage import table_poison

Bits: TypeAlias = np.typing.NDArray[np.bool_]

_BITS, _TREE, _SIZES, _EMPTY, _DEAD = 31, 32, 33, 34, 35


@dataclass(frozen=True)
class Rows:
    """Flat index arrays of a batch. Each is made on first use, as most recipes need few of them or none.

    ``query`` and ``context`` ``[num_seqs]`` are the lengths of the sequences.
    """

    query: Integers
    context: Integers
    visibility: Visibility

    @cached_property
    def total(self) -> Integers:
        """Keys of each sequence ``[num_seqs]``."""
        return self.query + self.context

    @cached_property
    def position(self) -> Integers:
        """Position of each query token in its sequence ``[num_tokens]``; 0 where that is before the first key."""
        found: Integers = np.maximum(self.visibility.position(_ramp(self.query), self.context.repeat(self.query)), 0)
        return found

    @cached_property
    def first(self) -> Integers:
        """First position that each query token sees ``[num_tokens]``."""
        return self.visibility.first(self.position)

    @cached_property
    def start(self) -> Integers:
        """Start of each query token's sequence among all keys ``[num_tokens]``."""
        return (self.total.cumsum() - self.total).repeat(self.query)

    @cached_property
    def seq_len(self) -> Integers:
        """Length of each query token's sequence ``[num_tokens]``."""
        return self.total.repeat(self.query)

    @cached_property
    def key_position(self) -> Integers:
        """Position of each key in its sequence ``[total_keys]``."""
        return _ramp(self.total)

    @cached_property
    def key_sequence(self) -> Integers:
        """Sequence of each key ``[total_keys]``."""
        return np.arange(len(self.total)).repeat(self.total)

    @cached_property
    def key_context(self) -> Integers:
        """Context length of each key's sequence ``[total_keys]``."""
        return self.context.repeat(self.total)

    @cached_property
    def key_seq_len(self) -> Integers:
        """Length of each key's sequence ``[total_keys]``."""
        return self.total.repeat(self.total)


def rows_of(case: AttentionCase) -> Rows:
    """Return the flattened rows and keys of a case; callers must not change them."""
    return _rows_of(case.sequences, case.visibility)


@lru_cache(maxsize=1)
def _rows_of(sequences: tuple[Sequence, ...], visibility: Visibility) -> Rows:
    """Return the rows of a batch and keep them: the numbers and the pages of a case use the same ones."""
    return Rows(
        query=np.array([s.query_len for s in sequences], dtype=np.int64),
        context=np.array([s.context_len for s in sequences], dtype=np.int64),
        visibility=visibility,
    )


def _ramp(lengths: Integers) -> Integers:
    """Return 0, 1, ... length - 1 for each length, one after the other."""
    ends = lengths.cumsum()
    return np.arange(int(ends[-1]) if len(ends) else 0, dtype=np.int64) - (ends - lengths).repeat(lengths)


def custom_masks(case: AttentionCase) -> tuple[Bits, ...]:
    """Return the bits ``[query_len, seq_len]`` of each sequence; empty for a case without a custom mask."""
    return _custom_masks(case.mask, case.sequences, case.seed) if isinstance(case.mask, Custom) else ()


@lru_cache(maxsize=1)
def _custom_masks(recipe: Custom, sequences: tuple[Sequence, ...], seed: int) -> tuple[Bits, ...]:
    streams = {purpose: Stream(seed, purpose) for purpose in (_BITS, _TREE, _SIZES, _EMPTY, _DEAD)}
    masks = tuple(_bits(recipe, sequence, streams) for sequence in sequences)
    rows = [row for mask in masks for row in mask]
    if recipe.empty_rows and rows:
        rows[seed % len(rows)][:] = False
    return masks


def _bits(recipe: Custom, sequence: Sequence, streams: dict[int, Stream]) -> Bits:
    shape = sequence.query_len, sequence.seq_len
    row, key = np.arange(shape[0])[:, None] + sequence.context_len, np.arange(shape[1])[None]
    bits: Bits
    if recipe.bits == "tree":
        bits = np.concatenate([np.ones((shape[0], sequence.context_len), np.bool_), _tree(shape[0], streams)], axis=1)
    elif recipe.bits == "blocks":
        size = int(streams[_SIZES].below(16, 1)[0]) + 1
        bits = (row // size + key // size) % 2 == 0
    else:
        bits = key <= row if recipe.bits == "bottom_right" else streams[_BITS].below(2, *shape) == 1
    bits |= key == row
    if recipe.empty_rows:
        bits &= streams[_EMPTY].below(4, shape[0])[:, None] > 0
    if recipe.causal:
        bits[key > row] = (streams[_DEAD].below(2, *shape) == 1)[key > row]
    return bits


def _tree(tokens: int, streams: dict[int, Stream]) -> Bits:
    """Return which tokens are a token itself or one of its ancestors ``[tokens, tokens]``."""
    bits = np.eye(tokens, dtype=np.bool_)
    parents = streams[_TREE].below(np.arange(1, tokens + 1), tokens) - 1
    for token, parent in enumerate(parents.tolist()):
        if parent >= 0:
            bits[token] |= bits[parent]
    return bits


def seen_keys(visibility: Visibility, query_len: int, context_len: int, bits: Bits | None = None) -> Bits:
    """Return bool ``[query_len, seq_len]``: whether a row of a sequence sees a key."""
    seq_len = query_len + context_len
    position = visibility.position(np.arange(query_len), context_len)[:, None]
    key = np.arange(seq_len)
    seen: Bits = (key >= visibility.first(position)) & (key <= visibility.last(position, seq_len))
    return seen if bits is None else seen & bits


def needed_keys(visibility: Visibility, query_len: int, context_len: int, bits: Bits | None = None) -> Bits:
    """Return bool ``[seq_len]``: whether a kernel may need a key, so that it holds a number and no poison.

    Keys that only a custom mask hides are poison where the mask says so.
    """
    if bits is not None and isinstance(visibility.mask, Custom) and visibility.mask.poisoned:
        return np.asarray(seen_keys(visibility, query_len, context_len, bits).any(axis=0))
    key, needed = np.arange(query_len + context_len), np.zeros(query_len + context_len, np.bool_)
    if query_len:
        rows = visibility.position(0, context_len), visibility.position(query_len - 1, context_len)
        needed = (key >= visibility.first(rows[0])) & (key <= visibility.last(rows[1], len(key)))
    return needed


def sees(case: AttentionCase, sequence: int, row: int, key: int) -> bool:
    """Return whether a new token of a sequence sees a key of it."""
    lengths = case.sequences[sequence]
    position = case.visibility.position(row, lengths.context_len)
    seen = key in case.visibility.keys_of(position, lengths.seq_len)
    bits = custom_masks(case)
    return seen and (not bits or bool(bits[sequence][row, key]))


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
