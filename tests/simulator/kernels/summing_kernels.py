"""A kernel with a loop, whose edits are constexprs."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl


@triton.jit
def summing_kernel(
    x_ptr,  # [num_programs, num_tiles, BLOCK]
    out_ptr,  # [num_programs, BLOCK]
    num_tiles,
    BLOCK: tl.constexpr,
    DOUBLED_TILE: tl.constexpr,
    LAST_PROGRAM: tl.constexpr,
):
    program = tl.program_id(0)
    elements = tl.arange(0, BLOCK)
    aligned = (x_ptr.to(tl.int64) & 15) == 0
    total = tl.zeros([BLOCK], tl.float32)
    if program <= LAST_PROGRAM:
        for tile in range(num_tiles):
            x = tl.load(x_ptr + (program * num_tiles + tile) * BLOCK + elements, mask=aligned, other=0.0)
            total += tl.where(tile == DOUBLED_TILE, 2.0 * x, x)
    tl.store(out_ptr + program * BLOCK + elements, total)
