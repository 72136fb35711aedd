"""Decode over a latent cache in two stages: the attention of each split of the keys, and the merge of the splits.

A key is `[latent | rope]` and its value is `latent`, so one tile of the cache serves both dot products. Split s owns
the keys of `split_keys`; a split without keys is neither written nor read. Each leaves its normalised output and the
logarithm of its sum of exponentials, which is all that a merge needs.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from typing import NamedTuple

import triton
import triton.language as tl

from .rows import cdiv_fn, head_dims
from .softmax import Softmax, finite_shift, normalize, online_softmax_update


class LatentCache(NamedTuple):
    """The keys; the first HEAD_SIZE_V elements of each are its value."""

    ptr: tl.tensor  # [num_blocks, block_size, head_size]
    stride_block: tl.tensor  # scalar
    stride_slot: tl.tensor  # scalar


class Splits(NamedTuple):
    """What the first stage leaves for the second, in scratch memory that is not initialised."""

    output_ptr: tl.tensor  # [num_seqs, num_query_heads, NUM_SPLITS, HEAD_SIZE_V]
    lse_ptr: tl.tensor  # [num_seqs, num_query_heads, NUM_SPLITS]


@triton.jit
def split_keys(seq_len, split, TILE_SIZE: tl.constexpr, num_splits):
    """Return (begin, end) of the keys of a split, whole tiles but for the last; begin >= end for one without keys.

    A split from `num_splits` on has none.
    """
    keys_per_split = cdiv_fn(cdiv_fn(seq_len, TILE_SIZE), num_splits) * TILE_SIZE
    begin = split * keys_per_split
    return begin, tl.minimum(begin + keys_per_split, seq_len)


@triton.jit
def split_index(seq_idx, num_query_heads, head, split, NUM_SPLITS: tl.constexpr):
    """Return the flat int64 index into scratch [num_seqs, num_query_heads, NUM_SPLITS]."""
    return (seq_idx * num_query_heads + head) * NUM_SPLITS + split


@triton.jit
def store_split(splits, softmax, index, row_mask, dims, HEAD_SIZE_V: tl.constexpr):
    """Write the normalised output and the log-sum-exp of a split's rows to `index` [rows] of the scratch.

    A row that is written has at least one key, so that its sum is not 0.
    """
    tl.store(splits.lse_ptr + index, softmax.row_max + tl.log(softmax.row_sum), mask=row_mask)
    part_ptr = splits.output_ptr + index[:, None] * HEAD_SIZE_V + dims.offset[None, :]
    part = softmax.output / softmax.row_sum[:, None]
    tl.store(part_ptr, part, mask=row_mask[:, None] & dims.mask[None, :])


@triton.jit
def merge_splits(
    splits,  # Splits
    index,  # [NUM_SPLITS_PADDED]
    written,  # [NUM_SPLITS_PADDED]
    sinks_ptr,  # [num_query_heads] or None
    head,
    dims,  # Dims of a value
    HEAD_SIZE_V: tl.constexpr,
):
    """Return (output, lse) of one head: the merged output [HEAD_SIZE_V_PADDED], and the log-sum-exp with the sink.

    What is not written is scratch memory, which may hold NaN: it must not be loaded, since weight 0 * NaN is NaN.
    """
    # [NUM_SPLITS_PADDED]
    lse = tl.load(splits.lse_ptr + index, mask=written, other=float("-inf"))
    largest = tl.max(lse, axis=0)
    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + head).to(tl.float32)
        largest = tl.maximum(largest, sink)
    weight = tl.exp(lse - finite_shift(largest))
    total = tl.sum(weight, axis=0)
    if sinks_ptr is not None:
        total += tl.exp(sink - finite_shift(largest))
    # [NUM_SPLITS_PADDED, HEAD_SIZE_V_PADDED]
    parts = tl.load(
        splits.output_ptr + index[:, None] * HEAD_SIZE_V + dims.offset[None, :],
        mask=written[:, None] & dims.mask[None, :],
        other=0.0,
    )
    output = normalize(tl.sum(parts * weight[:, None], axis=0), total)
    return output, largest + tl.log(total)


@triton.jit(do_not_specialize=["num_query_heads", "block_table_stride"])
def kernel_mla_split(
    splits,  # Splits
    queries,  # Tokens
    cache,  # LatentCache
    block_table_ptr,  # [num_seqs, max_blocks]
    seq_lens_ptr,  # [num_seqs]
    softmax_scale,
    num_query_heads,
    block_table_stride,
    HEAD_SIZE: tl.constexpr,
    HEAD_SIZE_V: tl.constexpr,
    HEAD_SIZE_V_PADDED: tl.constexpr,
    ROPE_SIZE_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_SIZE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
):
    """Attend one split of one sequence for BLOCK_H heads. Grid (num_seqs, heads / BLOCK_H rounded up, NUM_SPLITS)."""
    seq_idx = tl.program_id(0).to(tl.int64)
    split = tl.program_id(2)
    seq_len = tl.load(seq_lens_ptr + seq_idx)
    begin, end = split_keys(seq_len, split, TILE_SIZE, NUM_SPLITS)
    if begin >= end:
        return

    # [BLOCK_H]
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    head_mask = head < num_query_heads
    latent = head_dims(HEAD_SIZE_V, HEAD_SIZE_V_PADDED)
    # The elements of a key behind its value; there are none if ROPE_SIZE_PADDED is 0.
    USE_ROPE: tl.constexpr = HEAD_SIZE > HEAD_SIZE_V
    query_ptr = queries.ptr + seq_idx * queries.stride_token + head.to(tl.int64)[:, None] * queries.stride_head
    # [BLOCK_H, HEAD_SIZE_V_PADDED]
    q_latent = tl.load(query_ptr + latent.offset[None, :], mask=head_mask[:, None] & latent.mask[None, :], other=0.0)
    if USE_ROPE:
        rope = HEAD_SIZE_V + tl.arange(0, ROPE_SIZE_PADDED)
        rope_mask = rope < HEAD_SIZE
        # [BLOCK_H, ROPE_SIZE_PADDED]
        q_rope = tl.load(query_ptr + rope[None, :], mask=head_mask[:, None] & rope_mask[None, :], other=0.0)

    # [BLOCK_H]
    row_max = tl.full([BLOCK_H], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_H], tl.float32)
    # [BLOCK_H, HEAD_SIZE_V_PADDED]
    output = tl.zeros([BLOCK_H, HEAD_SIZE_V_PADDED], tl.float32)
    pages_ptr = block_table_ptr + seq_idx * block_table_stride
    for first_key in range(begin, end, TILE_SIZE):
        # [TILE_SIZE]
        key = first_key + tl.arange(0, TILE_SIZE)
        key_mask = key < end
        page = tl.load(pages_ptr + key // BLOCK_SIZE, mask=key_mask, other=0).to(tl.int64)
        key_ptr = cache.ptr + page * cache.stride_block + (key % BLOCK_SIZE).to(tl.int64) * cache.stride_slot
        # [TILE_SIZE, HEAD_SIZE_V_PADDED], key and value in one
        k_latent = tl.load(
            key_ptr[:, None] + latent.offset[None, :], mask=key_mask[:, None] & latent.mask[None, :], other=0.0
        )
        # [BLOCK_H, TILE_SIZE]
        score = tl.dot(q_latent, tl.trans(k_latent), input_precision="ieee")
        if USE_ROPE:
            # [TILE_SIZE, ROPE_SIZE_PADDED]
            k_rope = tl.load(key_ptr[:, None] + rope[None, :], mask=key_mask[:, None] & rope_mask[None, :], other=0.0)
            score = tl.dot(q_rope, tl.trans(k_rope), acc=score, input_precision="ieee")
        score = tl.where(key_mask[None, :], score * softmax_scale, float("-inf"))
        row_max, row_sum, weights, alpha = online_softmax_update(score, row_max, row_sum)
        output = output * alpha[:, None]
        output = tl.dot(weights.to(k_latent.dtype), k_latent, acc=output, input_precision="ieee")

    index = split_index(seq_idx, num_query_heads, head.to(tl.int64), split, NUM_SPLITS)
    store_split(splits, Softmax(row_max, row_sum, output), index, head_mask, latent, HEAD_SIZE_V)


@triton.jit(do_not_specialize=["num_query_heads", "lse_stride_token", "lse_stride_head"])
def kernel_mla_merge(
    out,  # Tokens
    lse_ptr,  # [num_tokens, num_query_heads] or None
    splits,  # Splits
    seq_lens_ptr,  # [num_seqs]
    num_query_heads,
    lse_stride_token,
    lse_stride_head,
    HEAD_SIZE_V: tl.constexpr,
    HEAD_SIZE_V_PADDED: tl.constexpr,
    TILE_SIZE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    NUM_SPLITS_PADDED: tl.constexpr,
):
    """Merge the splits of one sequence and head. Grid (num_seqs, num_query_heads).

    A sequence without keys has no split: its output is 0 and its log-sum-exp -inf.
    """
    seq_idx = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    # [NUM_SPLITS_PADDED]
    split = tl.arange(0, NUM_SPLITS_PADDED)
    begin, end = split_keys(tl.load(seq_lens_ptr + seq_idx), split, TILE_SIZE, NUM_SPLITS)
    written = (split < NUM_SPLITS) & (begin < end)
    index = split_index(seq_idx, num_query_heads, head, split, NUM_SPLITS)
    latent = head_dims(HEAD_SIZE_V, HEAD_SIZE_V_PADDED)
    output, lse = merge_splits(splits, index, written, None, head, latent, HEAD_SIZE_V)
    row_ptr = out.ptr + seq_idx * out.stride_token + head * out.stride_head
    tl.store(row_ptr + latent.offset, output.to(out.ptr.dtype.element_ty), mask=latent.mask)
    if lse_ptr is not None:
        tl.store(lse_ptr + seq_idx * lse_stride_token + head * lse_stride_head, lse)
