"""The kernel of paged decode: each program attends one new token with all query heads of one KV head."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl

from ..common.masks import Visibility, tile_range, visible_keys
from ..common.outputs import store_rows
from ..common.paged_cache import Cache, Pages, load_kv_scales, split_key_dims, split_value_dims
from ..common.query_blocks import Factors, attend_tiles, start_softmax
from ..common.rows import head_dims, load_queries, q_block_rows
from ..common.sequences import load_decode


@triton.jit(do_not_specialize=["block_table_stride", "window"])
def kernel_paged_attention_2d(
    out,  # Output
    queries,  # Tokens
    keys,  # SplitKeys
    values,  # SplitValues
    batch,  # Batch
    scores,  # Scores
    scales,  # Scales
    # These are in no tuple: Triton specialises each number of a tuple, and would compile anew for other windows.
    block_table_stride,
    window,
    tiling: tl.constexpr,  # Tiling
    variant: tl.constexpr,  # Variant
    X: tl.constexpr,
    FILTER_BY_QUERY_LEN: tl.constexpr,
    OUTPUT_LIMIT: tl.constexpr,
):
    """Attend the token of one sequence for one KV head. Grid (num_seqs, num_kv_heads)."""
    seq_idx = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    sequence = load_decode(batch, seq_idx, FILTER_BY_QUERY_LEN)
    if sequence.query_len != 1:
        return

    key_begin, key_end = visible_keys(0, sequence, window, tiling.BLOCK_Q, variant.USE_WINDOW)
    first_tile, end_tile = tile_range(key_begin, key_end, tiling.TILE_SIZE)
    rows = q_block_rows(0, sequence, kv_head, variant.BLOCK_M, tiling.BLOCK_Q, variant.NUM_QUERIES_PER_KV)
    dims = head_dims(tiling.HEAD_SIZE, tiling.HEAD_SIZE_PADDED)
    DTYPE: tl.constexpr = queries.ptr.dtype.element_ty
    # [BLOCK_M, HEAD_SIZE_PADDED]
    q_tile = load_queries(queries, rows, dims, DTYPE)
    k_scale, v_scale = load_kv_scales(scales, variant.USE_FP8_KV)
    softmax = start_softmax(scores.sinks_ptr, rows, 0, variant.BLOCK_M, tiling.HEAD_SIZE_PADDED, variant.USE_SINKS)
    key_dim_offset = split_key_dims(dims.offset, keys.stride_chunk, X)
    value_dim_offset = split_value_dims(dims.offset, values.stride_dim)

    softmax = attend_tiles(
        softmax,
        q_tile,
        Cache(keys.ptr, keys.stride_block, keys.stride_slot, keys.stride_head, key_dim_offset),
        Cache(values.ptr, values.stride_block, 1, values.stride_head, value_dim_offset),
        Pages(batch.block_table_ptr + seq_idx * block_table_stride, kv_head, 0, 0),
        Factors(scales.softmax_scale, k_scale, v_scale),
        scores,
        None,
        Visibility(sequence.context_len, key_begin, key_end, window),
        rows,
        dims,
        first_tile,
        end_tile,
        tiling,
        variant,
        DTYPE,
        variant.USE_FP8_KV,
    )
    store_rows(out, softmax, rows, dims, OUTPUT_LIMIT)
