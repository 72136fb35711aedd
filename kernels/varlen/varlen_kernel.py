"""The kernel of dense variable-length attention: each program attends a block of query tokens for one KV head."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from typing import NamedTuple

import triton
import triton.language as tl

from ..common.masks import tile_range
from ..common.outputs import store_rows
from ..common.query_blocks import start_softmax
from ..common.rows import head_dims, load_queries, q_block_rows
from ..common.scores import apply_softcap
from ..common.sequences import Sequence
from ..common.softmax import Softmax, online_softmax_update
from ..extend.extend_kernel import KeyRange


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
