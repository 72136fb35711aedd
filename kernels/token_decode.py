"""The launcher of decode over a cache of slots that a list of indices names, in two stages.

Split s owns the visible keys that `split_keys` gives it; a split without keys is neither written nor read.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .common.arguments import Tiling, Variant, kernel_window, output_arguments
from .common.contract import (
    FLOAT_DTYPES,
    FP8_DTYPES,
    MAX_HEAD_SIZE,
    ContractError,
    check_head_vector,
    check_heads,
    check_output_scale,
    check_tensors,
    check_tile_size,
    require_dtype,
    require_finite,
    require_one_element,
    require_range,
    require_shape,
    require_unit_stride,
)
from .common.extend_kernel import KeyRange, MaskRow, SequenceKeys, attend_keys
from .common.launch import (
    block_m_for,
    ceil_div,
    compiler_options,
    head_size_padded_for,
    next_power_of_two,
    tile_size_for,
    value_size_padded_for,
)
from .common.outputs import convert_output
from .common.paged_cache import Scales, load_kv_scales
from .common.query_blocks import start_softmax
from .common.rows import Sequence, Tokens, head_dims, load_queries, q_block_rows
from .common.scores import Scores
from .common.softmax import Softmax
from .common.splits import Splits, merge_splits, split_index, split_keys, store_split

WANTED_PROGRAMS = 256
MAX_AUTOMATIC_SPLITS = 16
INDEX_DTYPES = (torch.int32, torch.int64)
MAX_SPLITS = 64


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


def check_tensors_of_call(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    out: torch.Tensor,
    lists: dict[str, torch.Tensor],
    optional: dict[str, torch.Tensor | None],
) -> None:
    """Raise ContractError for the first of the tensors that is outside of the contract.

    `lists` are kv_indptr and kv_indices, `optional` all tensors that may be None.
    """
    check_tensors({"q": q, "k_buffer": k_buffer, "v_buffer": v_buffer, "out": out} | lists, optional)
    require_dtype("q", q, FLOAT_DTYPES)
    require_shape("q", q, (None, None, None))
    num_tokens, num_query_heads, head_size = q.shape
    require_range("head_size", head_size, 1, MAX_HEAD_SIZE)
    require_dtype("k_buffer", k_buffer, (q.dtype, *FP8_DTYPES))
    require_shape("k_buffer", k_buffer, (None, None, head_size))
    require_dtype("v_buffer", v_buffer, (k_buffer.dtype,))
    require_shape("v_buffer", v_buffer, (k_buffer.shape[0], k_buffer.shape[1], None))
    require_range("head_size_v", v_buffer.shape[2], 1, MAX_HEAD_SIZE)
    check_heads(num_query_heads=num_query_heads, num_kv_heads=k_buffer.shape[1])
    require_dtype("out", out, FLOAT_DTYPES + FP8_DTYPES)
    require_shape("out", out, (None, num_query_heads, v_buffer.shape[2]))
    require_range("out.shape[0]", out.shape[0], num_tokens)
    for name, tensor in (("q", q), ("k_buffer", k_buffer), ("v_buffer", v_buffer), ("out", out)):
        require_unit_stride(name, tensor)
    for name, tensor in lists.items():
        _check_index_vector(name, tensor)
    require_range("kv_indptr.shape[0]", lists["kv_indptr"].shape[0], 1)
    require_range("q.shape[0]", num_tokens, lists["kv_indptr"].shape[0] - 1)
    check_head_vector("sinks", optional["sinks"], num_query_heads)
    for name in ("k_scale", "v_scale"):
        scale = optional[name]
        if scale is not None:
            require_one_element(name, scale)
    check_output_scale(("output_scale", "out"), optional["output_scale"], out)
    lse = optional["lse"]
    if lse is not None:
        require_dtype("lse", lse, (torch.float32,))
        require_shape("lse", lse, (None, num_query_heads))
        require_range("lse.shape[0]", lse.shape[0], num_tokens)


def check_splits(
    out: torch.Tensor,
    num_seqs: int,
    max_kv_splits: int | None,
    num_kv_splits: torch.Tensor | None,
    att_out: torch.Tensor | None,
    att_lse: torch.Tensor | None,
) -> None:
    """Check the number of splits, and the scratch of the caller against it."""
    if max_kv_splits is not None:
        require_range("max_kv_splits", max_kv_splits, 1, MAX_SPLITS)
    elif any(tensor is not None for tensor in (num_kv_splits, att_out, att_lse)):
        raise ContractError("max_kv_splits must be given with num_kv_splits, att_out or att_lse")
    if num_kv_splits is not None:
        _check_index_vector("num_kv_splits", num_kv_splits)
        require_range("num_kv_splits.shape[0]", num_kv_splits.shape[0], num_seqs)
    if (att_out is None) != (att_lse is None):
        raise ContractError("att_out and att_lse must both be given or both be None")
    scratch = {"att_out": (att_out, out.shape[2:]), "att_lse": (att_lse, ())}
    for name, (tensor, last) in scratch.items():
        if tensor is not None:
            require_dtype(name, tensor, (torch.float32,))
            require_shape(name, tensor, (None, out.shape[1], max_kv_splits, *last))
            require_range(f"{name}.shape[0]", tensor.shape[0], num_seqs)
            if not tensor.is_contiguous():
                raise ContractError(f"{name} has strides {tensor.stride()}, must be contiguous")


def check_numbers(
    q: torch.Tensor, sm_scale: float | None, sliding_window: int | None, logit_cap: float, tile_size: int | None
) -> None:
    """Check the host numbers of a call."""
    if sm_scale is not None:
        require_finite("sm_scale", sm_scale)
    if sliding_window is not None:
        require_range("sliding_window", sliding_window, -1)
    require_finite("logit_cap", logit_cap)
    if logit_cap < 0:
        raise ContractError(f"{logit_cap=} must be at least 0")
    check_tile_size(tile_size, q.dtype)


def _check_index_vector(name: str, tensor: torch.Tensor) -> None:
    require_dtype(name, tensor, INDEX_DTYPES)
    require_shape(name, tensor, (None,))
    require_unit_stride(name, tensor)


class TokenLists(NamedTuple):
    """The slots of each sequence's keys, and into how many splits they are cut."""

    kv_indptr_ptr: tl.tensor  # [num_seqs + 1]
    kv_indices_ptr: tl.tensor  # [kv_indptr[num_seqs] or more]
    num_kv_splits_ptr: tl.tensor  # [num_seqs], or None: NUM_SPLITS for all


