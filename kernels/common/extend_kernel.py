"""The kernel of extend attention: each program attends a block of new tokens for one KV head."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from typing import NamedTuple

import triton
import triton.language as tl

from .outputs import store_rows
from .paged_cache import dequantize, load_kv_scales
from .query_blocks import start_softmax
from .rows import Sequence, head_dims, load_queries, q_block_rows
from .scores import apply_softcap, tile_range
from .softmax import Softmax, online_softmax_update


class Slots(NamedTuple):
    """Where the sequences of a batch lie: their new tokens, and the slots of their contexts."""

    query_start_loc_ptr: tl.tensor  # [num_seqs + 1]
    kv_indptr_ptr: tl.tensor  # [num_seqs + 1]
    kv_indices_ptr: tl.tensor  # [kv_indptr[num_seqs] or more]


class CustomMask(NamedTuple):
    """A bit for each new token and key of a sequence."""

    ptr: tl.tensor  # [mask_indptr[num_seqs] or more], uint8, or None
    indptr_ptr: tl.tensor  # [num_seqs + 1] or None


class MaskVariant(NamedTuple):
    """Which masks are compiled into the kernel."""

    IS_CAUSAL: bool
    TOP_LEFT: bool
    USE_LEFT: bool
    USE_RIGHT: bool
    USE_CHUNKS: bool
    USE_CUSTOM: bool


class KeyRange(NamedTuple):
    """The keys that each row may see, custom masks apart: [begin, end)."""

    begin: tl.tensor  # [BLOCK_M]
    end: tl.tensor  # [BLOCK_M]


class MaskRow(NamedTuple):
    """The bits of one sequence."""

    ptr: tl.tensor  # [query_len, seq_len], or None
    seq_len: tl.tensor  # scalar


class SequenceKeys(NamedTuple):
    """The keys, or the values, of one sequence: of its context by their slots, or of its new tokens."""

    tokens: tl.tensor  # Tokens
    slots_ptr: tl.tensor  # [context_len], or None for consecutive tokens
    first_key: tl.tensor  # scalar, the key where tile 0 begins
    first_token: tl.tensor  # scalar, where the first of consecutive tokens is


@triton.jit
def keys_of_rows(position, seq_len, window_left, window_right, chunk_size, masks: tl.constexpr):
    """Return the KeyRange of rows at `position` [BLOCK_M]: window, chunk and causality only."""
    begin = tl.zeros_like(position)
    if masks.USE_LEFT:
        begin = tl.maximum(begin, position - window_left)
    if masks.USE_CHUNKS:
        begin = tl.maximum(begin, position // chunk_size * chunk_size)
    end = tl.zeros_like(position) + seq_len
    if masks.IS_CAUSAL:
        end = tl.minimum(end, position + 1)
    if masks.USE_RIGHT:
        # No sequence has as many keys as int32 has numbers, but a window may: the sum must not overflow.
        end = tl.minimum(end, position + 1 + tl.minimum(window_right, seq_len))
    return KeyRange(begin, end)


@triton.jit
def token_offsets(source, tokens, key, key_mask, kv_head):
    """Return the int64 offset [keys] of the first element of each key, or value, in `tokens`."""
    if source.slots_ptr is None:
        token = source.first_token.to(tl.int64) + (key - source.first_key)
    else:
        token = tl.load(source.slots_ptr + key, mask=key_mask, other=0).to(tl.int64)
    return token * tokens.stride_token + kv_head * tokens.stride_head


@triton.jit
def attend_keys(
    softmax,  # Softmax over the keys before
    q_tile,  # [BLOCK_M, HEAD_SIZE_PADDED]
    source,  # SequenceKeys of the keys
    values,  # Tokens
    seen,  # KeyRange
    bits,  # MaskRow
    factors,  # (score, key, value)
    scores,  # Scores
    rows,  # Rows
    dims,  # Dims of a key
    value_dims,  # Dims of a value
    kv_head,
    key_begin,
    key_end,
    tiling: tl.constexpr,  # Tiling
    variant: tl.constexpr,  # Variant
    USE_CUSTOM: tl.constexpr,
    DEQUANTIZE: tl.constexpr,
):
    """Return the Softmax after the keys [key_begin, key_end).

    Neither slot nor key nor value is loaded for a key that no row of the block sees: it may hold NaN.
    """
    row_max, row_sum, output = softmax
    first_tile, end_tile = tile_range(key_begin - source.first_key, key_end - source.first_key, tiling.TILE_SIZE)
    for tile in range(first_tile, end_tile):
        # [TILE_SIZE]
        key = source.first_key + tile * tiling.TILE_SIZE + tl.arange(0, tiling.TILE_SIZE)
        key_mask = (key >= key_begin) & (key < key_end)
        # [BLOCK_M, TILE_SIZE]
        mask = (key[None, :] >= seen.begin[:, None]) & (key[None, :] < seen.end[:, None])
        mask = mask & key_mask[None, :] & rows.mask[:, None]
        if USE_CUSTOM:
            bit_offset = rows.query.to(tl.int64)[:, None] * bits.seq_len + key[None, :]
            mask = mask & (tl.load(bits.ptr + bit_offset, mask=mask, other=0) != 0)
            key_mask = tl.max(mask.to(tl.int32), axis=0) > 0

        # [HEAD_SIZE_PADDED, TILE_SIZE]
        k_tile = tl.load(
            source.tokens.ptr
            + token_offsets(source, source.tokens, key, key_mask, kv_head)[None, :]
            + dims.offset[:, None],
            mask=dims.mask[:, None] & key_mask[None, :],
            other=0.0,
        )
        k_tile = dequantize(k_tile, factors[1], q_tile.dtype, DEQUANTIZE)
        # [BLOCK_M, TILE_SIZE]
        score = factors[0] * tl.dot(q_tile, k_tile, input_precision="ieee")
        if variant.USE_SOFTCAP:
            score = apply_softcap(score, scores.softcap)
        score = tl.where(mask, score, float("-inf"))
        row_max, row_sum, weights, alpha = online_softmax_update(score, row_max, row_sum)

        # [TILE_SIZE, HEAD_SIZE_PADDED] of a value
        v_tile = tl.load(
            values.ptr + token_offsets(source, values, key, key_mask, kv_head)[:, None] + value_dims.offset[None, :],
            mask=key_mask[:, None] & value_dims.mask[None, :],
            other=0.0,
        )
        v_tile = dequantize(v_tile, factors[2], q_tile.dtype, DEQUANTIZE)
        output = output * alpha[:, None] + tl.dot(weights.to(q_tile.dtype), v_tile, input_precision="ieee")
    return Softmax(row_max, row_sum, output)


@triton.jit(do_not_specialize=["window_left", "window_right", "chunk_size"])
def kernel_extend_attention(
    out,  # Output
    queries,  # Tokens
    new_keys,  # Tokens
    new_values,  # Tokens
    keys,  # Tokens, by slots
    values,  # Tokens, by slots
    slots,  # Slots
    custom_mask,  # CustomMask
    scores,  # Scores
    scales,  # Scales
    # These are in no tuple: Triton specialises each number of a tuple, and would compile anew for other windows.
    window_left,
    window_right,
    chunk_size,
    tiling: tl.constexpr,  # Tiling
    variant: tl.constexpr,  # Variant
    masks: tl.constexpr,  # MaskVariant
    OUTPUT_LIMIT: tl.constexpr,
):
    """Attend BLOCK_Q new tokens of one sequence for one KV head. Grid (num_seqs, num_kv_heads, blocks)."""
    seq_idx = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    first_query = tl.program_id(2) * tiling.BLOCK_Q
    query_start = tl.load(slots.query_start_loc_ptr + seq_idx)
    query_len = tl.load(slots.query_start_loc_ptr + seq_idx + 1) - query_start
    if first_query >= query_len:
        return
    context_start = tl.load(slots.kv_indptr_ptr + seq_idx)
    context_len = tl.load(slots.kv_indptr_ptr + seq_idx + 1) - context_start
    seq_len = context_len + query_len
    sequence = Sequence(query_start, query_len, context_len)

    rows = q_block_rows(first_query, sequence, kv_head, variant.BLOCK_M, tiling.BLOCK_Q, variant.NUM_QUERIES_PER_KV)
    dims = head_dims(tiling.HEAD_SIZE, tiling.HEAD_SIZE_PADDED)
    DTYPE: tl.constexpr = queries.ptr.dtype.element_ty
    # [BLOCK_M, HEAD_SIZE_PADDED]
    q_tile = load_queries(queries, rows, dims, DTYPE)
    k_scale, v_scale = load_kv_scales(scales, variant.USE_FP8_KV)
    softmax = start_softmax(scores.sinks_ptr, rows, 0, variant.BLOCK_M, tiling.HEAD_SIZE_PADDED, variant.USE_SINKS)

    # [BLOCK_M]
    position = rows.query if masks.TOP_LEFT else context_len + rows.query
    seen = keys_of_rows(position, seq_len, window_left, window_right, chunk_size, masks)
    # The keys that some row of the block sees are within this range.
    key_begin = tl.min(tl.where(rows.mask, seen.begin, seq_len), axis=0)
    key_end = tl.max(tl.where(rows.mask, seen.end, 0), axis=0)
    bits = MaskRow(None, seq_len)
    if masks.USE_CUSTOM:
        bits = MaskRow(custom_mask.ptr + tl.load(custom_mask.indptr_ptr + seq_idx).to(tl.int64), seq_len)

    # The context: keys [key_begin, context_len), by their slots.
    softmax = attend_keys(
        softmax,
        q_tile,
        SequenceKeys(keys, slots.kv_indices_ptr + context_start, 0, 0),
        values,
        seen,
        bits,
        (scales.softmax_scale, k_scale, v_scale),
        scores,
        rows,
        dims,
        dims,
        kv_head,
        key_begin,
        tl.minimum(key_end, context_len),
        tiling,
        variant,
        masks.USE_CUSTOM,
        variant.USE_FP8_KV,
    )
    # The new tokens: keys [context_len, key_end), next to each other.
    softmax = attend_keys(
        softmax,
        q_tile,
        SequenceKeys(new_keys, None, context_len, query_start),
        new_values,
        seen,
        bits,
        (scales.softmax_scale, 1.0, 1.0),
        scores,
        rows,
        dims,
        dims,
        kv_head,
        tl.maximum(key_begin, context_len),
        key_end,
        tiling,
        variant,
        masks.USE_CUSTOM,
        False,
    )
    store_rows(out, softmax, rows, dims, OUTPUT_LIMIT)
