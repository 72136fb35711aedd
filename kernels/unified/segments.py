"""Segments of a q-block's tiles, and the kernel that merges their partial softmaxes.

Segment s owns tiles [begin, end) of `segment_tiles`; a segment without tiles is neither written nor read.
`kernel_unified_attention_3d` and `reduce_segments` both call these functions, so they agree which segments are empty.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from typing import NamedTuple

import triton
import triton.language as tl

from ..common.outputs import convert_output
from ..common.rows import cdiv_fn, find_seq_idx, head_dims, load_sequence
from ..common.scores import tile_range, visible_keys
from ..common.softmax import finite_shift, normalize


class Partials(NamedTuple):
    """The partial softmaxes of all segments, in scratch memory that is not initialised."""

    output_ptr: tl.tensor  # [num_tokens, num_query_heads, NUM_SEGMENTS, HEAD_SIZE_PADDED]
    max_ptr: tl.tensor  # [num_tokens, num_query_heads, NUM_SEGMENTS]
    expsum_ptr: tl.tensor  # [num_tokens, num_query_heads, NUM_SEGMENTS]


@triton.jit
def segment_tiles(first_tile, end_tile, segment, NUM_SEGMENTS: tl.constexpr):
    """Return (begin, end) of the tiles of one segment; begin >= end for a segment that has none."""
    tiles_per_segment = cdiv_fn(end_tile - first_tile, NUM_SEGMENTS)
    begin = first_tile + segment * tiles_per_segment
    return begin, tl.minimum(begin + tiles_per_segment, end_tile)


@triton.jit
def partial_index(token, num_query_heads, head, segment, NUM_SEGMENTS: tl.constexpr):
    """Return the flat int64 index into scratch [num_tokens, num_query_heads, NUM_SEGMENTS]."""
    return (token.to(tl.int64) * num_query_heads + head) * NUM_SEGMENTS + segment


@triton.jit(do_not_specialize=["num_query_heads", "window", "num_seqs"])
def reduce_segments(
    out,  # Output
    partials,  # Partials
    batch,  # Batch
    num_query_heads,
    window,
    num_seqs,
    tiling: tl.constexpr,  # Tiling
    NUM_SEGMENTS: tl.constexpr,
    NUM_SEGMENTS_PADDED: tl.constexpr,
    USE_WINDOW: tl.constexpr,
    OUTPUT_LIMIT: tl.constexpr,
):
    """Merge the segments of one token and head. Grid (num_tokens, num_query_heads)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    seq_idx = find_seq_idx(batch.query_start_loc_ptr, token, num_seqs, tiling.BLOCK_Q, False)
    sequence = load_sequence(batch, seq_idx)
    query = (token - sequence.query_start).to(tl.int32)
    # Tokens past the last sequence are the caller's padding.
    if query >= sequence.query_len:
        return

    # The 3D kernel cut the keys that the whole q-block sees, so the merge needs the block's first query, not this one.
    first_query = query // tiling.BLOCK_Q * tiling.BLOCK_Q
    key_begin, key_end = visible_keys(first_query, sequence, window, tiling.BLOCK_Q, USE_WINDOW)
    first_tile, end_tile = tile_range(key_begin, key_end, tiling.TILE_SIZE)

    # [NUM_SEGMENTS_PADDED]
    segment = tl.arange(0, NUM_SEGMENTS_PADDED)
    begin, end = segment_tiles(first_tile, end_tile, segment, NUM_SEGMENTS)
    # What is not written is scratch memory, which may hold NaN: it must not be loaded, since weight 0 * NaN is NaN.
    written = (segment < NUM_SEGMENTS) & (begin < end)
    index = partial_index(token, num_query_heads, head, segment, NUM_SEGMENTS)
    segm_max = tl.load(partials.max_ptr + index, mask=written, other=float("-inf"))
    segm_expsum = tl.load(partials.expsum_ptr + index, mask=written, other=0.0)
    weight = tl.exp(segm_max - finite_shift(tl.max(segm_max, axis=0)))
    denominator = tl.sum(segm_expsum * weight, axis=0)

    dims = head_dims(tiling.HEAD_SIZE, tiling.HEAD_SIZE_PADDED)
    # [NUM_SEGMENTS_PADDED, HEAD_SIZE_PADDED]
    segm_output = tl.load(
        partials.output_ptr + index[:, None] * tiling.HEAD_SIZE_PADDED + dims.offset[None, :],
        mask=written[:, None] & dims.mask[None, :],
        other=0.0,
    )
    output = normalize(tl.sum(segm_output * weight[:, None], axis=0), denominator)
    output = convert_output(output, out, OUTPUT_LIMIT)
    tl.store(out.ptr + token * out.stride_token + head * out.stride_head + dims.offset, output, mask=dims.mask)
