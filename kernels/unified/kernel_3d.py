"""The unified kernel for small grids: each program covers one segment of the KV range and writes partial sums."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl

from ..common.masks import tile_range, visible_keys
from ..common.query_blocks import q_block_rows
from .blocks import attend_q_block, locate_q_block
from .segments import partial_index, segment_tiles


@triton.jit(
    do_not_specialize=[
        "num_query_heads",
        "block_table_stride",
        "qq_bias_stride_row",
        "qq_bias_stride_col",
        "qq_bias_cols",
        "window",
        "num_seqs",
    ]
)
def kernel_unified_attention_3d(
    segm_output_ptr,  # [num_tokens, num_query_heads, NUM_SEGMENTS, HEAD_SIZE_PADDED]
    segm_max_ptr,  # [num_tokens, num_query_heads, NUM_SEGMENTS]
    segm_expsum_ptr,  # [num_tokens, num_query_heads, NUM_SEGMENTS]
    num_query_heads,
    q_ptr,  # [num_tokens, num_query_heads, head_size]
    q_stride_token,
    q_stride_head,
    key_cache_ptr,  # [num_blocks, block_size, num_kv_heads, head_size]
    key_stride_block,
    key_stride_slot,
    key_stride_head,
    value_cache_ptr,  # [num_blocks, block_size, num_kv_heads, head_size]
    value_stride_block,
    value_stride_slot,
    value_stride_head,
    block_table_ptr,  # [num_seqs, max_blocks]
    block_table_stride,
    query_start_loc_ptr,  # [num_seqs + 1]
    seq_lens_ptr,  # [num_seqs]
    alibi_slopes_ptr,  # [num_query_heads] or None
    qq_bias_ptr,  # [qq_bias_rows, qq_bias_cols] or None
    qq_bias_stride_row,
    qq_bias_stride_col,
    qq_bias_cols,
    sinks_ptr,  # [num_query_heads] or None
    q_scale_ptr,  # [1] or None
    k_scale_ptr,  # [1] or None
    v_scale_ptr,  # [1] or None
    softmax_scale,
    softcap,
    window,
    num_seqs,
    HEAD_SIZE: tl.constexpr,
    HEAD_SIZE_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    NUM_QUERIES_PER_KV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    TILE_SIZE: tl.constexpr,
    QK_DTYPE: tl.constexpr,
    PV_DTYPE: tl.constexpr,
    USE_WINDOW: tl.constexpr,
    USE_SOFTCAP: tl.constexpr,
    USE_ALIBI: tl.constexpr,
    USE_QQ_BIAS: tl.constexpr,
    USE_SINKS: tl.constexpr,
    USE_FP8_Q: tl.constexpr,
    USE_FP8_KV: tl.constexpr,
    NUM_SEGMENTS: tl.constexpr,
):
    """Attend one segment of one q-block of one KV head.

    Grid (num_tokens // BLOCK_Q + num_seqs, num_kv_heads, NUM_SEGMENTS). A segment without tiles writes nothing;
    `reduce_segments` knows by the same arithmetic not to read it.
    """
    q_block = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    segment = tl.program_id(2)
    seq_idx, query_start, query_len, context_len, first_query = locate_q_block(
        query_start_loc_ptr, seq_lens_ptr, q_block, num_seqs, BLOCK_Q
    )
    if first_query >= query_len:
        return

    key_begin, key_end = visible_keys(first_query, query_len, context_len, window, BLOCK_Q, USE_WINDOW)
    first_tile, end_tile = tile_range(key_begin, key_end, TILE_SIZE)
    segment_begin, segment_end = segment_tiles(first_tile, end_tile, segment, NUM_SEGMENTS)
    if segment_begin >= segment_end:
        return

    query, token, head, row_mask = q_block_rows(
        first_query, query_start, query_len, kv_head, BLOCK_M, BLOCK_Q, NUM_QUERIES_PER_KV
    )
    # [HEAD_SIZE_PADDED]
    dim = tl.arange(0, HEAD_SIZE_PADDED)
    dim_mask = dim < HEAD_SIZE
    row_max, row_sum, output = attend_q_block(
        q_ptr,
        q_stride_token,
        q_stride_head,
        key_cache_ptr,
        key_stride_block,
        key_stride_slot,
        key_stride_head,
        value_cache_ptr,
        value_stride_block,
        value_stride_slot,
        value_stride_head,
        block_table_ptr + seq_idx.to(tl.int64) * block_table_stride,
        alibi_slopes_ptr,
        qq_bias_ptr,
        qq_bias_stride_row,
        qq_bias_stride_col,
        qq_bias_cols,
        sinks_ptr,
        q_scale_ptr,
        k_scale_ptr,
        v_scale_ptr,
        softmax_scale,
        softcap,
        window,
        query,
        token,
        head,
        row_mask,
        dim,
        dim_mask,
        segment,
        context_len,
        kv_head,
        key_begin,
        key_end,
        segment_begin,
        segment_end,
        HEAD_SIZE_PADDED,
        BLOCK_SIZE,
        BLOCK_M,
        TILE_SIZE,
        QK_DTYPE,
        PV_DTYPE,
        USE_WINDOW,
        USE_SOFTCAP,
        USE_ALIBI,
        USE_QQ_BIAS,
        USE_SINKS,
        USE_FP8_Q,
        USE_FP8_KV,
    )

    # [BLOCK_M]
    index = partial_index(token, num_query_heads, head, segment, NUM_SEGMENTS)
    tl.store(segm_max_ptr + index, row_max, mask=row_mask)
    tl.store(segm_expsum_ptr + index, row_sum, mask=row_mask)
    # [BLOCK_M, HEAD_SIZE_PADDED]
    tl.store(
        segm_output_ptr + index[:, None] * HEAD_SIZE_PADDED + dim[None, :],
        output,
        mask=row_mask[:, None] & dim_mask[None, :],
    )