class SplitRange(NamedTuple):
    """The keys of one split: key `begin` to `end` of a sequence, whose slots begin at `first_index` of the list."""

    first_index: tl.tensor  # scalar
    begin: tl.tensor  # as split
    end: tl.tensor  # as split


@triton.jit
def split_range(
    lists, seq_idx, split, window, TILE_SIZE: tl.constexpr, NUM_SPLITS: tl.constexpr, USE_WINDOW: tl.constexpr
):
    """Return the SplitRange of one split or of several, counting only the keys within the window."""
    first_index = tl.load(lists.kv_indptr_ptr + seq_idx)
    seq_len = tl.load(lists.kv_indptr_ptr + seq_idx + 1) - first_index
    num_splits = NUM_SPLITS
    if lists.num_kv_splits_ptr is not None:
        num_splits = tl.load(lists.num_kv_splits_ptr + seq_idx)
    first_key = tl.zeros_like(seq_len)
    if USE_WINDOW:
        first_key = tl.maximum(seq_len - window, 0)
    begin, end = split_keys(seq_len - first_key, split, TILE_SIZE, num_splits)
    return SplitRange(first_index, first_key + begin, first_key + end)


@triton.jit(do_not_specialize=["num_query_heads", "window"])
def kernel_token_split(
    splits,  # Splits
    queries,  # Tokens
    keys,  # Tokens, by slots
    values,  # Tokens, by slots
    lists,  # TokenLists
    scores,  # Scores
    scales,  # Scales
    num_query_heads,
    window,
    tiling: tl.constexpr,  # Tiling
    variant: tl.constexpr,  # Variant
    HEAD_SIZE_V: tl.constexpr,
    HEAD_SIZE_V_PADDED: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
):
    """Attend one split of one sequence for all query heads of a KV head. Grid (num_seqs, num_kv_heads, NUM_SPLITS)."""
    seq_idx = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    keys_here = split_range(lists, seq_idx, split, window, tiling.TILE_SIZE, NUM_SPLITS, variant.USE_WINDOW)
    if keys_here.begin >= keys_here.end:
        return

    # One query token, whose rows are the heads of the group.
    sequence = Sequence(seq_idx, 1, keys_here.end)
    rows = q_block_rows(0, sequence, kv_head, variant.BLOCK_M, 1, variant.NUM_QUERIES_PER_KV)
    dims = head_dims(tiling.HEAD_SIZE, tiling.HEAD_SIZE_PADDED)
    value_dims = head_dims(HEAD_SIZE_V, HEAD_SIZE_V_PADDED)
    DTYPE: tl.constexpr = queries.ptr.dtype.element_ty
    # [BLOCK_M, HEAD_SIZE_PADDED]
    q_tile = load_queries(queries, rows, dims, DTYPE)
    k_scale, v_scale = load_kv_scales(scales, variant.USE_FP8_KV)
    # The merge counts the sink.
    softmax = start_softmax(None, rows, split, variant.BLOCK_M, HEAD_SIZE_V_PADDED, False)
    # [BLOCK_M]
    none = tl.zeros_like(rows.query)
    softmax = attend_keys(
        softmax,
        q_tile,
        SequenceKeys(keys, lists.kv_indices_ptr + keys_here.first_index, keys_here.begin, 0),
        values,
        KeyRange(none + keys_here.begin, none + keys_here.end),
        MaskRow(None, keys_here.end),
        (scales.softmax_scale, k_scale, v_scale),
        scores,
        rows,
        dims,
        value_dims,
        kv_head,
        keys_here.begin,
        keys_here.end,
        tiling,
        variant,
        False,
        variant.USE_FP8_KV,
    )
    # Surplus rows see nothing. Their sum of 0 has no logarithm, and is not stored.
    row_sum = tl.where(rows.mask, softmax.row_sum, 1.0)
    index = split_index(seq_idx, num_query_heads, rows.head, split, NUM_SPLITS)
    store_split(splits, Softmax(softmax.row_max, row_sum, softmax.output), index, rows.mask, value_dims, HEAD_SIZE_V)


