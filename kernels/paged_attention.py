"""The launcher of paged decode: one new token for each sequence, over caches in the split layout."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import torch
import triton
import triton.language as tl

from .common.launch import block_m_for
from .common.outputs import store_rows
from .common.paged_cache import Cache, Pages, load_kv_scales, split_key_dims, split_value_dims
from .common.query_blocks import Factors, attend_tiles, start_softmax
from .common.rows import head_dims, load_decode, load_queries, q_block_rows
from .common.scores import Visibility, tile_range, visible_keys
from .common.split_call import SplitCall, check_split_call, split_arguments


def paged_attention_decode(
    query: torch.Tensor,
    output: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor | None,
    seq_lens: torch.Tensor,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None = None,
    sliding_window: int | None = None,
    sm_scale: float | None = None,
    output_scale: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    kv_cache_dtype: str = "auto",
    filter_by_query_len: bool = False,
    *,
    tile_size: int | None = None,
) -> None:
    """Write the attention of each sequence's one query token over its cached keys into `output`.

    Shapes: num_tokens T, num_query_heads Hq, num_kv_heads Hkv, head_size D (1 to 256), num_seqs B; Hq / Hkv is an
    integer from 1 to 64; x divides D. The last dimension of every tensor has stride 1, all other strides are free.

    Args:
        query: `[T, Hq, D]` float32, float16 or bfloat16. Without `filter_by_query_len` token i belongs to sequence i,
            and tokens from B on are padding.
        output: `[T or more, Hq, D]` float32, float16, bfloat16, or fp8 with `output_scale`. Padding is not written.
        key_cache: `[num_blocks, Hkv, D // x, block_size, x]` of the query's dtype, fp8, or uint8. Holds the new token.
        value_cache: `[num_blocks, Hkv, D, block_size]`, dtype as `key_cache`.
        block_table: `[B or more, max_blocks]` int32; key j of sequence i is in page `block_table[i, j // block_size]`.
            Entries past a sequence's last page, and before its window, are not read.
        query_start_loc: `[B + 1]` int32, prefix sums of the query lengths. Read only with `filter_by_query_len`.
        seq_lens: `[B]` int32, length of each whole sequence, its query token included. Length 0 is skipped: row i of
            `output` is not written, and row i of `block_table` is not read.
        k_scale: one float32 element, may be expanded: the value of a stored fp8 1. None is 1. Read only for an fp8
            cache; keys are scaled in float32 and rounded to the query's dtype.
        v_scale: the same for values.
        alibi_slopes: `[Hq]` float; adds slope * (key position - context length).
        sliding_window: a query sees itself and `sliding_window - 1` keys before; None, 0 and -1 are no window.
        sm_scale: factor on the dot products; None is D ** -0.5.
        output_scale: one float32 element; fp8 output is divided by it, then clamped to the finite range.
        sinks: `[Hq]` float; exp(sink) joins each row's denominator.
        kv_cache_dtype: "auto" (the dtype of the caches), "fp8" or "fp8_e4m3", "fp8_e5m2". A cache of uint8 holds
            the bytes of the fp8 type that is named here.
        filter_by_query_len: skip sequences whose query is not one token long.
        tile_size: keys in a tile, a power of two from 16 to 128. None lets a heuristic choose.

    Raises:
        ContractError: an argument is outside of the above. Lengths, page numbers and scales on the device are not read.

    """
    call = SplitCall(
        query=query,
        output=output,
        key_cache=key_cache,
        value_cache=value_cache,
        block_table=block_table,
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
        k_scale=k_scale,
        v_scale=v_scale,
        kv_cache_dtype=kv_cache_dtype,
        alibi_slopes=alibi_slopes,
        sliding_window=sliding_window,
        sm_scale=sm_scale,
        output_scale=output_scale,
        sinks=sinks,
        tile_size=tile_size,
    )
    check_split_call(call, needs_starts=filter_by_query_len, needs_new_tokens=False)
    launch_decode(call, filter_by_query_len=filter_by_query_len)


def launch_decode(call: SplitCall, *, filter_by_query_len: bool) -> None:
    """Launch paged decode on a call that was checked."""
    if not call.has_work:
        return
    kernel_paged_attention_2d[call.num_seqs, call.num_kv_heads](
        **split_arguments(call, block_m=block_m_for(call.num_queries_per_kv), block_q=1, is_decode=True),
        FILTER_BY_QUERY_LEN=filter_by_query_len,
    )


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
