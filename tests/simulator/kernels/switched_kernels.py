"""A kernel with a loop, a mask and two arguments of a type, whose values are replaced."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl


@triton.jit
def scaled_sum(x_ptr, out_ptr, length, scale, other_scale, TILE: tl.constexpr):
    total = tl.zeros([TILE], tl.float32)
    for start in range(0, length, TILE):
        offset = start + tl.arange(0, TILE)
        inside = offset < length
        total += tl.load(x_ptr + offset, mask=inside, other=0.0) * scale
    tl.store(out_ptr + tl.arange(0, TILE), total)