@triton.jit(do_not_specialize=["num_query_heads", "window", "lse_stride_token", "lse_stride_head"])
def kernel_token_merge(
    out,  # Output
    lse_ptr,  # [num_tokens, num_query_heads] or None
    splits,  # Splits
    lists,  # TokenLists
    sinks_ptr,  # [num_query_heads] or None
    num_query_heads,
    window,
    lse_stride_token,
    lse_stride_head,
    HEAD_SIZE_V: tl.constexpr,
    HEAD_SIZE_V_PADDED: tl.constexpr,
    TILE_SIZE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    NUM_SPLITS_PADDED: tl.constexpr,
    USE_WINDOW: tl.constexpr,
    OUTPUT_LIMIT: tl.constexpr,
):
    """Merge the splits of one sequence and head. Grid (num_seqs, num_query_heads).

    A sequence without keys has no split: its output is 0 and its log-sum-exp -inf, whatever its sink.
    """
    seq_idx = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    # [NUM_SPLITS_PADDED]
    split = tl.arange(0, NUM_SPLITS_PADDED)
    keys_of = split_range(lists, seq_idx, split, window, TILE_SIZE, NUM_SPLITS, USE_WINDOW)
    written = (split < NUM_SPLITS) & (keys_of.begin < keys_of.end)
    index = split_index(seq_idx, num_query_heads, head, split, NUM_SPLITS)
    dims = head_dims(HEAD_SIZE_V, HEAD_SIZE_V_PADDED)
    output, lse = merge_splits(splits, index, written, sinks_ptr, head, dims, HEAD_SIZE_V)
    row_ptr = out.ptr + seq_idx * out.stride_token + head * out.stride_head
    tl.store(row_ptr + dims.offset, convert_output(output, out, OUTPUT_LIMIT), mask=dims.mask)
    if lse_ptr is not None:
        has_keys = tl.max(written.to(tl.int32), axis=0) > 0
        lse = tl.where(has_keys, lse, float("-inf"))
        tl.store(lse_ptr + seq_idx * lse_stride_token + head * lse_stride_head, lse)
