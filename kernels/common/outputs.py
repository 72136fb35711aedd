"""The last step of every kernel: normalise, scale for fp8, clamp, round to the output's dtype, store."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl

from .rows import row_offsets
from .softmax import normalize


@triton.jit
def convert_output(output, out_ptr, output_scale_ptr, OUTPUT_LIMIT: tl.constexpr, USE_FP8_OUTPUT: tl.constexpr):
    """Return float32 `output` in the element type of `out_ptr`; OUTPUT_LIMIT is its largest finite value."""
    if USE_FP8_OUTPUT:
        output = output * (1.0 / tl.load(output_scale_ptr))
        output = tl.clamp(output, -OUTPUT_LIMIT, OUTPUT_LIMIT, propagate_nan=tl.PropagateNan.ALL)
    return output.to(out_ptr.dtype.element_ty)


@triton.jit
def store_rows(
    out,  # Tokens
    softmax,  # Softmax over all keys
    rows,  # Rows
    dims,  # Dims
    output_scale_ptr,  # [1] or None
    OUTPUT_LIMIT: tl.constexpr,
    USE_FP8_OUTPUT: tl.constexpr,
):
    """Write the normalised rows where both masks are true."""
    # [BLOCK_M, HEAD_SIZE_PADDED]
    output = normalize(softmax.output, softmax.row_sum[:, None])
    output = convert_output(output, out.ptr, output_scale_ptr, OUTPUT_LIMIT, USE_FP8_OUTPUT)
    tl.store(
        out.ptr + row_offsets(out, rows)[:, None] + dims.offset[None, :],
        output,
        mask=rows.mask[:, None] & dims.mask[None, :],
    )
