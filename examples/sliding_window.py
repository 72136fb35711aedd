"""Attention of new tokens over a paged cache, with a sliding window. It has a bug.

fuzz-attn run --target sliding_window.py:sliding_window --max-time 60
"""

import torch
import triton
import triton.language as tl


@triton.jit
def window_kernel(
    q_ptr,  # [num_tokens, num_heads, head_size]
    stride_q_token,
    stride_q_head,
    k_ptr,  # [num_blocks, block_size, num_kv_heads, head_size]
    stride_k_block,
    stride_k_slot,
    stride_k_head,
    v_ptr,  # [num_blocks, block_size, num_kv_heads, head_size]
    stride_v_block,
    stride_v_slot,
    stride_v_head,
    out_ptr,  # [num_tokens, num_heads, head_size], contiguous
    block_table_ptr,  # [num_seqs, max_blocks]
    stride_table_seq,
    query_start_ptr,  # [num_seqs + 1]
    seq_lens_ptr,  # [num_seqs]
    scale,
    left,  # keys that a row sees before its own
    block_size,
    head_size,
    group_size,
    PADDED_HEAD_SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Compute one head of one token."""
    seq, index, head = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2).to(tl.int64)
    begin = tl.load(query_start_ptr + seq).to(tl.int64)
    query_len = (tl.load(query_start_ptr + seq + 1) - begin).to(tl.int32)
    if index >= query_len:
        return
    seq_len = tl.load(seq_lens_ptr + seq)
    position = seq_len - query_len + index  # of this token in its sequence
    row = begin + index
    kv_head = head // group_size

    dims = tl.arange(0, PADDED_HEAD_SIZE)
    inside = dims < head_size
    q_offsets = row * stride_q_token + head * stride_q_head + dims
    q = tl.load(q_ptr + q_offsets, mask=inside, other=0.0).to(tl.float32)  # [PADDED_HEAD_SIZE]

    maximum = float("-inf")
    denominator = 0.0
    acc = tl.zeros([PADDED_HEAD_SIZE], tl.float32)
    first = tl.maximum(position - left, 0)
    skipped = tl.maximum(seq_len - 1 - left, 0) // TILE  # tiles before the window
    for start in range(skipped * TILE, position + 1, TILE):
        keys = start + tl.arange(0, TILE)
        visible = (keys >= first) & (keys <= position)
        entries = block_table_ptr + seq * stride_table_seq + keys // block_size
        block = tl.load(entries, mask=visible, other=0).to(tl.int64)
        k_rows = block * stride_k_block + keys % block_size * stride_k_slot + kv_head * stride_k_head
        v_rows = block * stride_v_block + keys % block_size * stride_v_slot + kv_head * stride_v_head
        mask = visible[:, None] & inside[None, :]
        # [TILE, PADDED_HEAD_SIZE]; a masked weight of 0 would not remove a NaN of an unused slot.
        k = tl.load(k_ptr + k_rows[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + v_rows[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)

        scores = tl.where(visible, tl.sum(q[None, :] * k, axis=1) * scale, float("-inf"))  # [TILE]
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=0))
        shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)  # no key seen yet
        rescale = tl.exp(maximum - shift)
        p = tl.exp(scores - shift)
        denominator = denominator * rescale + tl.sum(p, axis=0)
        acc = acc * rescale + tl.sum(p[:, None] * v, axis=0)
        maximum = new_maximum

    out_offsets = (row * tl.num_programs(2) + head) * head_size + dims
    tl.store(out_ptr + out_offsets, acc / tl.maximum(denominator, 1e-30), mask=inside)


def sliding_window(
    q, k_cache, v_cache, block_table, query_start_loc, seq_lens, max_query_len, softmax_scale, window_size
):
    """Return the attention of the new tokens; a row sees `window_size[0]` keys before its own, all of them if -1."""
    num_heads, head_size = q.shape[1:]
    block_size, num_kv_heads = k_cache.shape[1:3]
    # The kernel takes these for dense.
    block_table, query_start_loc, seq_lens = (x.contiguous() for x in (block_table, query_start_loc, seq_lens))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    window_kernel[len(seq_lens), max_query_len, num_heads](
        q,
        *q.stride()[:2],
        k_cache,
        *k_cache.stride()[:3],
        v_cache,
        *v_cache.stride()[:3],
        out,
        block_table,
        block_table.stride(0),
        query_start_loc,
        seq_lens,
        softmax_scale,
        window_size[0] if window_size[0] >= 0 else 2**31 - 1,
        block_size,
        head_size,
        num_heads // num_kv_heads,
        PADDED_HEAD_SIZE=triton.next_power_of_2(head_size),
        TILE=16,
    )
    return out
