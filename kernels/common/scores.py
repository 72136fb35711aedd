"""The score between the dot product and the softmax: soft cap, ALiBi, query-query bias; and which keys a query sees.

A query sees keys up to the causal limit and within the sliding window, for a block of rows and for one row.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from typing import NamedTuple

import triton
import triton.language as tl

from .rows import cdiv_fn


class Scores(NamedTuple):
    """What changes a score between the dot product and the softmax, and what joins the softmax without a key.

    Whether a kernel uses them is compiled into it.
    """

    softcap: tl.tensor  # scalar, or None
    alibi_slopes_ptr: tl.tensor  # [num_query_heads] or None
    qq_bias_ptr: tl.tensor  # [qq_bias_rows, qq_bias_cols] or None
    sinks_ptr: tl.tensor  # [num_query_heads] or None


class QQBias(NamedTuple):
    """The query-query bias; one matrix for all sequences of the batch."""

    ptr: tl.tensor  # [qq_bias_rows, qq_bias_cols] or None
    stride_row: tl.tensor  # scalar
    stride_col: tl.tensor  # scalar
    num_cols: tl.tensor  # scalar


@triton.jit
def tanh(x):
    """Return the hyperbolic tangent in float32, to a few units in the last place, for every x and both infinities.

    `exp` gets only arguments <= 0, so nothing overflows. Below 1/4 the quotient would cancel, and a large soft cap
    would turn that into wrong scores; there the series up to x^9 is exact to float32.
    """
    magnitude = tl.abs(x)
    decay = tl.exp(-2.0 * magnitude)
    quotient = (1.0 - decay) / (1.0 + decay)
    small = tl.minimum(magnitude, 0.25)
    square = small * small
    tail = square * (-1.0 / 3.0 + square * (2.0 / 15.0 + square * (-17.0 / 315.0 + square * (62.0 / 2835.0))))
    result = tl.where(magnitude < 0.25, small + small * tail, quotient)
    return tl.where(x < 0.0, -result, result)


@triton.jit
def apply_softcap(scores, softcap):
    """Return softcap * tanh(scores / softcap), which is in (-softcap, softcap)."""
    return softcap * tanh(scores / softcap)


@triton.jit
def alibi_bias(slope, key, context_len):
    """Return the ALiBi bias [rows, keys] from `slope` [rows] and `key` [keys], relative to the context length."""
    return slope[:, None] * (key - context_len)[None, :].to(tl.float32)


@triton.jit
def load_qq_bias(qq_bias, query, relative_key, mask):
    """Return the query-query bias [rows, keys] in float32, 0 outside of the matrix.

    `query` [rows] and `relative_key` [keys] both count from the first new token of the sequence, so keys of the context
    are negative. Where `mask` [rows, keys] is false nothing is read.
    """
    inside = (relative_key >= 0) & (relative_key < qq_bias.num_cols)
    # [rows, keys]
    offset = query.to(tl.int64)[:, None] * qq_bias.stride_row + relative_key.to(tl.int64)[None, :] * qq_bias.stride_col
    return tl.load(qq_bias.ptr + offset, mask=mask & inside[None, :], other=0.0).to(tl.float32)


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
