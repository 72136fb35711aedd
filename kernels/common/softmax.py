"""The online softmax: a running maximum, a running denominator, and their update, start and end.

The running maximum of a row is -inf until the row has seen a key or its sink. No finite number replaces it, and the
difference of two infinities is never computed: `finite_shift` returns 0 where there is no maximum yet.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from typing import NamedTuple

import triton
import triton.language as tl


class Softmax(NamedTuple):
    """The attention of a block of rows over the keys seen so far."""

    row_max: tl.tensor  # [BLOCK_M], the largest score, -inf where no key was seen
    row_sum: tl.tensor  # [BLOCK_M], the denominator relative to row_max
    output: tl.tensor  # [BLOCK_M, HEAD_SIZE_PADDED], the weighted sum of values, not yet divided by row_sum


@triton.jit
def finite_shift(row_max):
    """Return what to subtract before `exp`: the maximum, or 0 where no key was seen, so that exp(-inf) = 0."""
    return tl.where(row_max == float("-inf"), 0.0, row_max)


@triton.jit
def online_softmax_update(scores, row_max, row_sum):
    """Return (row_max, row_sum, weights, alpha) after one more tile of `scores` [rows, keys], -inf where masked.

    `weights` [rows, keys] are relative to the new maximum; `alpha` [rows] is the factor that rescales sums from the
    old maximum to the new one.
    """
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    shift = finite_shift(new_max)
    # [rows, keys]
    weights = tl.exp(scores - shift[:, None])
    # [rows]
    alpha = tl.exp(row_max - shift)
    new_sum = row_sum * alpha + tl.sum(weights, axis=1)
    return new_max, new_sum, weights, alpha


@triton.jit
def start_with_sinks(sinks_ptr, head, row_mask):
    """Return (row_max, row_sum) [rows] of rows that have seen their head's sink and no key yet.

    A sink is a key without a value: exp(sink - sink) = 1 in the denominator. A sink of -inf is no sink.
    """
    row_max = tl.load(sinks_ptr + head, mask=row_mask, other=float("-inf")).to(tl.float32)
    row_sum = tl.where(row_max > float("-inf"), 1.0, 0.0)
    return row_max, row_sum


@triton.jit
def normalize(weighted_sum, denominator):
    """Return weighted_sum / denominator, and 0 where the denominator is 0. The shapes must broadcast."""
    return weighted_sum / tl.where(denominator > 0.0, denominator, 1.0)
