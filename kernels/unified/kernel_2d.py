"""The unified kernel of one pass: each program covers the whole KV range of its q-block and writes the output."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl

from ..common.masks import Visibility, tile_range, visible_keys
from ..common.outputs import store_rows
from ..common.paged_cache import Cache, Pages
from ..common.query_blocks import Tiling
from ..common.rows import Tokens, head_dims, q_block_rows
from ..common.scores import QQBias, Scores
from .blocks import Scales, attend_q_block, locate_q_block


@triton.jit(
    do_not_specialize=[
        "block_table_stride",
        "qq_bias_stride_row",
        "qq_bias_stride_col",
        "qq_bias_cols",
        "window",
        "num_seqs",
    ]
)
def kernel_unified_attention_2d(
    out_ptr,  # [num_tokens, num_query_heads, head_size]
    out_stride_token,
    out_stride_head,
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
    output_scale_ptr,  # [1] or None
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
    OUTPUT_LIMIT: tl.constexpr,
    USE_FP8_OUTPUT: tl.constexpr,
):
    """Attend one q-block of one KV head. Grid (num_tokens // BLOCK_Q + num_seqs, num_kv_heads)."""
    q_block = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    seq_idx, sequence, first_query = locate_q_block(query_start_loc_ptr, seq_lens_ptr, q_block, num_seqs, BLOCK_Q)
    if first_query >= sequence.query_len:
        return

    key_begin, key_end = visible_keys(first_query, sequence, window, BLOCK_Q, USE_WINDOW)
    first_tile, end_tile = tile_range(key_begin, key_end, TILE_SIZE)
    rows = q_block_rows(first_query, sequence, kv_head, BLOCK_M, BLOCK_Q, NUM_QUERIES_PER_KV)
    dims = head_dims(HEAD_SIZE, HEAD_SIZE_PADDED)
    softmax = attend_q_block(
        Tokens(q_ptr, q_stride_token, q_stride_head),
        Cache(key_cache_ptr, key_stride_block, key_stride_slot, key_stride_head, dims.offset),
        Cache(value_cache_ptr, value_stride_block, value_stride_slot, value_stride_head, dims.offset),
        Pages(block_table_ptr + seq_idx.to(tl.int64) * block_table_stride, kv_head, 0, 0, BLOCK_SIZE),
        Scales(softmax_scale, q_scale_ptr, k_scale_ptr, v_scale_ptr, USE_FP8_Q, USE_FP8_KV),
        Scores(
            softcap,
            alibi_slopes_ptr,
            QQBias(qq_bias_ptr, qq_bias_stride_row, qq_bias_stride_col, qq_bias_cols),
            USE_SOFTCAP,
            USE_ALIBI,
            USE_QQ_BIAS,
        ),
        Visibility(sequence.context_len, key_begin, key_end, window, USE_WINDOW),
        rows,
        dims,
        sinks_ptr,
        0,
        first_tile,
        end_tile,
        Tiling(BLOCK_M, TILE_SIZE, HEAD_SIZE_PADDED, QK_DTYPE, PV_DTYPE),
        USE_SINKS,
    )
    out = Tokens(out_ptr, out_stride_token, out_stride_head)
    store_rows(out, softmax, rows, dims, output_scale_ptr, OUTPUT_LIMIT, USE_FP8_OUTPUT)
