"""Kernels whose dots multiply what was rounded in many ways; constexprs pick the types."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl


@triton.jit
def attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    scale,
    num_keys,
    QUERY_TYPE: tl.constexpr,
    WEIGHT_TYPE: tl.constexpr,
    SUM_TYPE: tl.constexpr,
    SCALED: tl.constexpr,
    NORMALISED: tl.constexpr,
):
    """Attention of 16 queries in tiles of 32 keys; the constexprs say what it rounds."""
    rows, dims = tl.arange(0, 16), tl.arange(0, 32)
    q = tl.load(q_ptr + rows[:, None] * 32 + dims[None, :])
    if SCALED:
        q = q * scale
    q = q.to(QUERY_TYPE)
    accumulator = tl.zeros([16, 32], SUM_TYPE)
    for start in range(0, num_keys, 32):
        keys = start + tl.arange(0, 32)
        k = tl.load(k_ptr + keys[None, :] * 32 + dims[:, None]).to(QUERY_TYPE)
        scores = tl.dot(q, k, input_precision="ieee")
        p = tl.exp(scores - tl.max(scores, 1)[:, None])
        if NORMALISED:
            p = p / tl.sum(p, 1)[:, None]
        v = tl.load(v_ptr + keys[:, None] * 32 + dims[None, :]).to(WEIGHT_TYPE)
        accumulator += tl.dot(p.to(WEIGHT_TYPE), v, input_precision="ieee", out_dtype=SUM_TYPE)
    tl.store(out_ptr + rows[:, None] * 32 + dims[None, :], accumulator)


@triton.jit
def rotary_kernel(q_ptr, k_ptr, out_ptr):
    """A dot whose first operand is a sum of two tiles, and whose second one is a weighted tile."""
    rows, dims = tl.arange(0, 16), tl.arange(0, 32)
    place = rows[:, None] * 32 + dims[None, :]
    q = tl.load(q_ptr + place)
    q = q + tl.load(q_ptr + 512 + place)
    k = tl.load(k_ptr + place) * tl.load(k_ptr + 512 + place)
    tl.store(out_ptr + rows[:, None] * 16 + rows[None, :], tl.dot(q, tl.trans(k)))
