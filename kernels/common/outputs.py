"""The last step of every kernel: normalise, scale for fp8, clamp, round to the output's dtype, store."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl

from .softmax import normalize


@triton.jit
def convert_output(output, out_ptr, output_scale_ptr, OUTPUT_LIMIT: tl.constexpr, USE_FP8_OUTPUT: tl.constexpr):
    """Return float32 `output` in the element type of `out_ptr`; OUTPUT_LIMIT is that type's largest finite value."""
    if USE_FP8_OUTPUT:
        output = output * (1.0 / tl.load(output_scale_ptr))
        output = tl.clamp(output, -OUTPUT_LIMIT, OUTPUT_LIMIT, propagate_nan=tl.PropagateNan.ALL)
    return output.to(out_ptr.dtype.element_ty)


@triton.jit
def store_rows(
    out_ptr,  # [num_tokens, num_query_heads, head_size]
    stride_token,
    stride_head,
    output,  # [rows, dims], not yet normalised
    row_sum,  # [rows]
    token,  # [rows]
    head,  # [rows]
    row_mask,  # [rows]
    dim,  # [dims]
    dim_mask,  # [dims]
    output_scale_ptr,  # [1] or None
    OUTPUT_LIMIT: tl.constexpr,
    USE_FP8_OUTPUT: tl.constexpr,
):
    """Return nothing; write the normalised rows where both masks are true."""
    # [rows, dims]
    output = normalize(output, row_sum[:, None])
    output = convert_output(output, out_ptr, output_scale_ptr, OUTPUT_LIMIT, USE_FP8_OUTPUT)
    tl.store(
        out_ptr + (token * stride_token + head * stride_head)[:, None] + dim[None, :],
        output,
        mask=row_mask[:, None] & dim_mask[None, :],
    )
