"""A block of query rows, and its walk over the tiles of keys: what the kernels of all families have in common."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl

from .masks import visibility_mask
from .paged_cache import dequantize, load_scale, locate_keys, slot_offsets
from .scores import alibi_bias, apply_softcap, load_qq_bias
from .softmax import online_softmax_update, start_with_sinks


@triton.jit
def q_block_rows(
    first_query,
    query_start,
    query_len,
    kv_head,
    BLOCK_M: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    NUM_QUERIES_PER_KV: tl.constexpr,
):
    """Return (query, token, head, row_mask), each [BLOCK_M]: the rows are (query token, head in group) pairs.

    Rows from BLOCK_Q * NUM_QUERIES_PER_KV on are surplus (a group need not be a power of two): masked, because the
    token they would stand for belongs to the next block.
    """
    row = tl.arange(0, BLOCK_M)
    query = first_query + row // NUM_QUERIES_PER_KV
    head = kv_head * NUM_QUERIES_PER_KV + row % NUM_QUERIES_PER_KV
    row_mask = (row < BLOCK_Q * NUM_QUERIES_PER_KV) & (query < query_len)
    token = (query_start + query).to(tl.int64)
    return query, token, head, row_mask


@triton.jit
def load_queries(q_ptr, stride_token, stride_head, token, head, row_mask, dim, dim_mask, DTYPE: tl.constexpr):
    """Return the queries [rows, dims] as dot operand of DTYPE, 0 where a mask is false."""
    return tl.load(
        q_ptr + (token * stride_token + head * stride_head)[:, None] + dim[None, :],
        mask=row_mask[:, None] & dim_mask[None, :],
        other=0.0,
    ).to(DTYPE)


@triton.jit
def load_kv_scales(k_scale_ptr, v_scale_ptr, USE_FP8_KV: tl.constexpr):
    """Return (k_scale, v_scale), what a stored one is worth: 1 unless the cache is fp8, whatever the pointers hold."""
    if USE_FP8_KV:
        k_scale = load_scale(k_scale_ptr)
        v_scale = load_scale(v_scale_ptr)
    else:
        k_scale = 1.0
        v_scale = 1.0
    return k_scale, v_scale


@triton.jit
def start_rows(sinks_ptr, head, row_mask, segment, BLOCK_M: tl.constexpr, USE_SINKS: tl.constexpr):
    """Return (row_max, row_sum) [BLOCK_M] of rows that have seen no key yet, and their sink where there is one."""
    # [BLOCK_M]
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    if USE_SINKS:  # noqa: SIM102 - one condition is the compiler's, the other the program's
        # The sink joins the denominator once, so one segment holds it: the first, which always has tiles.
        if segment == 0:
            row_max, row_sum = start_with_sinks(sinks_ptr, head, row_mask)
    return row_max, row_sum


@triton.jit
def attend_tiles(
    row_max,  # [BLOCK_M]
    row_sum,  # [BLOCK_M]
    output,  # [BLOCK_M, HEAD_SIZE_PADDED]
    q_tile,  # [BLOCK_M, HEAD_SIZE_PADDED]
    key_ptr,  # a paged cache in any layout, or [num_tokens, num_kv_heads, head_size] in one piece
    key_stride_block,
    key_stride_slot,
    key_stride_head,
    key_dim_offset,  # [HEAD_SIZE_PADDED], how far each element lies from the first one of its key
    value_ptr,  # like key_ptr
    value_stride_block,
    value_stride_slot,
    value_stride_head,
    value_dim_offset,  # [HEAD_SIZE_PADDED]
    block_table_row_ptr,  # [max_blocks], the row of this sequence; None: keys and values lie in one piece
    first_key,
    first_slot,
    k_scale,
    v_scale,
    alibi_slopes_ptr,  # [num_query_heads] or None
    qq_bias_ptr,  # [qq_bias_rows, qq_bias_cols] or None
    qq_bias_stride_row,
    qq_bias_stride_col,
    qq_bias_cols,
    score_scale,
    softcap,
    window,
    query,  # [BLOCK_M], counted inside the sequence
    head,  # [BLOCK_M]
    row_mask,  # [BLOCK_M]
    dim_mask,  # [HEAD_SIZE_PADDED]
    context_len,
    kv_head,
    key_begin,
    key_end,
    first_tile,
    end_tile,
    BLOCK_SIZE: tl.constexpr,
    TILE_SIZE: tl.constexpr,
    USE_WINDOW: tl.constexpr,
    USE_SOFTCAP: tl.constexpr,
    USE_ALIBI: tl.constexpr,
    USE_QQ_BIAS: tl.constexpr,
    USE_KV_SCALE: tl.constexpr,
    QK_DTYPE: tl.constexpr,
    PV_DTYPE: tl.constexpr,
):
    """Return (row_max, row_sum, output) of the rows after tiles [first_tile, end_tile) too, not yet normalised.

    Tile 0 begins with key `first_key`; without a block table, that key is row `first_slot` of the dense tensors. Keys
    outside of [key_begin, key_end), the range that some row sees, are never loaded: not their page, not their key, not
    their value. What lies there may be NaN, and 0 * NaN is NaN.
    """
    if USE_ALIBI:
        # [BLOCK_M]
        slope = tl.load(alibi_slopes_ptr + head, mask=row_mask, other=0.0).to(tl.float32)

    for tile in range(first_tile, end_tile):
        # [TILE_SIZE]
        key = first_key + tile * TILE_SIZE + tl.arange(0, TILE_SIZE)
        key_mask = (key >= key_begin) & (key < key_end)
        page, slot = locate_keys(block_table_row_ptr, key, key_mask, first_key, first_slot, BLOCK_SIZE)

        # [HEAD_SIZE_PADDED, TILE_SIZE]
        key_offset = slot_offsets(page, slot, kv_head, key_stride_block, key_stride_slot, key_stride_head)
        k_tile = tl.load(
            key_ptr + key_offset[None, :] + key_dim_offset[:, None],
            mask=dim_mask[:, None] & key_mask[None, :],
            other=0.0,
        )
        k_tile = dequantize(k_tile, k_scale, QK_DTYPE, USE_KV_SCALE)

        # [BLOCK_M, TILE_SIZE]
        scores = score_scale * tl.dot(q_tile, k_tile, input_precision="ieee")
        if USE_SOFTCAP:
            scores = apply_softcap(scores, softcap)
        mask = visibility_mask(context_len + query, key, key_end, window, USE_WINDOW) & row_mask[:, None]
        if USE_ALIBI:
            scores += alibi_bias(slope, key, context_len)
        if USE_QQ_BIAS:
            scores += load_qq_bias(
                qq_bias_ptr, qq_bias_stride_row, qq_bias_stride_col, qq_bias_cols, query, key - context_len, mask
            )
        scores = tl.where(mask, scores, float("-inf"))

        row_max, row_sum, weights, alpha = online_softmax_update(scores, row_max, row_sum)

        # [TILE_SIZE, HEAD_SIZE_PADDED]
        value_offset = slot_offsets(page, slot, kv_head, value_stride_block, value_stride_slot, value_stride_head)
        v_tile = tl.load(
            value_ptr + value_offset[:, None] + value_dim_offset[None, :],
            mask=key_mask[:, None] & dim_mask[None, :],
            other=0.0,
        )
        v_tile = dequantize(v_tile, v_scale, PV_DTYPE, USE_KV_SCALE)
        output = output * alpha[:, None] + tl.dot(weights.to(PV_DTYPE), v_tile, input_precision="ieee")

    return row_max, row_sum, output
