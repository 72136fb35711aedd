"""What the unified 2D and 3D kernels share: how a q-block is found and attended."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl

from ..common.paged_cache import Cache, load_kv_scales, load_scale
from ..common.query_blocks import Factors, attend_tiles, start_softmax
from ..common.rows import find_seq_idx, first_q_block, load_queries, load_sequence
from ..common.softmax import Softmax


@triton.jit
def locate_q_block(batch, q_block, num_seqs, BLOCK_Q: tl.constexpr):
    """Return (seq_idx, sequence, first_query) of a q-block of the batch.

    The block has work only if first_query < sequence.query_len, because the grid is an upper bound.
    """
    seq_idx = find_seq_idx(batch.query_start_loc_ptr, q_block, num_seqs, BLOCK_Q, True)
    sequence = load_sequence(batch, seq_idx)
    # q_block counts in the batch; the blocks of this sequence begin at first_q_block, by which find_seq_idx found it.
    first_query = ((q_block - first_q_block(sequence.query_start, seq_idx, BLOCK_Q)) * BLOCK_Q).to(tl.int32)
    return seq_idx, sequence, first_query


@triton.jit
def attend_q_block(
    queries,  # Tokens
    keys,  # PagedCache
    values,  # PagedCache
    pages,  # Pages
    scales,  # Scales
    scores,  # Scores
    qq_bias,  # QQBias
    visible,  # Visibility
    rows,  # Rows
    dims,  # Dims
    segment,
    first_tile,
    end_tile,
    tiling: tl.constexpr,  # Tiling
    variant: tl.constexpr,  # Variant
):
    """Return the Softmax of the rows over tiles [first_tile, end_tile)."""
    # fp8 values are exact in float16 and in bfloat16. Their products are then summed in full float32; Hopper's fp8
    # tensor cores keep fewer bits. Weights are bfloat16 because its range keeps small weights in the sum.
    QK_DTYPE: tl.constexpr = tl.float16 if variant.USE_FP8_Q else queries.ptr.dtype.element_ty
    PV_DTYPE: tl.constexpr = tl.bfloat16 if variant.USE_FP8_Q else queries.ptr.dtype.element_ty
    # [BLOCK_M, HEAD_SIZE_PADDED]
    q_tile = load_queries(queries, rows, dims, QK_DTYPE)
    k_scale, v_scale = load_kv_scales(scales, variant.USE_FP8_KV)
    # With an fp8 query the dot products take the stored values, and the scales multiply the score and the output.
    score_scale = scales.softmax_scale
    if variant.USE_FP8_Q:
        score_scale = scales.softmax_scale * load_scale(scales.q_scale_ptr) * k_scale
    row_max, row_sum, output = attend_tiles(
        start_softmax(scores.sinks_ptr, rows, segment, variant.BLOCK_M, tiling.HEAD_SIZE_PADDED, variant.USE_SINKS),
        q_tile,
        Cache(keys.ptr, keys.stride_block, keys.stride_slot, keys.stride_head, dims.offset),
        Cache(values.ptr, values.stride_block, values.stride_slot, values.stride_head, dims.offset),
        pages,
        Factors(score_scale, k_scale, v_scale),
        scores,
        qq_bias,
        visible,
        rows,
        dims,
        first_tile,
        end_tile,
        tiling,
        variant,
        PV_DTYPE,
        variant.USE_FP8_KV and not variant.USE_FP8_Q,
    )
    if variant.USE_FP8_Q:
        output = output * v_scale
    return Softmax(row_max, row_sum, output)
