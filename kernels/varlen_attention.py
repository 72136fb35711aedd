"""The launcher of dense variable-length attention: queries, keys and values packed, with lengths of their own."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .common.arguments import Tiling, kernel_window
from .common.contract import (
    FLOAT_DTYPES,
    MAX_HEAD_SIZE,
    ContractError,
    check_head_vector,
    check_heads,
    check_tensors,
    check_tile_size,
    require_dtype,
    require_finite,
    require_range,
    require_shape,
    require_unit_stride,
)
from .common.extend_kernel import KeyRange
from .common.launch import (
    block_m_for,
    ceil_div,
    compiler_options,
    head_size_padded_for,
    tile_size_for,
    value_size_padded_for,
)
from .common.outputs import Output, store_rows
from .common.query_blocks import start_softmax
from .common.rows import Sequence, Tokens, head_dims, load_queries, q_block_rows
from .common.scores import Scores, alibi_bias, apply_softcap, tile_range
from .common.softmax import Softmax, online_softmax_update

INDEX_DTYPES = (torch.int32, torch.int64)


def varlen_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    *,
    top_left: bool = False,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    softmax_lse: torch.Tensor | None = None,
    tile_size: int | None = None,
) -> None:
    """Write the attention of every query token over the keys of its sequence into `out`, and its log-sum-exp.

    A sequence of Q query tokens and K keys may have any lengths, 0 too. Query token i is at position p = K - Q + i,
    which is negative for the first tokens if K < Q; with `top_left` at i. It sees the keys that all masks below allow.
    A token that sees no key gets an output of 0 and a log-sum-exp of -inf, with and without a sink.

    Shapes: num_tokens T, num_keys S, num_query_heads Hq, num_kv_heads Hkv, head_size D and head_size_v Dv (1 to 256),
    num_seqs B; Hq / Hkv is an integer from 1 to 64. The last dimension of every tensor but `softmax_lse` has stride 1,
    all other strides are free.

    Args:
        q: `[T, Hq, D]` float32, float16 or bfloat16. Sequence i owns tokens `[cu_seqlens_q[i], cu_seqlens_q[i + 1])`;
            rows past `cu_seqlens_q[B]` are padding.
        k: `[S, Hkv, D]` of q's dtype. Sequence i has keys from row `cu_seqlens_k[i]` on.
        v: `[S, Hkv, Dv]` of q's dtype, the values of the same keys.
        out: `[T or more, Hq, Dv]` float32, float16 or bfloat16. Padding rows are not written.
        cu_seqlens_q: `[B + 1]` int32 or int64, prefix sums of the query lengths, beginning with 0.
        cu_seqlens_k: `[B + 1]` int32 or int64, prefix sums of the rows that k and v have for each sequence.
        max_seqlen_q: the most query tokens of one sequence; of a longer one, later tokens may stay unwritten.
        max_seqlen_k: the most keys of one sequence. Not needed; taken as others pass it.
        softmax_scale: factor on the dot products; None is D ** -0.5.
        causal: whether a token sees no key behind p.
        window_size: (left, right): a token sees keys from p - left to p + right, -1 is no limit. With `causal` right
            must be -1 or 0, which mean the same.
        top_left: the position of query token i is i. Only with `causal`.
        softcap: score = softcap * tanh(score / softcap), 0 is none.
        alibi_slopes: `[Hq]` float; slope * (key - (K - Q)) joins the score behind the soft cap, under every mask.
        sinks: `[Hq]` float; exp(sink) joins the denominator of each row that sees a key, and its log-sum-exp.
        seqused_k: `[B]` int32 or int64, how many of its rows of k and v a sequence uses; the others are not read. None
            is all of them.
        softmax_lse: `[Hq, T or more]` float32, any strides: the natural logarithm of each row's sum of exponentials.
            Padding is not written. None leaves it out.
        tile_size: keys in a tile, a power of two from 16 to 128. None lets a heuristic choose.

    Raises:
        ContractError: an argument is outside of the above. Lengths on the device are not read.

    """
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    optional = {"alibi_slopes": alibi_slopes, "sinks": sinks, "seqused_k": seqused_k, "softmax_lse": softmax_lse}
    check_tensors({"q": q, "k": k, "v": v, "out": out} | lengths, optional)
    _check_tokens(q, k, v, out)
    _check_lengths(cu_seqlens_q, cu_seqlens_k, seqused_k)
    _check_masks(window_size, causal=causal, top_left=top_left)
    require_range("max_seqlen_q", max_seqlen_q, 0)
    if max_seqlen_k is not None:
        require_range("max_seqlen_k", max_seqlen_k, 0)
    require_finite("softcap", softcap)
    if softcap < 0:
        raise ContractError(f"{softcap=} must be at least 0")
    if softmax_scale is not None:
        require_finite("softmax_scale", softmax_scale)
    check_head_vector("alibi_slopes", alibi_slopes, q.shape[1])
    check_head_vector("sinks", sinks, q.shape[1])
    if softmax_lse is not None:
        require_dtype("softmax_lse", softmax_lse, (torch.float32,))
        require_shape("softmax_lse", softmax_lse, (q.shape[1], None))
        require_range("softmax_lse.shape[1]", softmax_lse.shape[1], q.shape[0])
    check_tile_size(tile_size, q.dtype)

    num_seqs, num_kv_heads, head_size, value_size = cu_seqlens_q.shape[0] - 1, k.shape[1], q.shape[2], v.shape[2]
    if not (q.shape[0] and num_seqs and max_seqlen_q):
        return
    group, largest = q.shape[1] // num_kv_heads, max(head_size, value_size)
    block_m = block_m_for(group, max_seqlen_q)
    block_q, tile = block_m // group, tile_size or tile_size_for(largest, q.dtype, False)
    left, right = window_size
    kernel_varlen_attention[(num_seqs, num_kv_heads, ceil_div(max_seqlen_q, block_q))](
        out=Output(ptr=out, stride_token=out.stride(0), stride_head=out.stride(1), scale_ptr=None),
        lse=LogSumExp(
            ptr=softmax_lse,
            stride_head=0 if softmax_lse is None else softmax_lse.stride(0),
            stride_token=0 if softmax_lse is None else softmax_lse.stride(1),
        ),
        queries=_tokens(q),
        keys=_tokens(k),
        values=_tokens(v),
        lengths=Lengths(cu_seqlens_q_ptr=cu_seqlens_q, cu_seqlens_k_ptr=cu_seqlens_k, seqused_k_ptr=seqused_k),
        scores=Scores(softcap=float(softcap), alibi_slopes_ptr=alibi_slopes, qq_bias_ptr=None, sinks_ptr=sinks),
        softmax_scale=head_size**-0.5 if softmax_scale is None else float(softmax_scale),
        window_left=kernel_window(left),
        window_right=kernel_window(right),
        tiling=Tiling(
            BLOCK_Q=block_q,
            TILE_SIZE=tile,
            HEAD_SIZE=head_size,
            HEAD_SIZE_PADDED=head_size_padded_for(head_size, q.dtype),
        ),
        variant=VarlenVariant(
            BLOCK_M=block_m,
            NUM_QUERIES_PER_KV=group,
            VALUE_SIZE=value_size,
            VALUE_SIZE_PADDED=value_size_padded_for(value_size, head_size, block_m, q.dtype),
            IS_CAUSAL=causal,
            TOP_LEFT=top_left,
            USE_LEFT=left >= 0,
            USE_RIGHT=right >= 0 and not causal,
            USE_SOFTCAP=softcap > 0,
            USE_ALIBI=alibi_slopes is not None,
            USE_SINKS=sinks is not None,
        ),
        **compiler_options(block_m, head_size_padded_for(largest, q.dtype), tile, q.dtype),
    )


def _tokens(tensor: torch.Tensor) -> Tokens:
    return Tokens(ptr=tensor, stride_token=tensor.stride(0), stride_head=tensor.stride(1))


def _check_tokens(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> None:
    """Check queries, keys, values and the output against each other."""
    for name, tensor in (("q", q), ("k", k), ("v", v), ("out", out)):
        require_dtype(name, tensor, (q.dtype,) if name in ("k", "v") else FLOAT_DTYPES)
        require_shape(name, tensor, (None, None, None))
        require_unit_stride(name, tensor)
    head_size, value_size = q.shape[2], v.shape[2]
    require_range("head_size", head_size, 1, MAX_HEAD_SIZE)
    require_range("head_size_v", value_size, 1, MAX_HEAD_SIZE)
    require_shape("k", k, (None, None, head_size))
    require_shape("v", v, (*k.shape[:2], value_size))
    require_shape("out", out, (None, q.shape[1], value_size))
    require_range("out.shape[0]", out.shape[0], q.shape[0])
    check_heads(num_query_heads=q.shape[1], num_kv_heads=k.shape[1])


def _check_lengths(cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor, seqused_k: torch.Tensor | None) -> None:
    """Check prefix sums of shape `[num_seqs + 1]`, and lengths of shape `[num_seqs]`."""
    given = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    for name, tensor in (given if seqused_k is None else given | {"seqused_k": seqused_k}).items():
        require_dtype(name, tensor, INDEX_DTYPES)
        require_shape(name, tensor, (None,))
        require_unit_stride(name, tensor)
    require_range("cu_seqlens_q.shape[0]", cu_seqlens_q.shape[0], 1)
    require_shape("cu_seqlens_k", cu_seqlens_k, tuple(cu_seqlens_q.shape))
    if seqused_k is not None:
        require_shape("seqused_k", seqused_k, (cu_seqlens_q.shape[0] - 1,))


def _check_masks(window_size: tuple[int, int], *, causal: bool, top_left: bool) -> None:
    """Check what says which keys a token sees."""
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise ContractError(f"{window_size=} must be a pair (left, right)")
    require_range("window_size[0]", window_size[0], -1)
    require_range("window_size[1]", window_size[1], -1, 0 if causal else None)
    if top_left and not causal:
        raise ContractError(f"{causal=} must be True with {top_left=}")


class Lengths(NamedTuple):
    """Where the query tokens and the keys of each sequence are."""

    cu_seqlens_q_ptr: tl.tensor  # [num_seqs + 1]
    cu_seqlens_k_ptr: tl.tensor  # [num_seqs + 1]
    seqused_k_ptr: tl.tensor  # [num_seqs], or None where all keys of a sequence are used


class PackedKeys(NamedTuple):
    """The keys and values of one sequence."""

    start: tl.tensor  # scalar, the first key in the batch
    key_len: tl.tensor  # scalar


class LogSumExp(NamedTuple):
    """The log-sum-exp of each row."""

    ptr: tl.tensor  # [num_query_heads, num_tokens], or None
    stride_head: tl.tensor  # scalar
    stride_token: tl.tensor  # scalar


class VarlenVariant(NamedTuple):
    """What else the kernel is compiled for."""

    BLOCK_M: int
    NUM_QUERIES_PER_KV: int
    VALUE_SIZE: int
    VALUE_SIZE_PADDED: int
    IS_CAUSAL: bool
    TOP_LEFT: bool
    USE_LEFT: bool
    USE_RIGHT: bool
    USE_SOFTCAP: bool
    USE_ALIBI: bool
    USE_SINKS: bool


@triton.jit
def load_packed_keys(lengths, seq_idx):
    """Return the PackedKeys of the sequence `seq_idx`."""
    start = tl.load(lengths.cu_seqlens_k_ptr + seq_idx)
    if lengths.seqused_k_ptr is None:
        key_len = tl.load(lengths.cu_seqlens_k_ptr + seq_idx + 1) - start
    else:
        key_len = tl.load(lengths.seqused_k_ptr + seq_idx)
    return PackedKeys(start, key_len)


@triton.jit
def keys_of_rows(query, query_len, key_len, window_left, window_right, variant: tl.constexpr):
    """Return the KeyRange of the rows at `query` [BLOCK_M], which is empty where end <= begin.

    Positions are negative where a sequence has fewer keys than query tokens. Windows are cut to the largest distance
    in the sequence, so that no sum overflows.
    """
    position = query if variant.TOP_LEFT else query + (key_len - query_len)
    farthest = query_len + key_len
    begin = tl.zeros_like(query)
    if variant.USE_LEFT:
        begin = tl.maximum(begin, position - tl.minimum(window_left, farthest))
    end = tl.zeros_like(query) + key_len
    if variant.IS_CAUSAL:
        end = tl.minimum(end, position + 1)
    if variant.USE_RIGHT:
        end = tl.minimum(end, position + 1 + tl.minimum(window_right, farthest))
    return KeyRange(begin, end)


@triton.jit
def packed_offsets(tokens, token, kv_head):
    """Return the int64 offset [keys] of the first element of each key, or value."""
    return token.to(tl.int64) * tokens.stride_token + kv_head * tokens.stride_head


@triton.jit
def store_log_sum_exp(lse, softmax, seen, rows):
    """Write the natural logarithm of each row's sum of exponentials, -inf for a row that sees no key."""
    found = tl.where(seen.begin < seen.end, softmax.row_max + tl.log(softmax.row_sum), float("-inf"))
    tl.store(lse.ptr + rows.head * lse.stride_head + rows.token * lse.stride_token, found, mask=rows.mask)


