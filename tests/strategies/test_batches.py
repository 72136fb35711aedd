"""Batches: what they reach, what they shrink to, and what they may cost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from fuzz_attn.case.aspects import ALL_FEATURES
from fuzz_attn.case.attention_case import MAX_TOTAL_ELEMENTS, CompileKey
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import LaunchHints, Sequence
from fuzz_attn.strategies.batches import (
    CHUNK_TIMES,
    MAX_CACHE_ELEMENTS,
    MAX_MANY,
    MAX_MS,
    MAX_TIMES,
    MERGE_MS,
    MIN_TILES,
    MOST_CACHE_ELEMENTS,
    MOST_PADDED_TOKENS,
    MOST_QUERY_ELEMENTS,
    MOST_ROW_SCORES,
    MOST_SCORES,
    MOST_TIMES,
    MOST_TOKENS,
    PROGRAM_MS,
    RARE_TIMES,
    RARE_TOKENS,
    SEGMENT_MS,
    SURGES,
    TILE_MS,
    TYPICAL_TILE,
    VAST_KEYS,
    batches,
    budget_for,
    smallest_block_q,
)
from fuzz_attn.strategies.compile_keys import key_pool
from fuzz_attn.strategies.heads import MOST_KV_HEADS

FULL = Domain(paths=("auto", "2d", "3d"), tile_hint=True)
PAGE = 16


@pytest.mark.parametrize("key", [CompileKey(), CompileKey(compiled=("qq_bias",)), key_pool(FULL)[-1]])
def test_shrinks_towards_one_token(minimal: Any, key: CompileKey) -> None:
    assert minimal(batches(key=key)) == (Sequence(query_len=1),)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (lambda batch: len(batch) >= 2, (Sequence(1), Sequence(1))),
        (lambda batch: len(batch) >= 2 and batch[1].context_len >= 4, (Sequence(1), Sequence(1, 4))),
        (lambda batch: len(batch) >= 2 and not batch[0].query_len and batch[1].query_len, (Sequence(0), Sequence(1))),
        (lambda batch: any(s.query_len > 1 and s.context_len for s in batch), (Sequence(2, 1),)),
        (lambda batch: not batch, ()),
        (lambda batch: any(s.query_len and s.seq_len >= 9_000 for s in batch), (Sequence(1, 10_000),)),
        (lambda batch: any(s.seq_len > 9_000 and not s.query_len for s in batch), (Sequence(0, 10_240), Sequence(1))),
        (lambda batch: any(s.query_len >= 2_000 for s in batch), (Sequence(2_047),)),
    ],
)
def test_shrinks_to(minimal: Any, condition: Any, expected: tuple[Sequence, ...]) -> None:
    assert minimal(batches(), condition) == expected


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "condition",
    [
        pytest.param(lambda b: len(b) >= 3 and all(s.query_len == 1 for s in b), id="decode"),
        pytest.param(lambda b: len(b) >= 2 and all(s.query_len > 1 and not s.context_len for s in b), id="prefill"),
        pytest.param(lambda b: any(s.query_len > 1 and s.context_len > PAGE for s in b), id="chunked"),
        pytest.param(lambda b: {1, 2} <= {min(s.query_len, 2) for s in b}, id="mixed"),
        pytest.param(lambda b: len(b) >= 20, id="crowd"),
        pytest.param(lambda b: len(b) >= 20 and any(not s.query_len for s in b[1:-1]), id="crowd with empty ones"),
        pytest.param(lambda b: len(b) > 64, id="many sequences"),
        pytest.param(lambda b: any(s.query_len >= 128 for s in b), id="hundreds of tokens"),
        pytest.param(lambda b: any(s.seq_len > 4096 for s in b), id="thousands of keys"),
        pytest.param(lambda b: len(b) >= 200, id="hundreds of sequences"),
        pytest.param(lambda b: not b, id="no sequence"),
        pytest.param(lambda b: b and not sum(s.query_len for s in b), id="no token"),
        pytest.param(lambda b: len(b) > 1 and not b[0].query_len, id="first empty"),
        pytest.param(lambda b: len(b) > 2 and not b[1].query_len and b[2].query_len, id="middle empty"),
        pytest.param(lambda b: len(b) > 1 and not b[-1].query_len and b[-2].query_len, id="last empty"),
        pytest.param(lambda b: any(not s.query_len and s.context_len for s in b), id="empty with a context"),
        pytest.param(lambda b: any(not s.seq_len for s in b), id="empty sequence without a context"),
        pytest.param(lambda b: any(s.seq_len >= 1000 for s in b), id="long"),
        pytest.param(lambda b: len(b) > 1 and any(s.seq_len > 512 for s in b[1:]), id="long and others"),
        pytest.param(lambda b: any(s.query_len > 1 and s.query_len % PAGE == 0 for s in b), id="whole q-blocks"),
        pytest.param(lambda b: any(s.query_len > 2 * PAGE for s in b), id="several q-blocks"),
    ],
)
def test_reaches(find_any: Any, condition: Any) -> None:
    assert condition(find_any(batches(), condition))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("edge", [PAGE, 2 * PAGE, 32, 64])
@pytest.mark.parametrize("step", [-1, 0, 1])
def test_reaches_both_sides_of_every_edge(sample: Any, edge: int, step: int) -> None:
    lengths = {sequence.seq_len for batch in sample(batches(), 600) for sequence in batch}
    assert edge + step in lengths


@pytest.mark.parametrize("segments", [2, 3, 7])
def test_reaches_both_sides_of_the_segments(sample: Any, segments: int) -> None:
    key = CompileKey(launch=LaunchHints(path="3d", num_segments=segments, tile_size=16))
    lengths = {sequence.seq_len for batch in sample(batches(key=key), 600) for sequence in batch}
    assert {segments * 16 + step for step in (-1, 0, 1)} <= lengths


def test_reaches_prompts_of_several_tiles_in_segments(sample: Any) -> None:
    key = CompileKey(num_queries_per_kv=4, launch=LaunchHints(path="3d", num_segments=7, tile_size=16))
    drawn = sample(batches(key=key, num_kv_heads=2), 600)
    assert sum(any(s.query_len > 32 and not s.context_len for s in batch) for batch in drawn) > 6


@pytest.mark.slow
def test_very_few_batches_are_extreme(sample: Any) -> None:
    drawn = sample(batches(key=CompileKey(launch=LaunchHints(tile_size=64))), 20_000)
    longest = [max((s.seq_len for s in batch if s.query_len), default=0) for batch in drawn]
    most_tokens = [max((s.query_len for s in batch), default=0) for batch in drawn]
    assert max(longest) >= 100_000
    assert max(most_tokens) >= 2048
    for sizes, usual in ((longest, VAST_KEYS[-1] + 3), (most_tokens, SURGES[-1])):
        assert 0.0001 < sum(size > usual for size in sizes) / len(drawn) < 0.002


def test_paged_decode_without_filter_has_one_token_each(sample: Any) -> None:
    assert {s.query_len for batch in sample(batches(key=CompileKey(family="paged"))) for s in batch} == {1}


def test_a_domain_without_empty_sequences_has_none(sample: Any) -> None:
    domain = Domain(features=ALL_FEATURES - {"empty_sequences"})
    drawn = sample(batches(domain=domain))
    assert all(batch for batch in drawn)
    assert all(s.query_len for batch in drawn for s in batch)


def cost(batch: tuple[Sequence, ...], key: CompileKey, num_kv_heads: int) -> int:
    """Return the interpreter's cost of a batch, summed independently; only the path 3d counts merges."""
    block_q = smallest_block_q(key.num_queries_per_kv)
    segments = max(0, key.launch.num_segments - 1)
    total = 0
    for sequence in batch:
        blocks = -(-sequence.query_len // block_q)
        tiles = -(-sequence.seq_len // (key.launch.tile_size or TYPICAL_TILE))
        total += blocks * num_kv_heads * (PROGRAM_MS + segments * SEGMENT_MS + tiles * TILE_MS)
        if key.launch.path == "3d":
            total += sequence.query_len * num_kv_heads * key.num_queries_per_kv * MERGE_MS
    return total


@given(st.data(), st.sampled_from(key_pool(FULL)), st.sampled_from((1, 2, 3)))
def test_costs_are_bounded(data: st.DataObject, key: CompileKey, num_kv_heads: int) -> None:
    batch = data.draw(batches(key=key, num_kv_heads=num_kv_heads, domain=FULL))
    row = num_kv_heads * key.head_size
    one_token = cost((Sequence(1, 4 * (key.launch.tile_size or TYPICAL_TILE)),), key, num_kv_heads)
    pages = sum(-(-sequence.seq_len // key.block_size) for sequence in batch)
    assert len(batch) <= MAX_MANY
    tokens, num_heads = sum(sequence.query_len for sequence in batch), num_kv_heads * key.num_queries_per_kv
    longest = max((sequence.seq_len for sequence in batch if sequence.query_len), default=0)
    usual = tokens <= RARE_TOKENS and pages * key.block_size * row <= MAX_CACHE_ELEMENTS
    assert cost(batch, key, num_kv_heads) <= (CHUNK_TIMES if usual else MOST_TIMES) * MAX_MS + one_token
    assert tokens <= MOST_TOKENS
    assert tokens * row * key.num_queries_per_kv <= max(MOST_QUERY_ELEMENTS, row * key.num_queries_per_kv)
    assert tokens**2 * num_heads <= max(MOST_SCORES, num_heads)
    assert longest * num_heads <= max(
        MOST_ROW_SCORES, MAX_CACHE_ELEMENTS // row * num_heads, 2 * key.block_size * num_heads
    )
    assert pages * key.block_size * row <= max(MOST_CACHE_ELEMENTS, 2 * key.block_size * row)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("times", [1, 2, MAX_TIMES, RARE_TIMES])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 3])
def test_every_affordable_sequence_stays_within_the_budget(num_kv_heads: int, times: int) -> None:
    """Check every key of the pool and every query length, so that no draw has to find the worst."""
    for key in key_pool(FULL):
        budget = budget_for(key, num_kv_heads=num_kv_heads, merges=key.launch.path == "3d", times=times)
        few_tiles = cost((Sequence(1, MIN_TILES * budget.tile),), key, num_kv_heads)
        for query_len in range(1, budget.most_queries() + 1):
            context_len = max(0, budget.most_keys(query_len) - query_len)
            spent = cost((Sequence(query_len, context_len),), key, num_kv_heads)
            assert spent <= budget.ms * budget.share + few_tiles, (key, query_len, context_len)


@pytest.mark.parametrize("num_kv_heads", range(1, MOST_KV_HEADS + 1))
def test_partial_outputs_of_the_longest_batches_stay_within_the_size_of_a_tensor(num_kv_heads: int) -> None:
    for key in (key for key in key_pool(FULL) if key.launch.path == "3d"):
        budget = budget_for(key, num_kv_heads=num_kv_heads, merges=True, times=MOST_TIMES, tokens=MOST_TOKENS)
        padded_head = 1 << (key.head_size - 1).bit_length()
        row = num_kv_heads * key.num_queries_per_kv * key.launch.num_segments * padded_head
        assert (budget.tokens + MOST_PADDED_TOKENS) * row <= MAX_TOTAL_ELEMENTS, key


def test_zero_heads_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="num_kv_heads=0 must be at least 1"):
        batches(num_kv_heads=0)
