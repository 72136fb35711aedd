"""Custom masks: the bits of a case, and with them exactly which keys a query token sees."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.mask_recipes import Custom
from fuzz_attn.case.parts import Sequence
from fuzz_attn.case.visibility import Visibility
from fuzz_attn.inputs.random_bits import Stream

Bits: TypeAlias = np.typing.NDArray[np.bool_]

_BITS, _TREE, _SIZES, _EMPTY, _DEAD = 31, 32, 33, 34, 35


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
    return seen and (not isinstance(case.mask, Custom) or bool(custom_masks(case)[sequence][row, key]))
