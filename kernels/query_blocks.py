"""One q-block of one KV head: its rows, and the walk over the tiles of keys that 2D and 3D have in common."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl

from fuzz_attn.kernels.masks import visibility_mask
from fuzz_attn.kernels.paged_cache import dequantize, load_pages, load_scale, slot_offsets
from fuzz_attn.kernels.scores import alibi_bias, apply_softcap, load_qq_bias
from fuzz_attn.kernels.sequences import find_seq_idx, first_q_block, load_sequence
from fuzz_attn.kernels.softmax import online_softmax_update, start_with_sinks


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
def q_block_rows(
    first_query,
    query_start,
    query_len,
    kv_head,
    BLOCK_M: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    NUM_QUERIES_PER_KV: tl.constexpr,
):
    """Return (query, token, head, row_mask), each [BLOCK_M]: the rows are (query token, head in group) pairs.

    Rows from BLOCK_Q * NUM_QUERIES_PER_KV on are surplus (a group need not be a power of two): masked, because the
    token they would stand for belongs to the next block.
    """
    row = tl.arange(0, BLOCK_M)
    query = first_query + row // NUM_QUERIES_PER_KV
    head = kv_head * NUM_QUERIES_PER_KV + row % NUM_QUERIES_PER_KV
    row_mask = (row < BLOCK_Q * NUM_QUERIES_PER_KV) & (query < query_len)
    token = (query_start + query).to(tl.int64)
    return query, token, head, row_mask


@triton.jit
def attend_tiles(
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
    segment,
    context_len,
    kv_head,
    key_begin,
    key_end,
    first_tile,
    end_tile,
    HEAD_SIZE: tl.constexpr,
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
    """Return (output, row_max, row_sum) of the rows over tiles [first_tile, end_tile), not yet normalised.

    Keys outside of [key_begin, key_end), the range that some row sees, are never loaded: not their page, not their key,
    not their value. What lies there may be NaN, and 0 * NaN is NaN.
    """
    # [HEAD_SIZE_PADDED]
    dim = tl.arange(0, HEAD_SIZE_PADDED)
    dim_mask = dim < HEAD_SIZE

    # [BLOCK_M, HEAD_SIZE_PADDED]
    q_tile = tl.load(
        q_ptr + (token * q_stride_token + head * q_stride_head)[:, None] + dim[None, :],
        mask=row_mask[:, None] & dim_mask[None, :],
        other=0.0,
    ).to(QK_DTYPE)

    # With an fp8 query the dot products run on the stored values, and the scales join the score and the output instead.
    USE_KV_SCALE: tl.constexpr = USE_FP8_KV and not USE_FP8_Q
    if USE_FP8_KV:
        k_scale = load_scale(k_scale_ptr)
        v_scale = load_scale(v_scale_ptr)
    else:
        k_scale = 1.0
        v_scale = 1.0
    score_scale = softmax_scale
    if USE_FP8_Q:
        score_scale = softmax_scale * load_scale(q_scale_ptr) * k_scale
    if USE_ALIBI:
        # [BLOCK_M]
        slope = tl.load(alibi_slopes_ptr + head, mask=row_mask, other=0.0).to(tl.float32)

    # [BLOCK_M]
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    if USE_SINKS:  # noqa: SIM102 - one condition is the compiler's, the other the program's
        # The sink joins the denominator once, so one segment holds it: the first, which always has tiles.
        if segment == 0:
            row_max, row_sum = start_with_sinks(sinks_ptr, head, row_mask)
    # [BLOCK_M, HEAD_SIZE_PADDED]
    output = tl.zeros([BLOCK_M, HEAD_SIZE_PADDED], tl.float32)

    for tile in range(first_tile, end_tile):
        # [TILE_SIZE]
        key = tile * TILE_SIZE + tl.arange(0, TILE_SIZE)
        key_mask = (key >= key_begin) & (key < key_end)
        page = load_pages(block_table_row_ptr, key, key_mask, BLOCK_SIZE)

        # [HEAD_SIZE_PADDED, TILE_SIZE]
        key_offset = slot_offsets(page, key, kv_head, key_stride_block, key_stride_slot, key_stride_head, BLOCK_SIZE)
        k_tile = tl.load(
            key_cache_ptr + key_offset[None, :] + dim[:, None],
            mask=dim_mask[:, None] & key_mask[None, :],
            other=0.0,
        )
        k_tile = dequantize(k_tile, k_scale, QK_DTYPE, USE_KV_SCALE)

        # [BLOCK_M, TILE_SIZE]
        scores = score_scale * tl.dot(q_tile, k_tile, input_precision="ieee")
        if USE_SOFTCAP:
            scores = apply_softcap(scores, softcap)
        mask = visibility_mask(context_len + query, key, window, USE_WINDOW) & row_mask[:, None]
        if USE_ALIBI:
            scores += alibi_bias(slope, key, context_len)
        if USE_QQ_BIAS:
            scores += load_qq_bias(
                qq_bias_ptr, qq_bias_stride_row, qq_bias_stride_col, qq_bias_cols, query, key - context_len, mask
            )
        scores = tl.where(mask, scores, float("-inf"))

        row_max, row_sum, weights, alpha = online_softmax_update(scores, row_max, row_sum)

        # [TILE_SIZE, HEAD_SIZE_PADDED]
        value_offset = slot_offsets(
            page, key, kv_head, value_stride_block, value_stride_slot, value_stride_head, BLOCK_SIZE
        )
        v_tile = tl.load(
            value_cache_ptr + value_offset[:, None] + dim[None, :],
            mask=key_mask[:, None] & dim_mask[None, :],
            other=0.0,
        )
        v_tile = dequantize(v_tile, v_scale, PV_DTYPE, USE_KV_SCALE)
        output = output * alpha[:, None] + tl.dot(weights.to(PV_DTYPE), v_tile, input_precision="ieee")

    if USE_FP8_Q:
        output = output * v_scale
    return output, row_max, row_sum
