"""Sizes: no number of a case has a ceiling below what the contract allows, or a gap, and large sizes occur together."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any, get_args

import pytest

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.families import Family
from fuzz_attn.case.recipes import Lookahead
from fuzz_attn.mutation.batch_runner import CaseStream
from fuzz_attn.operations.cache_write.write_case import WriteDomain
from fuzz_attn.operations.merge_states.state_case import StateAxis, StateDomain
from fuzz_attn.operations.merge_states.state_experiment import materialise
from fuzz_attn.targets.loading import load_target

CASES = 10_000
Measure = Callable[[AttentionCase], int]


def tail(case: AttentionCase) -> int:
    """Return the window of a case where it hides a key, else 0."""
    return case.window if case.window < max((s.seq_len for s in case.sequences if s.query_len), default=0) else 0


def pages(case: AttentionCase) -> int:
    return -(-case.max_seq_len // case.pages.block_size)


def keys_before(case: AttentionCase) -> int:
    """Return the keys of all sequences before the last one with a query token."""
    last = max((place for place, each in enumerate(case.sequences) if each.query_len), default=0)
    return sum(each.seq_len for each in case.sequences[:last])


def ahead(case: AttentionCase) -> int:
    """Return how many keys behind its own a token sees where that hides a key, else 0."""
    keys = case.mask.keys if isinstance(case.mask, Lookahead) else 0
    return keys if keys < case.max_seq_len else 0


SIZES: dict[str, tuple[Measure, int, float]] = {
    "head size": (lambda c: c.heads.head_size, 256, 1.2),
    "page size": (lambda c: c.pages.block_size, 784, 1.25),
    "query heads for each KV head": (lambda c: c.heads.num_queries_per_kv, 64, 1.25),
    "KV heads": (lambda c: c.heads.num_kv_heads, 200, 1.6),
    "query heads": (lambda c: c.heads.num_query_heads, 512, 1.3),
    "sequences": (lambda c: len(c.sequences), 512, 1.6),
    "tokens": (lambda c: c.num_tokens, 1_100, 1.6),
    "query tokens of a sequence": (lambda c: c.max_query_len, 1_024, 3.0),
    "keys of a sequence": (lambda c: c.max_seq_len, 20_000, 1.7),
    "pages of a sequence": (pages, 4_097, 2.1),
    "window that hides a key": (tail, 8_193, 2.1),
    "segments": (lambda c: c.launch.num_segments, 128, 1.3),
    "elements of a piece of a key": (lambda c: c.strides.key_piece, 12, 2.1),
    "keys before a sequence": (keys_before, 65_536, 2.1),
    "keys ahead": (ahead, 256, 2.1),
}
"""Each number of a case, what its largest value is at least, and the largest ratio of neighbours that are drawn.

