"""Keys and values of the paged cache: page lookup, addresses, dequantisation."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from typing import NamedTuple

import triton
import triton.language as tl


class PagedCache(NamedTuple):
    """The keys, or the values, of the unified family."""

    ptr: tl.tensor  # [num_blocks, block_size, num_kv_heads, head_size]
    stride_block: tl.tensor  # scalar
    stride_slot: tl.tensor  # scalar
    stride_head: tl.tensor  # scalar


class SplitKeys(NamedTuple):
    """The keys of a split cache; its last stride is 1."""

    ptr: tl.tensor  # [num_blocks, num_kv_heads, head_size // X, block_size, X]
    stride_block: tl.tensor  # scalar
    stride_head: tl.tensor  # scalar
    stride_chunk: tl.tensor  # scalar
    stride_slot: tl.tensor  # scalar


class SplitValues(NamedTuple):
    """The values of a split cache; its last stride is 1."""

    ptr: tl.tensor  # [num_blocks, num_kv_heads, head_size, block_size]
    stride_block: tl.tensor  # scalar
    stride_head: tl.tensor  # scalar
    stride_dim: tl.tensor  # scalar


class Scales(NamedTuple):
    """The factor on the dot products, and the values of a stored fp8 1."""

    softmax_scale: tl.tensor  # scalar
    q_scale_ptr: tl.tensor  # [1] or None
    k_scale_ptr: tl.tensor  # [1] or None
    v_scale_ptr: tl.tensor  # [1] or None


class Cache(NamedTuple):
    """Keys, or values: a paged cache in any layout, or a dense tensor [num_tokens, num_kv_heads, head_size]."""

    ptr: tl.tensor
    stride_block: tl.tensor  # scalar, 0 for a dense tensor
    stride_slot: tl.tensor  # scalar, from token to token
    stride_head: tl.tensor  # scalar
    dim_offset: tl.tensor  # [HEAD_SIZE_PADDED], from the first element of a key to each of its elements


class Pages(NamedTuple):
    """Where the keys and values of one sequence and KV head are.

    Without a block table they are consecutive tokens: key `first_key` is in slot `first_slot`.
    """

    block_table_row_ptr: tl.tensor  # [max_blocks], or None
    kv_head: tl.tensor  # scalar
    first_key: tl.tensor  # scalar, where tile 0 begins
    first_slot: tl.tensor  # scalar


@triton.jit
def load_scale(scale_ptr):
    """Return the one element behind `scale_ptr`, 1 for None."""
    return 1.0 if scale_ptr is None else tl.load(scale_ptr)


@triton.jit
def load_kv_scales(scales, USE_FP8_KV: tl.constexpr):
    """Return (k_scale, v_scale), the value of a stored 1. Both are 1 unless the cache is fp8."""
    if USE_FP8_KV:
        k_scale = load_scale(scales.k_scale_ptr)
        v_scale = load_scale(scales.v_scale_ptr)
    else:
        k_scale = 1.0
        v_scale = 1.0
    return k_scale, v_scale


@triton.jit
def load_pages(block_table_row_ptr, key, key_mask, BLOCK_SIZE: tl.constexpr):
    """Return the int64 page number of each `key` [keys]; where `key_mask` is false nothing is read and it is 0."""
    return tl.load(block_table_row_ptr + key // BLOCK_SIZE, mask=key_mask, other=0).to(tl.int64)


@triton.jit
def locate_keys(pages, key, key_mask, BLOCK_SIZE: tl.constexpr):
    """Return (page, slot), int64, of each `key` [keys]. Consecutive tokens are slots of page 0."""
    if pages.block_table_row_ptr is None:
        page = tl.zeros_like(key).to(tl.int64)
        slot = pages.first_slot.to(tl.int64) + (key - pages.first_key)
    else:
        page = load_pages(pages.block_table_row_ptr, key, key_mask, BLOCK_SIZE)
        slot = (key % BLOCK_SIZE).to(tl.int64)
    return page, slot


@triton.jit
def slot_offsets(cache, page, slot, kv_head):
    """Return the int64 offset [keys] of the first element of each key, or value, of one KV head."""
    return page * cache.stride_block + slot * cache.stride_slot + kv_head * cache.stride_head


@triton.jit
def split_key_dims(dim, stride_chunk, X: tl.constexpr):
    """Return the int64 offset of each `dim` in a key cache [num_blocks, num_kv_heads, head_size // X, block_size, X].

    The last stride is 1; `stride_chunk` is the stride of the third dimension.
    """
    return (dim // X).to(tl.int64) * stride_chunk + dim % X


@triton.jit
def split_value_dims(dim, stride_dim):
    """Return the int64 offset of each `dim` in a value cache [num_blocks, num_kv_heads, head_size, block_size]."""
    return dim.to(tl.int64) * stride_dim


@triton.jit
def dequantize(stored, scale, DTYPE: tl.constexpr, USE_SCALE: tl.constexpr):
    """Return a tile of the cache as dot operand of DTYPE; with USE_SCALE it is scaled in float32 and rounded once."""
    return (stored.to(tl.float32) * scale).to(DTYPE) if USE_SCALE else stored.to(DTYPE)
