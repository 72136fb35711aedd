"""Decode over slots in two stages: the attention of each split of the keys, and the merge of the splits.

Split s owns the visible keys that `split_keys` gives it; a split without keys is neither written nor read.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from typing import NamedTuple

import triton
import triton.language as tl

from ..common.outputs import convert_output
from ..common.paged_cache import load_kv_scales
from ..common.query_blocks import start_softmax
from ..common.rows import head_dims, load_queries, q_block_rows
from ..common.sequences import Sequence
from ..common.softmax import Softmax
from ..extend.extend_kernel import KeyRange, MaskRow, SequenceKeys, attend_keys
from ..latent.splits import merge_splits, split_index, split_keys, store_split


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
