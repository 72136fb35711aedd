"""The launcher of context attention: new tokens in dense tensors, their context in a split cache."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import torch
import triton
import triton.language as tl

from .common.launch import block_m_for, ceil_div
from .common.outputs import store_rows
from .common.paged_cache import Cache, Pages, load_kv_scales, split_key_dims, split_value_dims
from .common.query_blocks import Factors, attend_tiles, start_softmax
from .common.rows import Tokens, head_dims, load_queries, load_sequence, q_block_rows
from .common.scores import Visibility, tile_range, visible_keys
from .common.split_call import SplitCall, check_split_call, split_arguments

NAMES = {
    "query": "q",
    "output": "o",
    "new_keys": "k",
    "new_values": "v",
    "key_cache": "k_cache",
    "value_cache": "v_cache",
    "block_table": "b_loc",
    "query_start_loc": "b_start_loc",
    "seq_lens": "b_seq_len",
    "max_query_len": "max_input_len",
    "output_scale": "fp8_out_scale",
}


def context_attention_fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    kv_cache_dtype: str,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    b_loc: torch.Tensor,
    b_start_loc: torch.Tensor,
    b_seq_len: torch.Tensor,
    max_seq_len: int,
    max_input_len: int,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None = None,
    sliding_window: int | None = None,
    sm_scale: float | None = None,
    skip_decode: bool = False,
    fp8_out_scale: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    *,
    tile_size: int | None = None,
) -> None:
    """Write the attention of every new token over context and new tokens into `o`.

    Shapes: num_tokens T, num_query_heads Hq, num_kv_heads Hkv, head_size D (1 to 256), num_seqs B; Hq / Hkv is an
    integer from 1 to 64; x divides D. The last dimension of every tensor has stride 1, all other strides are free.

    Args:
        q: `[T, Hq, D]` float32, float16 or bfloat16. Sequence i owns tokens `[b_start_loc[i], b_start_loc[i + 1])`;
            rows past `b_start_loc[B]` are padding.
        k: keys of the same tokens, `[T or more, Hkv, D]` of q's dtype. They are never read from the cache, which
            need not hold them yet. Rows of padding are not read.
        v: values, as k.
        o: `[T or more, Hq, D]` float32, float16, bfloat16, or fp8 with `fp8_out_scale`. Padding rows are not written.
        kv_cache_dtype: "auto" (the dtype of the caches), "fp8" or "fp8_e4m3", "fp8_e5m2". A cache of uint8 holds
            the bytes of the fp8 type that is named here.
        k_cache: keys of the context, `[num_blocks, Hkv, D // x, block_size, x]` of q's dtype, fp8, or uint8.
        v_cache: `[num_blocks, Hkv, D, block_size]`, dtype as `k_cache`.
        b_loc: `[B or more, max_blocks]` int32; context key j of sequence i is in page `b_loc[i, j // block_size]`.
            Entries past the last page of the context, and before the window, are not read.
        b_start_loc: `[B + 1]` int32, prefix sums of the query lengths, beginning with 0. Length 0 is legal.
        b_seq_len: `[B]` int32, length of each whole sequence, its new tokens included.
        max_seq_len: the longest sequence, in tokens. Not needed; part of the published signature.
        max_input_len: the most new tokens of one sequence; of a longer one, later tokens may stay unwritten.
        k_scale: one float32 element, may be expanded: the value of a stored fp8 1. None is 1. Read only for an fp8
            cache; keys are scaled in float32 and rounded to q's dtype.
        v_scale: the same for values.
        alibi_slopes: `[Hq]` float; adds slope * (key position - context length).
        sliding_window: a query sees itself and `sliding_window - 1` keys before; None, 0 and -1 are no window.
        sm_scale: factor on the dot products; None is D ** -0.5.
        skip_decode: skip sequences with one new token.
        fp8_out_scale: one float32 element; fp8 output is divided by it, then clamped to the finite range.
        sinks: `[Hq]` float; exp(sink) joins each row's denominator.
        tile_size: keys in a tile, a power of two from 16 to 128. None lets a heuristic choose.

    Raises:
        ContractError: an argument is outside of the above. Lengths, page numbers and scales on the device are not read.

    """
    call = SplitCall(
        query=q,
        output=o,
        new_keys=k,
        new_values=v,
        key_cache=k_cache,
        value_cache=v_cache,
        block_table=b_loc,
        query_start_loc=b_start_loc,
        seq_lens=b_seq_len,
        max_seq_len=max_seq_len,
        max_query_len=max_input_len,
        k_scale=k_scale,
        v_scale=v_scale,
        kv_cache_dtype=kv_cache_dtype,
        alibi_slopes=alibi_slopes,
        sliding_window=sliding_window,
        sm_scale=sm_scale,
        output_scale=fp8_out_scale,
        sinks=sinks,
        tile_size=tile_size,
        names=NAMES,
    )
    check_split_call(call, needs_starts=True, needs_new_tokens=True)
    launch_context(call, skip_decode=skip_decode)


def launch_context(call: SplitCall, *, skip_decode: bool) -> None:
    """Launch context attention on a call that was checked."""
    if not call.has_work:
        return
    assert call.new_keys is not None
    assert call.new_values is not None
    block_m = block_m_for(1, call.max_query_len)
    grid = (call.num_seqs, call.query.shape[1], ceil_div(call.max_query_len, block_m))
    kernel_context_attention[grid](
        **split_arguments(call, block_m=block_m, block_q=block_m, is_decode=False),
        new_keys=Tokens(
            ptr=call.new_keys,
            stride_token=call.new_keys.stride(0),
            stride_head=call.new_keys.stride(1),
        ),
        new_values=Tokens(
            ptr=call.new_values,
            stride_token=call.new_values.stride(0),
            stride_head=call.new_values.stride(1),
        ),
        SKIP_DECODE=skip_decode,
    )


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
