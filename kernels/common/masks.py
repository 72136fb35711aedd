"""Which keys a query may see: the causal limit and the sliding window, for a block of rows and for one row."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl

from .sequences import cdiv_fn


@triton.jit
def visible_keys(first_query, query_len, context_len, window, BLOCK_Q: tl.constexpr, USE_WINDOW: tl.constexpr):
    """Return (key_begin, key_end): the keys that at least one query of the block sees. All others may be poison.

    The block holds queries [first_query, first_query + BLOCK_Q) as far as the sequence has them. Their windows overlap
    or touch, so the union is one range without holes.
    """
    last_query = tl.minimum(first_query + BLOCK_Q, query_len) - 1
    key_begin = 0
    if USE_WINDOW:
        key_begin = tl.maximum(context_len + first_query - window + 1, 0)
    key_end = context_len + last_query + 1
    return key_begin, key_end


@triton.jit
def tile_range(key_begin, key_end, TILE_SIZE: tl.constexpr):
    """Return (first_tile, end_tile) over the keys [key_begin, key_end); tiles are counted from key 0."""
    return key_begin // TILE_SIZE, cdiv_fn(key_end, TILE_SIZE)


@triton.jit
def visibility_mask(position, key, key_end, window, USE_WINDOW: tl.constexpr):
    """Return [rows, keys] true where the query at absolute `position` [rows] sees `key` [keys] below `key_end`.

    A walk that ends before a query's own position, as one over its context does, must not count the rest of its last
    tile.
    """
    causal_limit = tl.minimum(position + 1, key_end)
    # [rows, keys]
    mask = key[None, :] < causal_limit[:, None]
    if USE_WINDOW:
        mask = mask & (position[:, None] - key[None, :] < window)
    return mask
