"""Paged decode: the one new token of each sequence attends all keys of its sequence. No failure is known.

fuzz-attn run --target paged_decode.py:paged_decode --max-time 30
"""

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
    PADDED_BLOCK_SIZE: tl.constexpr,
):
    """Compute one head of one sequence."""
    # In 64 bits: a product of a page or a sequence and its stride may pass 2^31.
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
    slots = tl.arange(0, PADDED_BLOCK_SIZE)
    for page in range(tl.cdiv(seq_len, block_size)):
        block = tl.load(block_table_ptr + seq * stride_table_seq + page).to(tl.int64)
        visible = (slots < block_size) & (page * block_size + slots < seq_len)
        mask = visible[:, None] & inside[None, :]
        key_rows = block * stride_key_block + slots * stride_key_slot + kv_head * stride_key_head
        value_rows = block * stride_value_block + slots * stride_value_slot + kv_head * stride_value_head
        # [PADDED_BLOCK_SIZE, PADDED_HEAD_SIZE]; unused slots may hold NaN, which a weight of 0 would not remove.
        key = tl.load(key_ptr + key_rows[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
        value = tl.load(value_ptr + value_rows[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)

        scores = tl.sum(query[None, :] * key, axis=1) * softmax_scale  # [PADDED_BLOCK_SIZE]
        scores = tl.where(visible, scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=0))
        rescale = tl.exp(maximum - new_maximum)
        weights = tl.exp(scores - new_maximum)
        denominator = denominator * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * value, axis=0)
        maximum = new_maximum

    output_offsets = seq * stride_output_seq + head * stride_output_head + dims
    tl.store(output_ptr + output_offsets, acc / denominator, mask=inside)


def paged_decode(query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale):
    """Write the attention of each sequence's new token into `output`; a sequence without keys is skipped."""
    num_query_heads, head_size = query.shape[1:]
    block_size, num_kv_heads = key_cache.shape[1:3]
    block_table, seq_lens = block_table.contiguous(), seq_lens.contiguous()  # the kernel takes them for dense
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
        PADDED_BLOCK_SIZE=triton.next_power_of_2(block_size),
    )
