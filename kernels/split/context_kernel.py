"""The kernel of context attention: each program attends a block of new tokens for one head."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl

from ..common.masks import Visibility, tile_range, visible_keys
from ..common.outputs import store_rows
from ..common.paged_cache import Cache, Pages, load_kv_scales, split_key_dims, split_value_dims
from ..common.query_blocks import Factors, attend_tiles, start_softmax
from ..common.rows import head_dims, load_queries, q_block_rows
from ..common.sequences import load_sequence


@triton.jit(do_not_specialize=["block_table_stride", "window"])
def kernel_context_attention(
    out,  # Output
    queries,  # Tokens
    new_keys,  # Tokens
    new_values,  # Tokens
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
    SKIP_DECODE: tl.constexpr,
    OUTPUT_LIMIT: tl.constexpr,
):
    """Attend BLOCK_M new tokens of one sequence for one head. Grid (num_seqs, num_query_heads, blocks)."""
    seq_idx = tl.program_id(0).to(tl.int64)
    query_head = tl.program_id(1).to(tl.int64)
    first_query = tl.program_id(2) * tiling.BLOCK_Q
    kv_head = query_head // variant.NUM_QUERIES_PER_KV
    sequence = load_sequence(batch, seq_idx)
    context_len = sequence.context_len
    if SKIP_DECODE:  # noqa: SIM102 - one condition is the compiler's, the other the program's
        if sequence.query_len == 1:
            return
    if first_query >= sequence.query_len:
        return

    key_begin, key_end = visible_keys(first_query, sequence, window, tiling.BLOCK_Q, variant.USE_WINDOW)
    rows = q_block_rows(first_query, sequence, query_head, variant.BLOCK_M, tiling.BLOCK_Q, 1)
    dims = head_dims(tiling.HEAD_SIZE, tiling.HEAD_SIZE_PADDED)
    DTYPE: tl.constexpr = queries.ptr.dtype.element_ty
    # [BLOCK_M, HEAD_SIZE_PADDED]
    q_tile = load_queries(queries, rows, dims, DTYPE)
    k_scale, v_scale = load_kv_scales(scales, variant.USE_FP8_KV)
    softmax = start_softmax(scores.sinks_ptr, rows, 0, variant.BLOCK_M, tiling.HEAD_SIZE_PADDED, variant.USE_SINKS)
    key_dim_offset = split_key_dims(dims.offset, keys.stride_chunk, X)
    value_dim_offset = split_value_dims(dims.offset, values.stride_dim)

    # The context, from the cache: keys [key_begin, context_len), none where all of it is outside of the window.
    first_tile, end_tile = tile_range(key_begin, context_len, tiling.TILE_SIZE)
    softmax = attend_tiles(
        softmax,
        q_tile,
        Cache(keys.ptr, keys.stride_block, keys.stride_slot, keys.stride_head, key_dim_offset),
        Cache(values.ptr, values.stride_block, 1, values.stride_head, value_dim_offset),
        Pages(batch.block_table_ptr + seq_idx * block_table_stride, kv_head, 0, 0),
        Factors(scales.softmax_scale, k_scale, v_scale),
        scores,
        None,
        Visibility(context_len, key_begin, context_len, window),
        rows,
        dims,
        first_tile,
        end_tile,
        tiling,
        variant,
        DTYPE,
        variant.USE_FP8_KV,
    )

    # The new tokens, from the dense tensors: keys [max(key_begin, context_len), key_end), tile 0 at context_len.
    first_tile, end_tile = tile_range(tl.maximum(key_begin - context_len, 0), key_end - context_len, tiling.TILE_SIZE)
    softmax = attend_tiles(
        softmax,
        q_tile,
        Cache(new_keys.ptr, 0, new_keys.stride_token, new_keys.stride_head, dims.offset),
        Cache(new_values.ptr, 0, new_values.stride_token, new_values.stride_head, dims.offset),
        Pages(None, kv_head, context_len, sequence.query_start),
        Factors(scales.softmax_scale, 1.0, 1.0),
        scores,
        None,
        Visibility(context_len, key_begin, key_end, window),
        rows,
        dims,
        first_tile,
        end_tile,
        tiling,
        variant,
        DTYPE,
        False,
    )
    store_rows(out, softmax, rows, dims, OUTPUT_LIMIT)
