"""The kernel of paged decode: each program attends the one new token of a sequence over all heads of one KV head."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl

from ..common.masks import tile_range, visible_keys
from ..common.outputs import store_rows
from ..common.paged_cache import split_key_dims, split_value_dims
from ..common.query_blocks import attend_tiles, load_kv_scales, load_queries, q_block_rows, start_rows
from ..common.sequences import load_decode


@triton.jit(do_not_specialize=["block_table_stride", "window"])
def kernel_paged_attention_2d(
    out_ptr,  # [num_tokens, num_query_heads, head_size]
    out_stride_token,
    out_stride_head,
    q_ptr,  # [num_tokens, num_query_heads, head_size]
    q_stride_token,
    q_stride_head,
    key_cache_ptr,  # [num_blocks, num_kv_heads, head_size // X, block_size, X]
    key_stride_block,
    key_stride_head,
    key_stride_chunk,
    key_stride_slot,
    value_cache_ptr,  # [num_blocks, num_kv_heads, head_size, block_size]
    value_stride_block,
    value_stride_head,
    value_stride_dim,
    block_table_ptr,  # [num_seqs, max_blocks]
    block_table_stride,
    query_start_loc_ptr,  # [num_seqs + 1], or None without FILTER_BY_QUERY_LEN
    seq_lens_ptr,  # [num_seqs]
    alibi_slopes_ptr,  # [num_query_heads] or None
    sinks_ptr,  # [num_query_heads] or None
    k_scale_ptr,  # [1] or None
    v_scale_ptr,  # [1] or None
    output_scale_ptr,  # [1] or None
    softmax_scale,
    window,
    HEAD_SIZE: tl.constexpr,
    HEAD_SIZE_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    X: tl.constexpr,
    NUM_QUERIES_PER_KV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TILE_SIZE: tl.constexpr,
    QK_DTYPE: tl.constexpr,
    PV_DTYPE: tl.constexpr,
    USE_WINDOW: tl.constexpr,
    USE_ALIBI: tl.constexpr,
    USE_SINKS: tl.constexpr,
    USE_FP8_KV: tl.constexpr,
    OUTPUT_LIMIT: tl.constexpr,
    USE_FP8_OUTPUT: tl.constexpr,
    FILTER_BY_QUERY_LEN: tl.constexpr,
):
    """Attend the token of one sequence for one KV head. Grid (num_seqs, num_kv_heads)."""
    seq_idx = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    query_start, query_len, context_len = load_decode(query_start_loc_ptr, seq_lens_ptr, seq_idx, FILTER_BY_QUERY_LEN)
    if query_len != 1:
        return

    key_begin, key_end = visible_keys(0, query_len, context_len, window, 1, USE_WINDOW)
    first_tile, end_tile = tile_range(key_begin, key_end, TILE_SIZE)
    query, token, head, row_mask = q_block_rows(0, query_start, query_len, kv_head, BLOCK_M, 1, NUM_QUERIES_PER_KV)
    # [HEAD_SIZE_PADDED]
    dim = tl.arange(0, HEAD_SIZE_PADDED)
    dim_mask = dim < HEAD_SIZE

    # [BLOCK_M, HEAD_SIZE_PADDED]
    q_tile = load_queries(q_ptr, q_stride_token, q_stride_head, token, head, row_mask, dim, dim_mask, QK_DTYPE)
    k_scale, v_scale = load_kv_scales(k_scale_ptr, v_scale_ptr, USE_FP8_KV)
    row_max, row_sum = start_rows(sinks_ptr, head, row_mask, 0, BLOCK_M, USE_SINKS)
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
        split_key_dims(dim, key_stride_chunk, X),
        value_cache_ptr,
        value_stride_block,
        1,
        value_stride_head,
        split_value_dims(dim, value_stride_dim),
        block_table_ptr + seq_idx * block_table_stride,
        0,
        0,
        k_scale,
        v_scale,
        alibi_slopes_ptr,
        None,
        0,
        0,
        0,
        softmax_scale,
        0.0,
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
        False,
        USE_ALIBI,
        False,
        USE_FP8_KV,
        QK_DTYPE,
        PV_DTYPE,
    )
    store_rows(
        out_ptr,
        out_stride_token,
        out_stride_head,
        output,
        row_sum,
        token,
        head,
        row_mask,
        dim,
        dim_mask,
        output_scale_ptr,
        OUTPUT_LIMIT,
        USE_FP8_OUTPUT,
    )
