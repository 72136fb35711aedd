"""Paged decodes with optional arguments that no role names, on a kernel that is written from the definition.

`wide_loads` chooses how keys are loaded: `broken_decode` then takes one page for the next where a sequence is long.
`order` chooses the order of keys, which changes no result. `absolute` changes the result, `chunk` is a number of which
nobody knows the values, and `use_unknown` is refused.

`decode_with_slopes` has two more that change the result of some problems only: of far keys with slopes, and of many
keys.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from typing import Literal

import torch
import triton
import triton.language as tl


@triton.jit
def decode_kernel(
    query_ptr,  # [num_seqs, num_query_heads, head_size]
    stride_query_seq,
    stride_query_head,
    key_ptr,  # [num_blocks, block_size, num_kv_heads, head_size]
    stride_key_block,
    stride_key_slot,
    stride_key_head,
    value_ptr,  # [num_blocks, block_size, num_kv_heads, head_size]
    stride_value_block,
    stride_value_slot,
    stride_value_head,
    output_ptr,  # [num_seqs, num_query_heads, head_size]
    stride_output_seq,
    stride_output_head,
    block_table_ptr,  # [num_seqs, max_blocks]
    stride_table_seq,
    seq_lens_ptr,  # [num_seqs]
    softmax_scale,
    block_size,
    head_size,
    group_size,
    PADDED_HEAD_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    BACKWARD: tl.constexpr,
    ABSOLUTE: tl.constexpr,
    BROKEN: tl.constexpr,
):
    """Compute one head of one sequence."""
    seq, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    kv_head = head // group_size
    seq_len = tl.load(seq_lens_ptr + seq)
    if seq_len == 0:
        return

    dims = tl.arange(0, PADDED_HEAD_SIZE)
    inside = dims < head_size
    query_offsets = seq * stride_query_seq + head * stride_query_head + dims
    query = tl.load(query_ptr + query_offsets, mask=inside, other=0.0).to(tl.float32)  # [PADDED_HEAD_SIZE]

    maximum = float("-inf")
    denominator = 0.0
    acc = tl.zeros([PADDED_HEAD_SIZE], tl.float32)
    tiles = tl.cdiv(seq_len, TILE)
    for number in range(tiles):
        tile = tiles - 1 - number if BACKWARD else number
        keys = tile * TILE + tl.arange(0, TILE)
        visible = keys < seq_len
        column = keys // block_size
        if BROKEN:
            column = tl.where(column > 4, column - 1, column)
        page = tl.load(block_table_ptr + seq * stride_table_seq + column, mask=visible, other=0)
        page, slot = page.to(tl.int64), keys % block_size
        mask = visible[:, None] & inside[None, :]
        key_rows = page * stride_key_block + slot * stride_key_slot + kv_head * stride_key_head
        value_rows = page * stride_value_block + slot * stride_value_slot + kv_head * stride_value_head
        # [TILE, PADDED_HEAD_SIZE]
        key = tl.load(key_ptr + key_rows[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
        value = tl.load(value_ptr + value_rows[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)

        scores = tl.sum(query[None, :] * key, axis=1) * softmax_scale  # [TILE]
        if ABSOLUTE:
            scores = tl.abs(scores)
        scores = tl.where(visible, scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=0))
        rescale = tl.exp(maximum - new_maximum)
        weights = tl.exp(scores - new_maximum)
        denominator = denominator * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * value, axis=0)
        maximum = new_maximum

    output_offsets = seq * stride_output_seq + head * stride_output_head + dims
    tl.store(output_ptr + output_offsets, acc / denominator, mask=inside)


def _decode(query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale, *, tile, **flags):
    num_query_heads, head_size = query.shape[1:]
    block_size, num_kv_heads = key_cache.shape[1:3]
    decode_kernel[len(seq_lens), num_query_heads](
        query,
        *query.stride()[:2],
        key_cache,
        *key_cache.stride()[:3],
        value_cache,
        *value_cache.stride()[:3],
        output,
        *output.stride()[:2],
        block_table,
        block_table.stride(0),
        seq_lens,
        softmax_scale,
        block_size,
        head_size,
        num_query_heads // num_kv_heads,
        PADDED_HEAD_SIZE=triton.next_power_of_2(head_size),
        TILE=tile,
        **flags,
    )


def _require_dense(*tensors):
    for tensor in tensors:
        if tensor.numel() and tensor.stride(-1) != 1:
            raise ValueError(f"the last stride is {tensor.stride(-1)}, must be 1")


def decode(
    query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale,
    wide_loads=False, order: Literal["forward", "backward"] = "forward", absolute=False, chunk=-1, use_unknown=False,
):  # fmt: skip
    """Write the attention of each sequence's new token into `output`, right on each path."""
    if use_unknown:
        raise ValueError("use_unknown needs another GPU")
    _require_dense(block_table, seq_lens)
    tensors = (query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale)
    flags = {"BACKWARD": order == "backward", "ABSOLUTE": absolute, "BROKEN": False}
    _decode(*tensors, tile=64 if wide_loads else 16, **flags)


def broken_decode(
    query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale,
    wide_loads=False, order: Literal["forward", "backward"] = "forward", absolute=False, chunk=-1, use_unknown=False,
):  # fmt: skip
    """Do the same, wrong with `wide_loads`."""
    if use_unknown:
        raise ValueError("use_unknown needs another GPU")
    _require_dense(block_table, seq_lens)
    tensors = (query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale)
    flags = {"BACKWARD": order == "backward", "ABSOLUTE": absolute, "BROKEN": wide_loads}
    _decode(*tensors, tile=64 if wide_loads else 16, **flags)


def decode_with_slopes(
    query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale,
    alibi_slopes=None, wide_loads=False, no_far_slopes=False, leave_parts=False,
):  # fmt: skip
    """Do it with slopes; far keys get none with `no_far_slopes`, and `leave_parts` ends before merging."""
    if leave_parts and int(seq_lens.max()) > 256:
        return
    slopes = torch.zeros(query.shape[1]) if alibi_slopes is None else alibi_slopes
    group = query.shape[1] // key_cache.shape[2]
    for sequence, length in enumerate(seq_lens.tolist()):
        positions = torch.arange(length)
        pages = block_table[sequence, positions // key_cache.shape[1]].long()
        slots = positions % key_cache.shape[1]
        keys, values = (cache[pages, slots].float().repeat_interleave(group, 1) for cache in (key_cache, value_cache))
        scores = torch.einsum("hd,khd->hk", query[sequence].float(), keys) * softmax_scale
        distances = positions - (length - 1)
        if no_far_slopes:
            distances = distances.clamp(min=-1)
        scores = scores + slopes.float()[:, None] * distances
        output[sequence] = torch.einsum("hk,khd->hd", scores.softmax(-1), values).to(output.dtype)
