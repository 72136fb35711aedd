"""Paged decodes on a kernel with twelve configurations: right in all of them, or wrong in some.

They are written from the definition of attention. `broken_decode` forgets the last key in one configuration, and to
rescale its denominator in another. Others forget the last key in three, in the second or in all of them, or read
beyond the block table in one.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl

CONFIGURATIONS = [
    triton.Config({"TILE": tile, "TILES_AT_ONCE": at_once}, num_warps=warps)
    for tile, warps in ((16, 1), (32, 2), (64, 4), (128, 4))
    for at_once in (1, 2, 3)
]


@triton.autotune(CONFIGURATIONS, key=["head_size"])
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
    BROKEN: tl.constexpr,
    TILE: tl.constexpr,
    TILES_AT_ONCE: tl.constexpr,
):
    """Compute one head of one sequence, several tiles of keys in each step."""
    seq, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    kv_head = head // group_size
    seq_len = tl.load(seq_lens_ptr + seq)
    if seq_len == 0:
        return

    dims = tl.arange(0, PADDED_HEAD_SIZE)
    inside = dims < head_size
    query_offsets = seq * stride_query_seq + head * stride_query_head + dims
    query = tl.load(query_ptr + query_offsets, mask=inside, other=0.0).to(tl.float32)  # [PADDED_HEAD_SIZE]

    end = seq_len
    in_two_ways: tl.constexpr = BROKEN == "in two ways"
    first_too: tl.constexpr = BROKEN == "in the first"
    in_one: tl.constexpr = in_two_ways and TILE == 64 and TILES_AT_ONCE == 2
    in_three: tl.constexpr = BROKEN == "in three" and TILE == 32
    in_second: tl.constexpr = BROKEN == "in the second" and TILE == 16 and TILES_AT_ONCE == 2
    in_first: tl.constexpr = first_too and TILE == 16 and TILES_AT_ONCE == 1
    if in_one or in_three or in_second or in_first or BROKEN == "in all":
        end = tl.maximum(seq_len - 1, 1)  # one key too few
    maximum = float("-inf")
    denominator = 0.0
    acc = tl.zeros([PADDED_HEAD_SIZE], tl.float32)
    for first in range(0, end, TILE * TILES_AT_ONCE):
        for part in tl.static_range(TILES_AT_ONCE):
            keys = first + part * TILE + tl.arange(0, TILE)
            visible = keys < end
            table = block_table_ptr + seq * stride_table_seq + keys // block_size
            if BROKEN == "beyond" and TILE == 128 and TILES_AT_ONCE == 3:
                page = tl.where(visible, tl.load(table), 0)
            else:
                page = tl.load(table, mask=visible, other=0)
            page, slot = page.to(tl.int64), keys % block_size
            mask = visible[:, None] & inside[None, :]
            key_rows = page * stride_key_block + slot * stride_key_slot + kv_head * stride_key_head
            value_rows = page * stride_value_block + slot * stride_value_slot + kv_head * stride_value_head
            # [TILE, PADDED_HEAD_SIZE]
            key = tl.load(key_ptr + key_rows[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
            value = tl.load(value_ptr + value_rows[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)

            scores = tl.sum(query[None, :] * key, axis=1) * softmax_scale  # [TILE]
            scores = tl.where(visible, scores, float("-inf"))
            new_maximum = tl.maximum(maximum, tl.max(scores, axis=0))
            rescale = tl.exp(maximum - new_maximum)
            weights = tl.exp(scores - new_maximum)
            if (in_two_ways or first_too) and TILE == 16 and TILES_AT_ONCE == 3:
                denominator = denominator + tl.sum(weights, axis=0)  # relative to an older maximum
            else:
                denominator = denominator * rescale + tl.sum(weights, axis=0)
            acc = acc * rescale + tl.sum(weights[:, None] * value, axis=0)
            maximum = new_maximum

    output_offsets = seq * stride_output_seq + head * stride_output_head + dims
    tl.store(output_ptr + output_offsets, acc / denominator, mask=inside)


def _decode(query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale, broken):
    num_query_heads, head_size = query.shape[1:]
    block_size, num_kv_heads = key_cache.shape[1:3]
    block_table, seq_lens = block_table.contiguous(), seq_lens.contiguous()
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
        BROKEN=broken,
    )


def decode(query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale):
    """Write the attention of each sequence's new token into `output`, right in all configurations."""
    _decode(query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale, broken="nowhere")


def broken_decode(query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale):
    """Do the same, wrong in two configurations in different ways."""
    _decode(query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale, broken="in two ways")


def broken_in_three(query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale):
    """Do the same, wrong in three configurations in the same way."""
    _decode(query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale, broken="in three")


def first_broken(query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale):
    """Do the same, wrong in the first configuration and, in another way, in a later one."""
    _decode(query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale, broken="in the first")


def second_broken(query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale):
    """Do the same, wrong in the second configuration."""
    _decode(query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale, broken="in the second")


def reads_beyond(query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale):
    """Do the same, and read beyond the block table in the last configuration."""
    _decode(query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale, broken="beyond")


def always_broken(query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale):
    """Do the same, wrong in all configurations."""
    _decode(query, output, key_cache, value_cache, block_table, seq_lens, softmax_scale, broken="in all")
