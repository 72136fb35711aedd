"""Paged attention whose parameters have names that nobody else uses; foreign_names.toml says what they are.

fuzz-attn run --target foreign_names.py:answer --binding foreign_names.toml --max-time 30
"""

import triton
import triton.language as tl


@triton.jit
def answer_kernel(
    asks_ptr,  # [num_tokens, num_query_heads, head_size]
    stride_ask_token,
    stride_ask_head,
    topics_ptr,  # [num_blocks, num_kv_heads, block_size, head_size]
    stride_topic_page,
    stride_topic_head,
    stride_topic_slot,
    facts_ptr,  # [num_blocks, num_kv_heads, block_size, head_size]
    stride_fact_page,
    stride_fact_head,
    stride_fact_slot,
    answers_ptr,  # [num_tokens, num_query_heads, head_size]
    stride_answer_token,
    stride_answer_head,
    shelf_ptr,  # [num_seqs, max_blocks]
    stride_shelf_seq,
    first_asks_ptr,  # [num_seqs + 1]
    told_ptr,  # [num_seqs]
    temperature,
    memory,
    page_size,
    head_size,
    group_size,
    PADDED_HEAD_SIZE: tl.constexpr,
    PADDED_GROUP_SIZE: tl.constexpr,
    STEP: tl.constexpr,
):
    """Compute one token for all query heads of a KV head."""
    seq, index, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2).to(tl.int64)
    begin = tl.load(first_asks_ptr + seq).to(tl.int64)
    count = (tl.load(first_asks_ptr + seq + 1) - begin).to(tl.int32)
    if index >= count:
        return
    position = tl.load(told_ptr + seq) - count + index
    oldest = tl.maximum(position - memory, 0)

    dims = tl.arange(0, PADDED_HEAD_SIZE)
    members = tl.arange(0, PADDED_GROUP_SIZE)
    heads = kv_head * group_size + members
    inside = dims[None, :] < head_size
    held = (members < group_size)[:, None] & inside
    ask_rows = (begin + index) * stride_ask_token + heads * stride_ask_head
    asks = tl.load(asks_ptr + ask_rows[:, None] + dims[None, :], mask=held, other=0.0).to(tl.float32)

    maximum = tl.full([PADDED_GROUP_SIZE], float("-inf"), tl.float32)
    denominator = tl.zeros([PADDED_GROUP_SIZE], tl.float32)
    acc = tl.zeros([PADDED_GROUP_SIZE, PADDED_HEAD_SIZE], tl.float32)
    for start in range(oldest // STEP * STEP, position + 1, STEP):
        keys = start + tl.arange(0, STEP)
        visible = (keys >= oldest) & (keys <= position)
        entries = shelf_ptr + seq * stride_shelf_seq + keys // page_size
        page = tl.load(entries, mask=visible, other=0).to(tl.int64)
        slot = keys % page_size
        mask = visible[:, None] & inside
        topic_rows = page * stride_topic_page + kv_head * stride_topic_head + slot * stride_topic_slot
        fact_rows = page * stride_fact_page + kv_head * stride_fact_head + slot * stride_fact_slot
        topics = tl.load(topics_ptr + topic_rows[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
        facts = tl.load(facts_ptr + fact_rows[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)

        scores = tl.sum(asks[:, None, :] * topics[None, :, :], axis=2) * temperature  # [PADDED_GROUP_SIZE, STEP]
        scores = tl.where(visible[None, :], scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
        rescale = tl.exp(maximum - new_maximum)
        weights = tl.exp(scores - new_maximum[:, None])
        denominator = denominator * rescale + tl.sum(weights, axis=1)
        acc = acc * rescale[:, None] + tl.sum(weights[:, :, None] * facts[None, :, :], axis=1)
        maximum = new_maximum

    answer_rows = (begin + index) * stride_answer_token + heads * stride_answer_head
    tl.store(answers_ptr + answer_rows[:, None] + dims[None, :], acc / denominator[:, None], mask=held)


def answer(asks, topics, facts, shelf, first_asks, told, longest, temperature, memory, step, answers):
    """Write the attention of each token, which sees its own key and `memory` keys before it, all of them if -1."""
    num_query_heads, head_size = asks.shape[1:]
    num_kv_heads, page_size = topics.shape[1:3]
    group_size = num_query_heads // num_kv_heads
    # The kernel takes these for dense.
    shelf, first_asks, told = (each.contiguous() for each in (shelf, first_asks, told))
    answer_kernel[len(told), longest, num_kv_heads](
        asks,
        *asks.stride()[:2],
        topics,
        *topics.stride()[:3],
        facts,
        *facts.stride()[:3],
        answers,
        *answers.stride()[:2],
        shelf,
        shelf.stride(0),
        first_asks,
        told,
        temperature,
        memory if memory >= 0 else 2**31 - 1,
        page_size,
        head_size,
        group_size,
        PADDED_HEAD_SIZE=triton.next_power_of_2(head_size),
        PADDED_GROUP_SIZE=triton.next_power_of_2(group_size),
        STEP=step,
    )
