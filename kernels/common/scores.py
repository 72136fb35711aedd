"""What happens to a score between the dot product and the softmax: soft cap, ALiBi, query-query bias."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl


@triton.jit
def tanh(x):
    """Return the hyperbolic tangent in float32, to a few units in the last place, for every x including the infinities.

    `exp` sees only arguments <= 0, so nothing overflows. Below 1/4 the quotient would cancel, which a large soft cap
    turns into lost scores; there the series up to x^9 is exact to float32.
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
    """Return the scores squeezed into (-softcap, softcap)."""
    return softcap * tanh(scores / softcap)


@triton.jit
def alibi_bias(slope, key, context_len):
    """Return the ALiBi bias [rows, keys] from `slope` [rows] and `key` [keys], relative to the context length."""
    return slope[:, None] * (key - context_len)[None, :].to(tl.float32)


@triton.jit
def load_qq_bias(qq_bias_ptr, stride_row, stride_col, num_cols, query, relative_key, mask):
    """Return the query-query bias [rows, keys] in float32, 0 where the matrix says nothing.

    `query` [rows] and `relative_key` [keys] both count from the first new token of the sequence; context keys are
    negative. Where `mask` [rows, keys] is false nothing is read.
    """
    inside = (relative_key >= 0) & (relative_key < num_cols)
    # [rows, keys]
    offset = query.to(tl.int64)[:, None] * stride_row + relative_key.to(tl.int64)[None, :] * stride_col
    return tl.load(qq_bias_ptr + offset, mask=mask & inside[None, :], other=0.0).to(tl.float32)
