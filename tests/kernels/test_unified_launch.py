"""The launch plan: enough rows and q-blocks, and tiles and segments that the kernels accept."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fuzz_attn.kernels.common.launch import (
    MAX_TILE_SIZE,
    block_m_for,
    compiler_options,
    head_size_padded_for,
    next_power_of_two,
    smallest_dot_size,
    tile_size_for,
    value_size_padded_for,
)
from fuzz_attn.kernels.unified.call import num_segments_for, plan_launch, q_blocks_for, segments_padded_for

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


@given(st.integers(1, 10**6))
def test_next_power_of_two_is_the_smallest(number: int) -> None:
    power = next_power_of_two(number)
    assert is_power_of_two(power)
    assert power // 2 < number <= power


@given(st.integers(1, 64), st.integers(1, 10_000))
def test_q_block_contains_a_whole_group(num_queries_per_kv: int, max_seqlen_q: int) -> None:
    block_m = block_m_for(num_queries_per_kv, max_seqlen_q)
    assert is_power_of_two(block_m)
    assert block_m >= max(16, num_queries_per_kv)


def test_decode_takes_the_fewest_rows_and_prefill_64() -> None:
    assert [block_m_for(group) for group in (1, 4, 16, 17, 33, 64)] == [16, 16, 16, 32, 64, 64]
    assert [block_m_for(4, length) for length in (1, 15, 16, 4096)] == [16, 16, 64, 64]


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 16), st.integers(0, 30))
def test_grid_has_enough_blocks_for_every_sequence(query_lens: list[int], block_q: int, padding: int) -> None:
    """The first block of a sequence comes after the last block of the sequence before, and within the grid."""
    num_blocks = q_blocks_for(sum(query_lens) + padding, len(query_lens), block_q)
    starts = [0, *itertools.accumulate(query_lens)]
    first_free = 0
    for i, query_len in enumerate(query_lens):
        first = starts[i] // block_q + i
        assert first >= first_free
        first_free = first + -(-query_len // block_q)
        assert first_free <= num_blocks


@given(st.integers(1, 256), st.sampled_from(DTYPES), st.booleans())
def test_contract_accepts_the_default_tile(head_size: int, q_dtype: torch.dtype, is_decode: bool) -> None:
    tile_size = tile_size_for(head_size, q_dtype, is_decode)
    assert is_power_of_two(tile_size)
    assert smallest_dot_size(q_dtype) <= tile_size <= MAX_TILE_SIZE


@pytest.mark.parametrize(
    ("head_size", "q_dtype", "padded"),
    [
        (1, torch.float16, 16),
        (16, torch.float32, 16),
        (17, torch.float32, 32),
        (80, torch.bfloat16, 128),
        (1, torch.float8_e4m3fn, 32),
        (33, torch.float8_e5m2, 64),
        (256, torch.float16, 256),
    ],
)
def test_head_size_is_padded_for_dot_products(head_size: int, q_dtype: torch.dtype, padded: int) -> None:
    assert head_size_padded_for(head_size, q_dtype) == padded


@given(st.integers(1, 500), st.integers(1, 16), st.integers(0, 100_000), st.sampled_from([16, 32, 64]))
def test_number_of_segments_is_a_power_of_two_or_0(
    num_seqs: int, num_kv_heads: int, max_seqlen_k: int, tile_size: int
) -> None:
    num_segments = num_segments_for(
        num_seqs=num_seqs,
        num_kv_heads=num_kv_heads,
        max_seqlen_q=1,
        max_seqlen_k=max_seqlen_k,
        tile_size=tile_size,
        num_processors=132,
    )
    filled = num_seqs * num_kv_heads >= 132
    if filled or max_seqlen_k <= tile_size:
        assert num_segments == 0
    else:
        assert num_segments > 1
        assert is_power_of_two(num_segments)
        assert num_segments < 2 * max_seqlen_k / tile_size + 2


def test_prefill_has_segments_only_on_request() -> None:
    common = {"num_tokens": 5, "num_seqs": 1, "num_query_heads": 2, "num_kv_heads": 1, "head_size": 64}
    plan = plan_launch(**common, q_dtype=torch.float16, max_seqlen_q=5, max_seqlen_k=9000)
    assert plan.num_segments == 0
    forced = plan_launch(
        **common, q_dtype=torch.float16, max_seqlen_q=5, max_seqlen_k=9000, num_segments=7, tile_size=128
    )
    assert (forced.num_segments, forced.tile_size) == (7, 128)


def test_merge_pads_segments_to_a_power_of_two() -> None:
    assert [segments_padded_for(n) for n in (1, 2, 3, 7, 8, 4096)] == [1, 2, 4, 8, 8, 4096]


@given(st.integers(1, 256), st.sampled_from(DTYPES), st.sampled_from([32, 64, 128]), st.integers(1, 64))
def test_compiler_options_are_in_range(head_size: int, q_dtype: torch.dtype, tile_size: int, group: int) -> None:
    plan = plan_launch(
        num_tokens=100,
        num_seqs=2,
        num_query_heads=group,
        num_kv_heads=1,
        head_size=head_size,
        q_dtype=q_dtype,
        max_seqlen_q=90,
        max_seqlen_k=90,
        tile_size=tile_size,
    )
    options = compiler_options(plan.block_m, plan.head_size_padded, plan.tile_size, q_dtype)
    assert options["num_warps"] in (4, 8)
    assert options["num_stages"] in (1, 2, 3)


@pytest.mark.parametrize(
    ("value_size", "head_size", "block_m", "dtype", "padded"),
    [
        (17, 72, 64, torch.float16, 64),
        (8, 33, 128, torch.bfloat16, 64),
        (8, 16, 64, torch.float16, 16),
        (200, 72, 64, torch.float16, 256),
        (17, 72, 32, torch.float16, 32),
        (17, 72, 64, torch.float32, 32),
    ],
)
def test_rows_of_v_are_as_wide_as_those_of_k_for_asynchronous_dots(
    value_size: int, head_size: int, block_m: int, dtype: torch.dtype, padded: int
) -> None:
    assert value_size_padded_for(value_size, head_size, block_m, dtype) == padded
