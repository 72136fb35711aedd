"""The kernel of context attention: each program attends a block of new tokens for one head."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl

from ..common.masks import Visibility, tile_range, visible_keys
from ..common.outputs import store_rows
from ..common.paged_cache import Cache, Pages, load_kv_scales, split_key_dims, split_value_dims
from ..common.query_blocks import Factors, Tiling, attend_tiles, start_softmax
from ..common.rows import Tokens, head_dims, load_queries, q_block_rows
from ..common.scores import Scores
from ..common.sequences import load_sequence


@triton.jit(do_not_specialize=["block_table_stride", "window"])
def kernel_context_attention(
    out_ptr,  # [num_tokens, num_query_heads, head_size]
    out_stride_token,
    out_stride_head,
    q_ptr,  # [num_tokens, num_query_heads, head_size]
    q_stride_token,
    q_stride_head,
    new_keys_ptr,  # [num_tokens, num_kv_heads, head_size]
    new_keys_stride_token,
    new_keys_stride_head,
    new_values_ptr,  # [num_tokens, num_kv_heads, head_size]
    new_values_stride_token,
    new_values_stride_head,
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
    query_start_loc_ptr,  # [num_seqs + 1]
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
    SKIP_DECODE: tl.constexpr,
):
    """Attend BLOCK_M new tokens of one sequence for one head. Grid (num_seqs, num_query_heads, blocks)."""
    seq_idx = tl.program_id(0).to(tl.int64)
    query_head = tl.program_id(1).to(tl.int64)
    first_query = tl.program_id(2) * BLOCK_M
    kv_head = query_head // NUM_QUERIES_PER_KV
    sequence = load_sequence(query_start_loc_ptr, seq_lens_ptr, seq_idx)
    context_len = sequence.context_len
    if SKIP_DECODE:  # noqa: SIM102 - one condition is the compiler's, the other the program's
        if sequence.query_len == 1:
            return
    if first_query >= sequence.query_len:
        return

    key_begin, key_end = visible_keys(first_query, sequence, window, BLOCK_M, USE_WINDOW)
    rows = q_block_rows(first_query, sequence, query_head, BLOCK_M, BLOCK_M, 1)
    dims = head_dims(HEAD_SIZE, HEAD_SIZE_PADDED)
    # [BLOCK_M, HEAD_SIZE_PADDED]
    q_tile = load_queries(Tokens(q_ptr, q_stride_token, q_stride_head), rows, dims, QK_DTYPE)
    k_scale, v_scale = load_kv_scales(k_scale_ptr, v_scale_ptr, USE_FP8_KV)
    softmax = start_softmax(sinks_ptr, rows, 0, BLOCK_M, HEAD_SIZE_PADDED, USE_SINKS)
    key_dim_offset = split_key_dims(dims.offset, key_stride_chunk, X)
    value_dim_offset = split_value_dims(dims.offset, value_stride_dim)

    # The context, from the cache: keys [key_begin, context_len), none where all of it is outside of the window.
    first_tile, end_tile = tile_range(key_begin, context_len, TILE_SIZE)
    softmax = attend_tiles(
        softmax,
        q_tile,
        Cache(key_cache_ptr, key_stride_block, key_stride_slot, key_stride_head, key_dim_offset),
        Cache(value_cache_ptr, value_stride_block, 1, value_stride_head, value_dim_offset),
        Pages(block_table_ptr + seq_idx * block_table_stride, kv_head, 0, 0, BLOCK_SIZE),
        Factors(softmax_scale, k_scale, v_scale, USE_FP8_KV),
        Scores(0.0, alibi_slopes_ptr, None, False, USE_ALIBI, False),
        Visibility(context_len, key_begin, context_len, window, USE_WINDOW),
        rows,
        dims,
        first_tile,
        end_tile,
        Tiling(BLOCK_M, TILE_SIZE, HEAD_SIZE_PADDED, QK_DTYPE, PV_DTYPE),
    )

    # The new tokens, from the dense tensors: keys [max(key_begin, context_len), key_end), tile 0 at context_len.
    first_tile, end_tile = tile_range(tl.maximum(key_begin - context_len, 0), key_end - context_len, TILE_SIZE)
    softmax = attend_tiles(
        softmax,
        q_tile,
        Cache(new_keys_ptr, 0, new_keys_stride_token, new_keys_stride_head, dims.offset),
        Cache(new_values_ptr, 0, new_values_stride_token, new_values_stride_head, dims.offset),
        Pages(None, kv_head, context_len, sequence.query_start, BLOCK_SIZE),
        Factors(softmax_scale, 1.0, 1.0, False),
        Scores(0.0, alibi_slopes_ptr, None, False, USE_ALIBI, False),
        Visibility(context_len, key_begin, key_end, window, USE_WINDOW),
        rows,
        dims,
        first_tile,
        end_tile,
        Tiling(BLOCK_M, TILE_SIZE, HEAD_SIZE_PADDED, QK_DTYPE, PV_DTYPE),
    )
    out = Tokens(out_ptr, out_stride_token, out_stride_head)
    store_rows(out, softmax, rows, dims, output_scale_ptr, OUTPUT_LIMIT, USE_FP8_OUTPUT)
