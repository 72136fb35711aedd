"""What the unified 2D and 3D kernels share: how a q-block is found and attended."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from typing import NamedTuple

import triton
import triton.language as tl

from ..common.paged_cache import load_kv_scales, load_scale
from ..common.query_blocks import Factors, attend_tiles, start_softmax
from ..common.rows import load_queries
from ..common.sequences import find_seq_idx, first_q_block, load_sequence
from ..common.softmax import Softmax


class Scales(NamedTuple):
    """The factor on the dot products, and the values of a stored fp8 1."""

    softmax_scale: tl.tensor  # scalar
    q_scale_ptr: tl.tensor  # [1] or None
    k_scale_ptr: tl.tensor  # [1] or None
    v_scale_ptr: tl.tensor  # [1] or None
    USE_FP8_Q: tl.constexpr
    USE_FP8_KV: tl.constexpr


@triton.jit
def locate_q_block(query_start_loc_ptr, seq_lens_ptr, q_block, num_seqs, BLOCK_Q: tl.constexpr):
    """Return (seq_idx, sequence, first_query) of a q-block of the batch.

    The block has work only if first_query < sequence.query_len, because the grid is an upper bound.
    """
    seq_idx = find_seq_idx(query_start_loc_ptr, q_block, num_seqs, BLOCK_Q, True)
    sequence = load_sequence(query_start_loc_ptr, seq_lens_ptr, seq_idx)
    first_query = ((q_block - first_q_block(sequence.query_start, seq_idx, BLOCK_Q)) * BLOCK_Q).to(tl.int32)
    return seq_idx, sequence, first_query


@triton.jit
def attend_q_block(
    queries,  # Tokens
    keys,  # Cache
    values,  # Cache
    pages,  # Pages
    scales,  # Scales
    scores,  # Scores
    visible,  # Visibility
    rows,  # Rows
    dims,  # Dims
    sinks_ptr,  # [num_query_heads] or None
    segment,
    first_tile,
    end_tile,
    tiling,  # Tiling
    USE_SINKS: tl.constexpr,
):
    """Return the Softmax of the rows over tiles [first_tile, end_tile)."""
    # [BLOCK_M, HEAD_SIZE_PADDED]
    q_tile = load_queries(queries, rows, dims, tiling.QK_DTYPE)
    k_scale, v_scale = load_kv_scales(scales.k_scale_ptr, scales.v_scale_ptr, scales.USE_FP8_KV)
    # With an fp8 query the dot products take the stored values, and the scales multiply the score and the output.
    score_scale = scales.softmax_scale
    if scales.USE_FP8_Q:
        score_scale = scales.softmax_scale * load_scale(scales.q_scale_ptr) * k_scale
    row_max, row_sum, output = attend_tiles(
        start_softmax(sinks_ptr, rows, segment, tiling.BLOCK_M, tiling.HEAD_SIZE_PADDED, USE_SINKS),
        q_tile,
        keys,
        values,
        pages,
        Factors(score_scale, k_scale, v_scale, scales.USE_FP8_KV and not scales.USE_FP8_Q),
        scores,
        visible,
        rows,
        dims,
        first_tile,
        end_tile,
        tiling,
    )
    if scales.USE_FP8_Q:
        output = output * v_scale
    return Softmax(row_max, row_sum, output)