Head, page, group and segments have bounds in a domain, which are reached. All others are bounded by what a case costs.
"""
STEPS = {"head size": 4, "page size": 3, "query heads for each KV head": 3}
"""A step that is no gap: 10,000 cases have some 250 of these sizes, and the next 10,000 have others."""
LARGEST_PIECE = 16
"""Elements of the pieces into which split caches of one-byte types divide a head."""
NONE: dict[Family, set[str]] = {
    "unified": {"elements of a piece of a key", "keys ahead"},
    "paged": {"segments", "tokens", "query tokens of a sequence", "keys before a sequence", "keys ahead"},
    "extend": set(SIZES) - {"keys before a sequence", "keys ahead", "query tokens of a sequence"},
}
"""Of a family, what its cases do not have, or not without limit: decodes have one token each."""


@lru_cache(maxsize=3)
def drawn(family: Family) -> tuple[AttentionCase, ...]:
    stream = CaseStream(load_target(family).domain, seed=7)
    return tuple(stream[number].case for number in range(CASES))


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("family", ["unified", "paged", "extend"])
def test_a_size_has_no_ceiling_and_no_gap(family: Family, name: str) -> None:
    if name in NONE[family]:
        return
    measure, most, ratio = SIZES[name]
    found = sorted({size for case in drawn(family) if (size := measure(case)) > 0})
    assert found[-1] >= most
    step = STEPS.get(name, 1) if family == "unified" or name != "head size" else LARGEST_PIECE
    upto = [size for size in found if size <= most]
    gaps = [(one, other) for one, other in pairwise(upto) if other > max(one + step, one * ratio)]
    assert gaps == []


PAIRS: dict[str, Measure] = {
    "a long sequence in a batch": lambda c: c.max_seq_len >= 2048 and len(c.sequences) >= 8,
    "a chunk on a long context": lambda c: any(s.query_len >= 64 and s.context_len >= 1024 for s in c.sequences),
    "a long sequence in segments": lambda c: c.launch.num_segments > 1 and c.max_seq_len >= 2048,
    "a batch in segments": lambda c: c.launch.num_segments > 1 and len(c.sequences) > 64,
    "a chunk in segments": lambda c: c.launch.num_segments > 1 and c.max_query_len >= 128,
    "many pages in segments": lambda c: c.launch.num_segments > 1 and pages(c) >= 1024,
    "a long sequence of large pages": lambda c: c.max_seq_len >= 4096 and c.pages.block_size >= 128,
    "a long sequence of large heads": lambda c: c.max_seq_len >= 4096 and c.heads.head_size >= 128,
    "a chunk in a batch": lambda c: c.max_query_len >= 64 and len(c.sequences) >= 5,
    "many heads in a batch": lambda c: c.heads.num_kv_heads > 8 and len(c.sequences) >= 4,
}
"""Pairs of sizes, each beyond a threshold."""


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_large_sizes_are_drawn(name: str) -> None:
    assert any(PAIRS[name](case) for case in drawn("unified"))


SMALL_SIZES: dict[str, tuple[str, str, int, float]] = {
    "tokens of a merge": ("merge_states", "num_tokens", 16_384, 2.1),
    "heads of a merge": ("merge_states", "num_heads", 1_024, 2.1),
    "states": ("merge_states", "num_states", 1_024, 2.1),
    "head size of a merge": ("merge_states", "head_size", 256, 1.2),
    "tokens of a write": ("cache_write", "num_tokens", 16_384, 2.1),
    "KV heads of a write": ("cache_write", "num_heads", 1_024, 2.1),
    "pages of a write": ("cache_write", "num_pages", 4_097, 2.1),
    "head size of a write": ("cache_write", "head_size", 256, 1.2),
    "page size of a write": ("cache_write", "page_size", 2_048, 1.6),
}
"""Operation and size, what its largest value is at least, and the largest ratio of neighbours that are drawn."""


@lru_cache(maxsize=2)
def drawn_of(operation: str) -> tuple[Any, ...]:
    stream = CaseStream({"merge_states": StateDomain(), "cache_write": WriteDomain()}[operation], seed=7)
    return tuple(stream[number].case for number in range(CASES))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SMALL_SIZES)
def test_a_size_of_a_small_operation_has_no_ceiling_and_no_gap(name: str) -> None:
    operation, size, most, ratio = SMALL_SIZES[name]
    found = sorted({getattr(case, size) for case in drawn_of(operation)})
    assert found[-1] >= most
    upto = [each for each in found if each <= most]
    assert [(one, other) for one, other in pairwise(upto) if other > max(one + 4, one * ratio)] == []


def test_states_of_a_merge_lie_beyond_every_axis() -> None:
    far = [case for case in drawn_of("merge_states") if case.far_axes]
    assert {name for case in far for name in case.far_axes} == set(get_args(StateAxis))
    tensors = materialise(next(case for case in far if "partial_outputs_state" in case.far_axes))
    tensor = tensors.partial_outputs
    assert tensor.stride(0) < 2**31 <= (tensor.shape[0] - 1) * tensor.stride(0)
