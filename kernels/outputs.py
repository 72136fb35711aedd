"""The last step of every kernel: scale for fp8, clamp, round to the output's dtype."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl


@triton.jit
def convert_output(output, out_ptr, output_scale_ptr, OUTPUT_LIMIT: tl.constexpr, USE_FP8_OUTPUT: tl.constexpr):
    """Return float32 `output` in the element type of `out_ptr`; OUTPUT_LIMIT is that type's largest finite value."""
    if USE_FP8_OUTPUT:
        output = output * (1.0 / tl.load(output_scale_ptr))
        output = tl.clamp(output, -OUTPUT_LIMIT, OUTPUT_LIMIT, propagate_nan=tl.PropagateNan.ALL)
    return output.to(out_ptr.dtype.element_ty)
