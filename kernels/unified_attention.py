"""The launcher of the unified family: chunked prefill and decode in one launch over a paged cache."""

import torch

from .common.arguments import TRITON_DTYPES, Arguments, kernel_window, output_arguments
from .common.contract import FP8_DTYPES
from .common.launch import compiler_options, dot_dtypes_for
from .unified.contract import check_unified
from .unified.kernel_2d import kernel_unified_attention_2d
from .unified.kernel_3d import kernel_unified_attention_3d
from .unified.launch import LaunchPlan, plan_launch, processors_of, segments_padded_for
from .unified.segments import reduce_segments


def unified_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,
    seqused_k: torch.Tensor,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    block_table: torch.Tensor,
    softcap: float,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None = None,
    qq_bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    output_scale: torch.Tensor | None = None,
    *,
    num_segments: int | None = None,
    tile_size: int | None = None,
) -> None:
    """Return nothing; write the attention of every query token over its sequence's paged keys and values into `out`.

    Shapes: num_tokens T, num_query_heads Hq, num_kv_heads Hkv, head_size D (1 to 256), num_seqs B; Hq / Hkv is an
    integer from 1 to 64. The last dimension of every tensor but `qq_bias` has stride 1, all other strides are free.

    Args:
        q: `[T, Hq, D]` float32, float16, bfloat16, float8_e4m3fn or float8_e5m2. Sequence i owns tokens
            `[cu_seqlens_q[i], cu_seqlens_q[i + 1])`; rows past `cu_seqlens_q[B]` are padding.
        k: key cache `[num_blocks, block_size, Hkv, D]`, of q's dtype or fp8; with an fp8 q, fp8 of either kind.
        v: value cache, shape and dtype as k, strides of its own.
        out: `[T or more, Hq, D]` float32, float16, bfloat16, or fp8 with `output_scale`. Padding rows are not written.
        cu_seqlens_q: `[B + 1]` int32, prefix sums of the query lengths, beginning with 0. Length 0 is legal.
        max_seqlen_q: the longest query, in tokens.
        seqused_k: `[B]` int32, length of each whole sequence, its query tokens included.
        max_seqlen_k: the longest sequence, in tokens. Only guides the choice of kernel.
        softmax_scale: factor on the dot products.
        causal: must be True.
        window_size: `(left, right)`; a query sees itself and `left` keys before, all of them with -1. right is 0 or -1.
        block_table: `[B or more, max_blocks]` int32; key j of sequence i is in page `block_table[i, j // block_size]`.
            Entries past a sequence's last page, and before its window, are not read.
        softcap: scores s become softcap * tanh(s / softcap); 0 leaves them alone.
        q_descale: one float32 element, may be expanded: what a stored fp8 one is worth. None is 1. Only for an fp8 q.
        k_descale: the same for keys; not read unless the cache is fp8.
        v_descale: the same for values.
        alibi_slopes: `[Hq]` float; adds slope * (key position - context length).
        qq_bias: `[rows >= max_seqlen_q, cols]` float, any strides; adds `qq_bias[query, key - context length]` where
            that column exists. One matrix for all sequences. May be -inf off the diagonal.
        sinks: `[Hq]` float; exp(sink) joins each row's denominator.
        output_scale: one float32 element; fp8 output is divided by it, then clamped to the finite range.
        num_segments: None lets a heuristic choose, 0 takes the 2D kernel, n >= 1 the 3D kernel with n segments.
        tile_size: keys in a tile, a power of two from 16 (32 for fp8 q) to 128. None lets a heuristic choose.

    Raises:
        ContractError: an argument is outside of the above, as far as the host can see.

    """
    check_unified(
        q,
        k,
        v,
        out,
        cu_seqlens_q,
        max_seqlen_q,
        seqused_k,
        max_seqlen_k,
        softmax_scale,
        causal,
        window_size,
        block_table,
        softcap,
        q_descale,
        k_descale,
        v_descale,
        alibi_slopes,
        qq_bias,
        sinks,
        output_scale,
        num_segments,
        tile_size,
    )
    if q.shape[0] == 0 or seqused_k.shape[0] == 0:
        return
    plan = plan_launch(
        num_tokens=q.shape[0],
        num_seqs=seqused_k.shape[0],
        num_query_heads=q.shape[1],
        num_kv_heads=k.shape[2],
        head_size=q.shape[2],
        q_dtype=q.dtype,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        num_processors=processors_of(q.device),
        num_segments=num_segments,
        tile_size=tile_size,
    )
    batch = batch_arguments(cu_seqlens_q, seqused_k, window_size[0], q.shape[2], plan)
    attention = (
        query_arguments(q, q_descale)
        | cache_arguments(k, v, k_descale, v_descale, block_table, q.shape[1])
        | score_arguments(float(softmax_scale), float(softcap), alibi_slopes, qq_bias, sinks)
        | {"BLOCK_M": plan.block_m}
        | compiler_options(plan.block_m, plan.head_size_padded, plan.tile_size, q.dtype)
    )
    output = output_arguments(out, output_scale)
    if plan.num_segments == 0:
        kernel_unified_attention_2d[plan.num_q_blocks, k.shape[2]](**output, **attention, **batch)
    else:
        launch_3d(q, plan, batch, attention, output)


