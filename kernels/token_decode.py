"""The launcher of decode over a cache of slots that a list of indices names, in two stages."""

import torch

from .common.arguments import kernel_window, output_arguments
from .common.contract import FP8_DTYPES
from .common.launch import (
    block_m_for,
    ceil_div,
    compiler_options,
    head_size_padded_for,
    next_power_of_two,
    tile_size_for,
    value_size_padded_for,
)
from .common.paged_cache import Scales
from .common.rows import Tokens
from .common.scores import Scores
from .common.variant import Tiling, Variant
from .latent.splits import Splits
from .token.contract import check_numbers, check_splits, check_tensors_of_call
from .token.token_kernels import TokenLists, kernel_token_merge, kernel_token_split

WANTED_PROGRAMS = 256
MAX_AUTOMATIC_SPLITS = 16


def token_decode(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    out: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    att_out: torch.Tensor | None = None,
    att_lse: torch.Tensor | None = None,
    num_kv_splits: torch.Tensor | None = None,
    max_kv_splits: int | None = None,
    sm_scale: float | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    logit_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    *,
    sliding_window: int | None = None,
    output_scale: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    tile_size: int | None = None,
) -> None:
    """Write the attention of each sequence's one query token over its keys into `out`, and its log-sum-exp.

    Shapes: num_tokens T, num_query_heads Hq, num_kv_heads Hkv, head_size D and head_size_v Dv (1 to 256), num_seqs B,
    max_kv_splits S; Hq / Hkv is an integer from 1 to 64. The last dimension of every tensor but `lse` has stride 1, all
    other strides are free.

    Args:
        q: `[T, Hq, D]` float32, float16 or bfloat16. Token i belongs to sequence i, and tokens from B on are padding.
        k_buffer: keys by slots, `[num_slots, Hkv, D]` of q's dtype or fp8.
        v_buffer: values by slots, `[num_slots, Hkv, Dv]` of the dtype of `k_buffer`.
        out: `[T or more, Hq, Dv]` float32, float16, bfloat16, or fp8 with `output_scale`. Padding is not written.
        kv_indptr: `[B + 1]` int32 or int64, prefix sums of the lengths of the sequences, beginning with 0.
        kv_indices: `[kv_indptr[B] or more]` int32 or int64: key j of sequence i is in slot
            `kv_indices[kv_indptr[i] + j]`. Slots are in any order, and sequences may share them. The token itself is
            the last key. Slots of keys that the window hides are not read.
        att_out: `[B or more, Hq, S, Dv]` float32, contiguous: scratch for the output of each split. What it holds
            before the call does not matter. None allocates it.
        att_lse: `[B or more, Hq, S]` float32, contiguous: scratch for the log-sum-exp of each split. Goes with
            `att_out`.
        num_kv_splits: `[B or more]` int32 or int64, from 1 to S: into how many parts the keys of each sequence are cut.
            Some may have no keys. None is S for all.
        max_kv_splits: S, from 1 to 64. None lets a heuristic choose, without the three arguments before.
        sm_scale: factor on the dot products; None is D ** -0.5.
        k_scale: one float32 element, may be expanded: the value of a stored fp8 1. None is 1. Read only for fp8
            buffers; keys are scaled in float32 and rounded to q's dtype.
        v_scale: the same for values.
        logit_cap: score = logit_cap * tanh(score / logit_cap), 0 is none.
        sinks: `[Hq]` float; exp(sink) joins each row's denominator, and its log-sum-exp.
        sliding_window: a token sees this many keys, its own included; None, 0 and -1 are no limit.
        output_scale: one float32 element; fp8 output is divided by it, then clamped to the finite range.
        lse: `[T or more, Hq]` float32, any strides: the natural logarithm of each row's sum of exponentials. None
            leaves it out.
        tile_size: keys in a tile, a power of two from 16 to 128. None lets a heuristic choose.

    The row of a sequence of length 0 is 0, and its log-sum-exp -inf, also with a sink.

    Raises:
        ContractError: an argument is outside of the above. Lengths, slots, numbers of splits and scales on the device
            are not read.

    """
    optional = {"att_out": att_out, "att_lse": att_lse, "num_kv_splits": num_kv_splits, "sinks": sinks, "lse": lse}
    scales = {"k_scale": k_scale, "v_scale": v_scale, "output_scale": output_scale}
    lists = {"kv_indptr": kv_indptr, "kv_indices": kv_indices}
    check_tensors_of_call(q, k_buffer, v_buffer, out, lists, optional | scales)
    check_numbers(q, sm_scale, sliding_window, logit_cap, tile_size)
    num_seqs, num_query_heads, head_size = kv_indptr.shape[0] - 1, q.shape[1], q.shape[2]
    check_splits(out, num_seqs, max_kv_splits, num_kv_splits, att_out, att_lse)
    if not num_seqs:
        return
    num_kv_heads, head_size_v, window = k_buffer.shape[1], v_buffer.shape[2], kernel_window(max(sliding_window or 0, 0))
    group, largest = num_query_heads // num_kv_heads, max(head_size, head_size_v)
    tile, block_m = tile_size or tile_size_for(largest, q.dtype, is_decode=True), block_m_for(group)
    padded = head_size_padded_for(head_size, q.dtype)
    padded_v = value_size_padded_for(head_size_v, head_size, block_m, q.dtype)
    if max_kv_splits is None:
        wanted = next_power_of_two(ceil_div(WANTED_PROGRAMS, num_seqs * num_kv_heads))
        max_kv_splits = max(1, min(wanted, ceil_div(kv_indices.shape[0], tile), MAX_AUTOMATIC_SPLITS))
    if att_out is None or att_lse is None:
        rows = (num_seqs, num_query_heads, max_kv_splits)
        att_out = q.new_empty((*rows, head_size_v), dtype=torch.float32)
        att_lse = q.new_empty(rows, dtype=torch.float32)
    splits, tokens = Splits(att_out, att_lse), TokenLists(kv_indptr, kv_indices, num_kv_splits)
    kernel_token_split[num_seqs, num_kv_heads, max_kv_splits](
        splits,
        _tokens(q),
        _tokens(k_buffer),
        _tokens(v_buffer),
        tokens,
        Scores(softcap=float(logit_cap), alibi_slopes_ptr=None, qq_bias_ptr=None, sinks_ptr=None),
        Scales(
            softmax_scale=head_size**-0.5 if sm_scale is None else float(sm_scale),
            q_scale_ptr=None,
            k_scale_ptr=k_scale,
            v_scale_ptr=v_scale,
        ),
        num_query_heads,
        window,
        tiling=Tiling(BLOCK_Q=1, TILE_SIZE=tile, HEAD_SIZE=head_size, HEAD_SIZE_PADDED=padded),
        variant=Variant(
            BLOCK_M=block_m,
            NUM_QUERIES_PER_KV=group,
            BLOCK_SIZE=1,
            USE_WINDOW=window > 0,
            USE_SOFTCAP=logit_cap > 0,
            USE_ALIBI=False,
            USE_QQ_BIAS=False,
            USE_SINKS=False,
            USE_FP8_Q=False,
            USE_FP8_KV=k_buffer.dtype in FP8_DTYPES,
        ),
        HEAD_SIZE_V=head_size_v,
        HEAD_SIZE_V_PADDED=padded_v,
        NUM_SPLITS=max_kv_splits,
        **compiler_options(block_m, max(padded, padded_v), tile, q.dtype),
    )
    kernel_token_merge[num_seqs, num_query_heads](
        **output_arguments(out, output_scale),
        lse_ptr=lse,
        splits=splits,
        lists=tokens,
        sinks_ptr=sinks,
        num_query_heads=num_query_heads,
        window=window,
        lse_stride_token=0 if lse is None else lse.stride(0),
        lse_stride_head=0 if lse is None else lse.stride(1),
        HEAD_SIZE_V=head_size_v,
        HEAD_SIZE_V_PADDED=padded_v,
        TILE_SIZE=tile,
        NUM_SPLITS=max_kv_splits,
        NUM_SPLITS_PADDED=next_power_of_two(max_kv_splits),
        USE_WINDOW=window > 0,
    )


def _tokens(tensor: torch.Tensor) -> Tokens:
    return Tokens(ptr=tensor, stride_token=tensor.stride(0), stride_head=tensor.stride(1))
