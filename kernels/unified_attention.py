"""The launcher of the unified family: chunked prefill and decode in one launch over a paged cache."""

import torch

from .common.arguments import output_arguments
from .unified.call import (
    UnifiedCall,
    attention_arguments,
    batch_of,
    check_unified,
    plan_launch,
    processors_of,
    segments_padded_for,
    shared_arguments,
)
from .unified.kernel_2d import kernel_unified_attention_2d
from .unified.kernel_3d import kernel_unified_attention_3d
from .unified.segments import Partials, reduce_segments


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
    """Write the attention of every query token over its sequence's paged keys and values into `out`.

    Shapes: num_tokens T, num_query_heads Hq, num_kv_heads Hkv, head_size D (1 to 256), num_seqs B; Hq / Hkv is an
    integer from 1 to 64. The last dimension of every tensor but `qq_bias` has stride 1, all other strides are free.

    Args:
        q: `[T, Hq, D]` float32, float16, bfloat16, float8_e4m3fn or float8_e5m2. Sequence i owns tokens
            `[cu_seqlens_q[i], cu_seqlens_q[i + 1])`; rows past `cu_seqlens_q[B]` are padding.
        k: key cache `[num_blocks, block_size, Hkv, D]`, of q's dtype or fp8; with an fp8 q, fp8 of either kind.
        v: value cache, shape and dtype as k, any strides.
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
        softcap: scores s become softcap * tanh(s / softcap); 0 is no soft cap.
        q_descale: one float32 element, may be expanded: the value of a stored fp8 1. None is 1. Only for an fp8 q.
        k_descale: the same for keys; not read unless the cache is fp8.
        v_descale: the same for values.
        alibi_slopes: `[Hq]` float; adds slope * (key position - context length).
        qq_bias: `[rows >= max_seqlen_q, cols]` float, any strides; adds `qq_bias[query, key - context length]` where
            that column exists. One matrix for all sequences. May be -inf off the diagonal.
        sinks: `[Hq]` float; exp(sink) joins each row's denominator.
        output_scale: one float32 element; fp8 output is divided by it, then clamped to the finite range.
        num_segments: 0 is the 2D kernel, n >= 1 the 3D kernel with n segments. None lets a heuristic choose.
        tile_size: keys in a tile, a power of two from 16 (32 for fp8 q) to 128. None lets a heuristic choose.

    Raises:
        ContractError: an argument is outside of the above. Lengths, page numbers and scales on the device are not read.

    """
    call = UnifiedCall(
        q=q,
        k=k,
        v=v,
        out=out,
        cu_seqlens_q=cu_seqlens_q,
        max_seqlen_q=max_seqlen_q,
        seqused_k=seqused_k,
        max_seqlen_k=max_seqlen_k,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        block_table=block_table,
        softcap=softcap,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        alibi_slopes=alibi_slopes,
        qq_bias=qq_bias,
        sinks=sinks,
        output_scale=output_scale,
        num_segments=num_segments,
        tile_size=tile_size,
    )
    check_unified(call)
    if call.has_work:
        launch_unified(call)


def launch_unified(call: UnifiedCall) -> None:
    """Launch the 2D kernel, or the 3D kernel and the merge of its segments, on a call that was checked."""
    plan = plan_launch(
        num_tokens=call.num_tokens,
        num_seqs=call.num_seqs,
        num_query_heads=call.num_query_heads,
        num_kv_heads=call.num_kv_heads,
        head_size=call.head_size,
        q_dtype=call.q.dtype,
        max_seqlen_q=call.max_seqlen_q,
        max_seqlen_k=call.max_seqlen_k,
        num_processors=processors_of(call.q.device),
        num_segments=call.num_segments,
        tile_size=call.tile_size,
    )
    shared, attention = shared_arguments(call, plan), attention_arguments(call, plan)
    output = output_arguments(call.out, call.output_scale)
    grid = (plan.num_q_blocks, call.num_kv_heads)
    if plan.num_segments == 0:
        kernel_unified_attention_2d[grid](**output, **attention, **shared)
        return
    segments = {
        "partials": partials_of(call, plan.num_segments, plan.head_size_padded),
        "num_query_heads": call.num_query_heads,
        "NUM_SEGMENTS": plan.num_segments,
    }
    kernel_unified_attention_3d[*grid, plan.num_segments](**segments, **attention, **shared)
    reduce_segments[call.num_tokens, call.num_query_heads](
        **segments,
        **output,
        **shared,
        batch=batch_of(call, None),
        NUM_SEGMENTS_PADDED=segments_padded_for(plan.num_segments),
        USE_WINDOW=attention["variant"].USE_WINDOW,
    )


def partials_of(call: UnifiedCall, num_segments: int, head_size_padded: int) -> Partials:
    """Return scratch memory for the segments' partial sums, which is not initialised."""
    rows = (call.num_tokens, call.num_query_heads, num_segments)
    device = call.q.device
    return Partials(
        output_ptr=torch.empty((*rows, head_size_padded), dtype=torch.float32, device=device),
        max_ptr=torch.empty(rows, dtype=torch.float32, device=device),
        expsum_ptr=torch.empty(rows, dtype=torch.float32, device=device),
    )
