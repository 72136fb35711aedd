"""What the unified 2D and 3D kernels share beyond the walk over tiles: how a q-block is found and attended."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl

from ..common.paged_cache import load_scale
from ..common.query_blocks import attend_tiles, load_kv_scales, load_queries, start_rows
from ..common.sequences import find_seq_idx, first_q_block, load_sequence


@triton.jit
def locate_q_block(query_start_loc_ptr, seq_lens_ptr, q_block, num_seqs, BLOCK_Q: tl.constexpr):
    """Return (seq_idx, query_start, query_len, context_len, first_query) of a q-block of the batch.

    The block has work only if first_query < query_len: the grid is an upper bound.
    """
    seq_idx = find_seq_idx(query_start_loc_ptr, q_block, num_seqs, BLOCK_Q, True)
    query_start, query_len, context_len = load_sequence(query_start_loc_ptr, seq_lens_ptr, seq_idx)
    first_query = ((q_block - first_q_block(query_start, seq_idx, BLOCK_Q)) * BLOCK_Q).to(tl.int32)
    return seq_idx, query_start, query_len, context_len, first_query


@triton.jit
def attend_q_block(
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
    block_table_row_ptr,  # [max_blocks], the row of this sequence
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
    query,  # [BLOCK_M], counted inside the sequence
    token,  # [BLOCK_M]
    head,  # [BLOCK_M]
    row_mask,  # [BLOCK_M]
    dim,  # [HEAD_SIZE_PADDED]
    dim_mask,  # [HEAD_SIZE_PADDED]
    segment,
    context_len,
    kv_head,
    key_begin,
    key_end,
    first_tile,
    end_tile,
    HEAD_SIZE_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
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
):
    """Return (row_max, row_sum, output) of the rows over tiles [first_tile, end_tile), not yet normalised."""
    # [BLOCK_M, HEAD_SIZE_PADDED]
    q_tile = load_queries(q_ptr, q_stride_token, q_stride_head, token, head, row_mask, dim, dim_mask, QK_DTYPE)
    k_scale, v_scale = load_kv_scales(k_scale_ptr, v_scale_ptr, USE_FP8_KV)
    # With an fp8 query the dot products run on the stored values, and the scales join the score and the output instead.
    USE_KV_SCALE: tl.constexpr = USE_FP8_KV and not USE_FP8_Q
    score_scale = softmax_scale
    if USE_FP8_Q:
        score_scale = softmax_scale * load_scale(q_scale_ptr) * k_scale
    row_max, row_sum = start_rows(sinks_ptr, head, row_mask, segment, BLOCK_M, USE_SINKS)
    output = tl.zeros([BLOCK_M, HEAD_SIZE_PADDED], tl.float32)
    row_max, row_sum, output = attend_tiles(
        row_max,
        row_sum,
        output,
        q_tile,
        key_cache_ptr,
        key_stride_block,
        key_stride_slot,
        key_stride_head,
        dim,
        value_cache_ptr,
        value_stride_block,
        value_stride_slot,
        value_stride_head,
        dim,
        block_table_row_ptr,
        0,
        0,
        k_scale,
        v_scale,
        alibi_slopes_ptr,
        qq_bias_ptr,
        qq_bias_stride_row,
        qq_bias_stride_col,
        qq_bias_cols,
        score_scale,
        softcap,
        window,
        query,
        head,
        row_mask,
        dim_mask,
        context_len,
        kv_head,
        key_begin,
        key_end,
        first_tile,
        end_tile,
        BLOCK_SIZE,
        TILE_SIZE,
        USE_WINDOW,
        USE_SOFTCAP,
        USE_ALIBI,
        USE_QQ_BIAS,
        USE_KV_SCALE,
        QK_DTYPE,
        PV_DTYPE,
    )
    if USE_FP8_Q:
        output = output * v_scale
    return row_max, row_sum, output
