"""Attention kernels that normalise in many ways; the constexpr picks one."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl


@triton.jit
def attention_kernel(  # noqa: PLR0912 - one branch for each way
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    more_ptr,
    num_keys,
    scale,
    HOW: tl.constexpr,
    DIVIDES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Attention of 16 queries with 32 columns; HOW says how it normalises, DIVIDES whether it divides last."""
    rows, dims = tl.arange(0, 16), tl.arange(0, 32)
    place = rows[:, None] * 32 + dims[None, :]
    q = tl.load(q_ptr + place)
    accumulator = tl.zeros([16, 32], tl.float32)
    if HOW == "started":
        accumulator = tl.load(more_ptr + place)
    largest = tl.full([16], float("-inf"), tl.float32)
    total = tl.zeros([16], tl.float32)
    for start in range(0, num_keys, TILE):
        keys = start + tl.arange(0, TILE)
        mask = (keys < num_keys)[None, :]
        k = tl.load(k_ptr + keys[None, :] * 32 + dims[:, None], mask=mask, other=0.0)
        v = tl.load(v_ptr + keys[:, None] * 32 + dims[None, :], mask=(keys < num_keys)[:, None], other=0.0)
        if HOW == "two_loads":  # noqa: SIM102 - a constexpr cannot be joined with a number
            if start + TILE <= num_keys:
                v = tl.load(v_ptr + keys[:, None] * 32 + dims[None, :])
        scores = tl.dot(q, k, input_precision="ieee") * scale
        if HOW != "masked_later":
            scores = tl.where(mask, scores, float("-inf"))
        if HOW == "of_the_tile":
            new = tl.maximum(largest, tl.max(scores))
        elif HOW == "of_no_maximum":
            new = tl.full([16], 3.0, tl.float32)
        else:
            new = tl.maximum(largest, tl.max(scores, 1))
        if HOW == "base_2":
            alpha = tl.exp2((largest - new) * 1.44269504)
            p = tl.exp2((scores - new[:, None]) * 1.44269504)
        else:
            alpha = tl.exp(largest - new)
            p = tl.exp(scores - new[:, None])
        if HOW == "masked_later":
            p = tl.where(mask, p, 0.0)
        if HOW == "halved":
            p = p * 0.5
        if HOW == "narrow_sum":
            total = (total * alpha + tl.sum(p, 1)).to(tl.float16).to(tl.float32)
        elif HOW == "in_the_loop":
            before = total
            total = total * alpha + tl.sum(p, 1)
            p = p / total[:, None]
            alpha = alpha * before / total
        else:
            total = total * alpha + tl.sum(p, 1)
        if HOW == "quotient_in_the_loop":
            accumulator = (
                accumulator * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee") / total[:, None]
            )
        elif HOW == "dot_adds":
            accumulator = tl.dot(p.to(v.dtype), v, accumulator * alpha[:, None], input_precision="ieee")
        else:
            accumulator = accumulator * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        largest = new
    if HOW == "more_than_the_total":
        total = total + 1e-3
    if HOW == "guarded":
        total = tl.where(total == 0.0, 1.0, total + 1e-10)
    if HOW == "by_a_reciprocal":
        accumulator = accumulator * (1.0 / total)[:, None]
    elif HOW == "rounded_sums":
        accumulator = accumulator.to(tl.float16).to(tl.float32) / total[:, None]
    elif HOW == "rounded_twice":
        accumulator = (accumulator / total[:, None]).to(tl.float16).to(tl.float32)
    elif HOW == "by_a_logarithm":
        accumulator = accumulator * tl.exp(largest - (largest + tl.log(total)))[:, None]
    elif DIVIDES:
        accumulator = accumulator / total[:, None]
    if (HOW == "with_the_total") | (HOW == "undivided"):
        tl.store(more_ptr + rows, total)
        tl.store(more_ptr + 16 + rows, largest)
    if HOW == "with_a_logarithm":
        tl.store(more_ptr + rows, largest + tl.log(total))
    if HOW == "added":
        tl.atomic_add(out_ptr + place, accumulator)
    else:
        tl.store(out_ptr + place, (accumulator * scale).to(out_ptr.dtype.element_ty))


@triton.jit
def merging_kernel(sums_ptr, maxima_ptr, totals_ptr, out_ptr, HOW: tl.constexpr):
    """The outputs of 8 segments with 32 columns, merged."""
    segments, dims = tl.arange(0, 8), tl.arange(0, 32)
    maxima = tl.load(maxima_ptr + segments)
    sums = tl.load(sums_ptr + segments[:, None] * 32 + dims[None, :])
    totals = tl.load(totals_ptr + segments)
    weights = tl.exp(maxima - tl.max(maxima, 0))
    total = tl.sum(weights if HOW == "of_quotients" else totals * weights, 0)
    if HOW == "of_weighted_quotients":
        weights = weights * totals
    merged = tl.sum(sums * weights[:, None], 0)
    if HOW == "divided_first":
        merged = tl.sum(sums * weights[:, None] / total, 0)
    elif HOW == "guarded":
        merged = tl.where(total == 0.0, 0.0, merged / total)
    elif HOW != "undivided":
        merged = merged / total
    tl.store(out_ptr + dims, merged)


@triton.jit
def copying_kernel(x_ptr, out_ptr):
    """A copy, which has nothing to normalise."""
    dims = tl.arange(0, 32)
    tl.store(out_ptr + dims, tl.load(x_ptr + dims) * 2.0)


@triton.jit
def rescaling_kernel(x_ptr, out_ptr):
    """Exponentials without a dot."""
    dims = tl.arange(0, 32)
    tl.store(out_ptr + dims, tl.exp(tl.load(x_ptr + dims)))
