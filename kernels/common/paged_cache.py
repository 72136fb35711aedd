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
def locate_keys(block_table_row_ptr, key, key_mask, first_key, first_slot, BLOCK_SIZE: tl.constexpr):
    """Return (page, slot), int64, of each `key` [keys].

    Without a block table, keys and values lie in one piece, as if on page 0, and `first_key` is in slot `first_slot`.
    """
    if block_table_row_ptr is None:
        page = tl.zeros_like(key).to(tl.int64)
        slot = first_slot.to(tl.int64) + (key - first_key)
    else:
        page = load_pages(block_table_row_ptr, key, key_mask, BLOCK_SIZE)
        slot = (key % BLOCK_SIZE).to(tl.int64)
    return page, slot


@triton.jit
def slot_offsets(page, slot, kv_head, stride_block, stride_slot, stride_head):
    """Return the int64 offset [keys] of the first element of each key, or value, of one KV head."""
    return page * stride_block + slot * stride_slot + kv_head * stride_head


@triton.jit
def split_key_dims(dim, stride_chunk, X: tl.constexpr):
    """Return the int64 offset of each `dim` in a key cache [num_blocks, num_kv_heads, head_size // X, block_size, X].

    The last stride is 1; `stride_chunk` is that of the third dimension.
    """
    return (dim // X).to(tl.int64) * stride_chunk + dim % X


@triton.jit
def split_value_dims(dim, stride_dim):
    """Return the int64 offset of each `dim` in a value cache [num_blocks, num_kv_heads, head_size, block_size]."""
    return dim.to(tl.int64) * stride_dim


@triton.jit
def dequantize(stored, scale, DTYPE: tl.constexpr, USE_SCALE: tl.constexpr):
    """Return a tile of the cache as dot operand of DTYPE: scaled in float32 and rounded once, or just converted."""
    return (stored.to(tl.float32) * scale).to(DTYPE) if USE_SCALE else stored.to(DTYPE)
