"""The last step of every kernel: normalise, scale for fp8, clamp, round to the output's dtype, store."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from typing import NamedTuple

import triton
import triton.language as tl

from .rows import row_offsets
from .softmax import normalize


class Output(NamedTuple):
    """The output, a dense tensor like `Tokens`, and its scale."""

    ptr: tl.tensor  # [num_tokens, num_query_heads, head_size]
    stride_token: tl.tensor  # scalar
    stride_head: tl.tensor  # scalar
    scale_ptr: tl.tensor  # [1] or None


@triton.jit
def convert_output(output, out, OUTPUT_LIMIT: tl.constexpr):
    """Return float32 `output` in the element type of `out`; OUTPUT_LIMIT is its largest finite value, None unless fp8.

    A value beyond the limit is clamped here because the conversion need not saturate. NaN stays NaN: it tells the
    caller that an input was one, and a clamp that drops it would return the limit.
    """
    if OUTPUT_LIMIT is not None:
        output = output * (1.0 / tl.load(out.scale_ptr))
        output = tl.clamp(output, -OUTPUT_LIMIT, OUTPUT_LIMIT, propagate_nan=tl.PropagateNan.ALL)
    return output.to(out.ptr.dtype.element_ty)


@triton.jit
def store_rows(
    out,  # Output
    softmax,  # Softmax over all keys
    rows,  # Rows
    dims,  # Dims
    OUTPUT_LIMIT: tl.constexpr,
):
    """Write the normalised rows where both masks are true."""
    # [BLOCK_M, HEAD_SIZE_PADDED]
    output = normalize(softmax.output, softmax.row_sum[:, None])
    output = convert_output(output, out, OUTPUT_LIMIT)
    tl.store(
        out.ptr + row_offsets(out, rows)[:, None] + dims.offset[None, :],
        output,
        mask=rows.mask[:, None] & dims.mask[None, :],
    )