@triton.jit(do_not_specialize=["window_left", "window_right"])
def kernel_varlen_attention(
    out,  # Output
    lse,  # LogSumExp
    queries,  # Tokens
    keys,  # Tokens
    values,  # Tokens
    lengths,  # Lengths
    scores,  # Scores
    softmax_scale,
    # These are in no tuple: Triton specialises each number of a tuple, and would compile anew for other windows.
    window_left,
    window_right,
    tiling: tl.constexpr,  # Tiling
    variant: tl.constexpr,  # VarlenVariant
):
    """Attend BLOCK_Q query tokens of one sequence for one KV head. Grid (num_seqs, num_kv_heads, blocks)."""
    seq_idx = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    first_query = tl.program_id(2) * tiling.BLOCK_Q
    query_start = tl.load(lengths.cu_seqlens_q_ptr + seq_idx)
    query_len = tl.load(lengths.cu_seqlens_q_ptr + seq_idx + 1) - query_start
    if first_query >= query_len:
        return
    packed = load_packed_keys(lengths, seq_idx)
    sequence = Sequence(query_start, query_len, packed.key_len - query_len)
    rows = q_block_rows(first_query, sequence, kv_head, variant.BLOCK_M, tiling.BLOCK_Q, variant.NUM_QUERIES_PER_KV)
    dims = head_dims(tiling.HEAD_SIZE, tiling.HEAD_SIZE_PADDED)
    value_dims = head_dims(variant.VALUE_SIZE, variant.VALUE_SIZE_PADDED)
    DTYPE: tl.constexpr = queries.ptr.dtype.element_ty
    # [BLOCK_M, HEAD_SIZE_PADDED]
    q_tile = load_queries(queries, rows, dims, DTYPE)
    if variant.USE_ALIBI:
        # [BLOCK_M]
        slope = tl.load(scores.alibi_slopes_ptr + rows.head, mask=rows.mask, other=0.0).to(tl.float32)
    row_max, row_sum, output = start_softmax(
        scores.sinks_ptr, rows, 0, variant.BLOCK_M, variant.VALUE_SIZE_PADDED, variant.USE_SINKS
    )

    seen = keys_of_rows(rows.query, query_len, packed.key_len, window_left, window_right, variant)
    # The keys that some row of the block sees are within this range. All others may hold NaN.
    sees_any = rows.mask & (seen.begin < seen.end)
    key_begin = tl.min(tl.where(sees_any, seen.begin, packed.key_len), axis=0)
    key_end = tl.max(tl.where(sees_any, seen.end, 0), axis=0)
    first_tile, end_tile = tile_range(key_begin, key_end, tiling.TILE_SIZE)
    for tile in range(first_tile, end_tile):
        # [TILE_SIZE]
        key = tile * tiling.TILE_SIZE + tl.arange(0, tiling.TILE_SIZE)
        key_mask = (key >= key_begin) & (key < key_end)
        token = packed.start + key
        # [HEAD_SIZE_PADDED, TILE_SIZE]
        k_tile = tl.load(
            keys.ptr + packed_offsets(keys, token, kv_head)[None, :] + dims.offset[:, None],
            mask=dims.mask[:, None] & key_mask[None, :],
            other=0.0,
        )
        # [BLOCK_M, TILE_SIZE]
        score = softmax_scale * tl.dot(q_tile, k_tile, input_precision="ieee")
        if variant.USE_SOFTCAP:
            score = apply_softcap(score, scores.softcap)
        if variant.USE_ALIBI:
            score += alibi_bias(slope, key, sequence.context_len)
        mask = (key[None, :] >= seen.begin[:, None]) & (key[None, :] < seen.end[:, None])
        score = tl.where(mask & rows.mask[:, None], score, float("-inf"))
        row_max, row_sum, weights, alpha = online_softmax_update(score, row_max, row_sum)

        # [TILE_SIZE, VALUE_SIZE_PADDED]
        v_tile = tl.load(
            values.ptr + packed_offsets(values, token, kv_head)[:, None] + value_dims.offset[None, :],
            mask=key_mask[:, None] & value_dims.mask[None, :],
            other=0.0,
        )
        output = output * alpha[:, None] + tl.dot(weights.to(DTYPE), v_tile, input_precision="ieee")

    softmax = Softmax(row_max, row_sum, output)
    store_rows(out, softmax, rows, value_dims, None)
    if lse.ptr is not None:
        store_log_sum_exp(lse, softmax, seen, rows)