def launch_3d(q: torch.Tensor, plan: LaunchPlan, batch: Arguments, attention: Arguments, output: Arguments) -> None:
    """Return nothing; run the 3D kernel and merge what it left in scratch, which is never initialised."""
    num_tokens, num_query_heads, _ = q.shape
    num_kv_heads = num_query_heads // attention["NUM_QUERIES_PER_KV"]
    rows = (num_tokens, num_query_heads, plan.num_segments)
    partials = {
        "segm_output_ptr": torch.empty((*rows, plan.head_size_padded), dtype=torch.float32, device=q.device),
        "segm_max_ptr": torch.empty(rows, dtype=torch.float32, device=q.device),
        "segm_expsum_ptr": torch.empty(rows, dtype=torch.float32, device=q.device),
        "num_query_heads": num_query_heads,
        "NUM_SEGMENTS": plan.num_segments,
    }
    kernel_unified_attention_3d[plan.num_q_blocks, num_kv_heads, plan.num_segments](**partials, **attention, **batch)
    reduce_segments[num_tokens, num_query_heads](
        **partials, **output, **batch, NUM_SEGMENTS_PADDED=segments_padded_for(plan.num_segments)
    )


def batch_arguments(
    cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor, window_left: int, head_size: int, plan: LaunchPlan
) -> Arguments:
    """Return what all three kernels need: the sequences, the window, and the tiling that 3D and reduce must share."""
    return {
        "query_start_loc_ptr": cu_seqlens_q,
        "seq_lens_ptr": seqused_k,
        "window": kernel_window(window_left + 1),
        "num_seqs": seqused_k.shape[0],
        "HEAD_SIZE": head_size,
        "HEAD_SIZE_PADDED": plan.head_size_padded,
        "BLOCK_Q": plan.block_q,
        "TILE_SIZE": plan.tile_size,
        "USE_WINDOW": window_left >= 0,
    }


def query_arguments(q: torch.Tensor, q_descale: torch.Tensor | None) -> Arguments:
    """Return the arguments about q, and the operand dtypes of the dot products, which follow from its dtype."""
    qk_dtype, pv_dtype = dot_dtypes_for(q.dtype)
    return {
        "q_ptr": q,
        "q_stride_token": q.stride(0),
        "q_stride_head": q.stride(1),
        "q_scale_ptr": q_descale,
        "QK_DTYPE": TRITON_DTYPES[qk_dtype],
        "PV_DTYPE": TRITON_DTYPES[pv_dtype],
        "USE_FP8_Q": q.dtype in FP8_DTYPES,
    }


def cache_arguments(
    k: torch.Tensor,
    v: torch.Tensor,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    block_table: torch.Tensor,
    num_query_heads: int,
) -> Arguments:
    """Return the arguments about the paged cache."""
    return {
        "key_cache_ptr": k,
        "key_stride_block": k.stride(0),
        "key_stride_slot": k.stride(1),
        "key_stride_head": k.stride(2),
        "k_scale_ptr": k_descale,
        "value_cache_ptr": v,
        "value_stride_block": v.stride(0),
        "value_stride_slot": v.stride(1),
        "value_stride_head": v.stride(2),
        "v_scale_ptr": v_descale,
        "block_table_ptr": block_table,
        "block_table_stride": block_table.stride(0),
        "BLOCK_SIZE": k.shape[1],
        "NUM_QUERIES_PER_KV": num_query_heads // k.shape[2],
        "USE_FP8_KV": k.dtype in FP8_DTYPES,
    }


def score_arguments(
    softmax_scale: float,
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    qq_bias: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> Arguments:
    """Return the arguments about everything between the dot product and the softmax."""
    return {
        "softmax_scale": softmax_scale,
        "softcap": softcap,
        "alibi_slopes_ptr": alibi_slopes,
        "qq_bias_ptr": qq_bias,
        "qq_bias_stride_row": 0 if qq_bias is None else qq_bias.stride(0),
        "qq_bias_stride_col": 0 if qq_bias is None else qq_bias.stride(1),
        "qq_bias_cols": 0 if qq_bias is None else qq_bias.shape[1],
        "sinks_ptr": sinks,
        "USE_SOFTCAP": softcap > 0,
        "USE_ALIBI": alibi_slopes is not None,
        "USE_QQ_BIAS": qq_bias is not None,
        "USE_SINKS": sinks is not None,
    }
