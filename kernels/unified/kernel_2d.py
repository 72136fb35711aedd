"""The unified kernel of one pass: each program covers the whole KV range of its q-block and writes the output."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl

from ..common.outputs import store_rows
from ..common.paged_cache import Pages
from ..common.rows import head_dims, q_block_rows
from ..common.scores import QQBias, Visibility, tile_range, visible_keys
from .blocks import attend_q_block, locate_q_block


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
    out,  # Output
    queries,  # Tokens
    keys,  # PagedCache
    values,  # PagedCache
    batch,  # Batch
    scores,  # Scores
    scales,  # Scales
    # These are in no tuple: Triton specialises each number of a tuple, and would compile anew for other windows.
    block_table_stride,
    qq_bias_stride_row,
    qq_bias_stride_col,
    qq_bias_cols,
    window,
    num_seqs,
    tiling: tl.constexpr,  # Tiling
    variant: tl.constexpr,  # Variant
    OUTPUT_LIMIT: tl.constexpr,
):
    """Attend one q-block of one KV head. Grid (num_tokens // BLOCK_Q + num_seqs, num_kv_heads)."""
    q_block = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    seq_idx, sequence, first_query = locate_q_block(batch, q_block, num_seqs, tiling.BLOCK_Q)
    if first_query >= sequence.query_len:
        return

    key_begin, key_end = visible_keys(first_query, sequence, window, tiling.BLOCK_Q, variant.USE_WINDOW)
    first_tile, end_tile = tile_range(key_begin, key_end, tiling.TILE_SIZE)
    rows = q_block_rows(first_query, sequence, kv_head, variant.BLOCK_M, tiling.BLOCK_Q, variant.NUM_QUERIES_PER_KV)
    dims = head_dims(tiling.HEAD_SIZE, tiling.HEAD_SIZE_PADDED)
    softmax = attend_q_block(
        queries,
        keys,
        values,
        Pages(batch.block_table_ptr + seq_idx.to(tl.int64) * block_table_stride, kv_head, 0, 0),
        scales,
        scores,
        QQBias(scores.qq_bias_ptr, qq_bias_stride_row, qq_bias_stride_col, qq_bias_cols),
        Visibility(sequence.context_len, key_begin, key_end, window),
        rows,
        dims,
        0,
        first_tile,
        end_tile,
        tiling,
        variant,
    )
    store_rows(out, softmax, rows, dims, OUTPUT_LIMIT)
