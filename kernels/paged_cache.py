"""Reading keys and values of the paged cache: page lookup, addresses, dequantisation."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl


@triton.jit
def load_scale(scale_ptr):
    """Return the one element behind `scale_ptr`, 1 for None."""
    return 1.0 if scale_ptr is None else tl.load(scale_ptr)


@triton.jit
def load_pages(block_table_row_ptr, key, key_mask, BLOCK_SIZE: tl.constexpr):
    """Return the int64 page number of each `key` [keys]; where `key_mask` is false nothing is read, and it is 0."""
    return tl.load(block_table_row_ptr + key // BLOCK_SIZE, mask=key_mask, other=0).to(tl.int64)


@triton.jit
def slot_offsets(page, key, kv_head, stride_block, stride_slot, stride_head, BLOCK_SIZE: tl.constexpr):
    """Return the int64 offset [keys] of each key's row in a cache [num_blocks, block_size, num_kv_heads, head_size]."""
    slot = (key % BLOCK_SIZE).to(tl.int64)
    return page * stride_block + slot * stride_slot + kv_head * stride_head


@triton.jit
def dequantize(stored, scale, DTYPE: tl.constexpr, USE_SCALE: tl.constexpr):
    """Return a tile of the cache as dot operand of DTYPE: scaled in float32 and rounded once, or just converted."""
    return (stored.to(tl.float32) * scale).to(DTYPE) if USE_SCALE else stored.to(DTYPE)
