"""Which keys a query sees: the causal limit and the sliding window, for a block of rows and for one row."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from typing import NamedTuple

import triton
import triton.language as tl

from .sequences import cdiv_fn


class Visibility(NamedTuple):
    """Which keys the rows of a block see. Keys outside of [key_begin, key_end) are seen by no row."""

    context_len: tl.tensor  # scalar
    key_begin: tl.tensor  # scalar
    key_end: tl.tensor  # scalar
    window: tl.tensor  # scalar, a query sees this many keys, its own included


@triton.jit
def visible_keys(first_query, sequence, window, BLOCK_Q: tl.constexpr, USE_WINDOW: tl.constexpr):
    """Return (key_begin, key_end), the range of keys that at least one query of a block sees.

    Keys outside of the range may hold NaN. The block contains queries [first_query, first_query + BLOCK_Q) that are
    within the sequence. Their windows overlap or touch, so their union is one range without holes.
    """
    last_query = tl.minimum(first_query + BLOCK_Q, sequence.query_len) - 1
    key_begin = 0
    if USE_WINDOW:
        key_begin = tl.maximum(sequence.context_len + first_query - window + 1, 0)
    key_end = sequence.context_len + last_query + 1
    return key_begin, key_end


@triton.jit
def tile_range(key_begin, key_end, TILE_SIZE: tl.constexpr):
    """Return (first_tile, end_tile) over the keys [key_begin, key_end); tiles are counted from key 0."""
    return key_begin // TILE_SIZE, cdiv_fn(key_end, TILE_SIZE)


@triton.jit
def visibility_mask(position, key, visible, USE_WINDOW: tl.constexpr):
    """Return [rows, keys], true where the query at absolute `position` [rows] sees `key` [keys].

    A loop over the context ends before the queries' own positions. Its last tile may contain later keys, which
    `visible.key_end` masks.
    """
    causal_limit = tl.minimum(position + 1, visible.key_end)
    # [rows, keys]
    mask = key[None, :] < causal_limit[:, None]
    if USE_WINDOW:
        mask = mask & (position[:, None] - key[None, :] < visible.window)
    return mask
