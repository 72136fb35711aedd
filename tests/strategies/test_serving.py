"""Serving: what looks like it, how many drawn cases do, and that the shapes of models that people serve are drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from statistics import median
from typing import Any

import msgspec
import pytest

from fuzz_attn.case.attention_case import AttentionCase, CompileKey
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import DTypes, HeadLayout, PageLayout, Sequence
from fuzz_attn.case.serving import is_scheduled, looks_like_serving, serves
from fuzz_attn.mutation.batch_runner import CaseStream
from fuzz_attn.strategies.compile_keys import key_pool
from fuzz_attn.strategies.serving import (
    BUDGETS_MS,
    FEWEST_MS,
    KEY_MS,
    PAIR_MS,
    may_serve,
    serving_batches,
    serving_keys,
)
from fuzz_attn.targets.loading import load_target

LEAST_SHARE, OF_CASES, WITHIN = 0.08, 1000, 3000
SEEDS = (1, 2)
PLAIN = {
    "plain": Domain(features=frozenset()),
    "plain decode": Domain(family="paged", features=frozenset()),
    "half types": Domain(dtypes=("float16", "bfloat16"), head_sizes=(64, 128, 256), block_sizes=(16, 32, 64)),
}
DOMAINS: dict[str, Domain] = {**{family: load_target(family).domain for family in FAMILIES}, **PLAIN}

Holds = Callable[[AttentionCase], bool]


def queries(case: AttentionCase) -> list[int]:
    return [sequence.query_len for sequence in case.sequences if sequence.query_len]


KINDS: dict[str, Holds] = {
    "a chunk on a long context": lambda c: any(s.query_len >= 64 and s.context_len >= 256 for s in c.sequences),
    "decodes beside a prefill": lambda c: max(queries(c)) >= 64 and queries(c).count(1) >= 4,
    "speculative decoding": lambda c: min(queries(c)) >= 2 and max(queries(c)) <= 8,
    "a batch of decodes": lambda c: max(queries(c)) == 1 and len(queries(c)) >= 8,
}
MODELS = {
    "Llama 3 8B": (128, 4),
    "Llama 3 70B": (128, 8),
    "Qwen 2.5 14B": (128, 5),
    "Llama 2 7B": (128, 1),
    "gpt-oss": (64, 8),
    "Phi 3 mini": (96, 1),
}


def of_model(head_size: int, group: int, kind: Holds) -> Holds:
    return lambda c: (c.heads.head_size, c.heads.num_queries_per_kv) == (head_size, group) and kind(c)


def usual(c: AttentionCase) -> bool:
    """Whether a case has heads of 128 in groups of 4 to 8."""
    return c.heads.head_size == 128 and 4 <= c.heads.num_queries_per_kv <= 8


SHAPES: dict[str, Holds] = {
    **{f"{name}: {words}": of_model(*model, kind) for name, model in MODELS.items() for words, kind in KINDS.items()},
    "heads of 128, groups of 4 to 8, pages of 16": lambda c: usual(c) and c.pages.block_size == 16,
    "the same with pages of 32": lambda c: usual(c) and c.pages.block_size == 32,
    "the same with pages of 64": lambda c: usual(c) and c.pages.block_size == 64,
    "the same with pages of 128": lambda c: usual(c) and c.pages.block_size == 128,
    "the same in float16": lambda c: usual(c) and c.dtypes.kv == "float16",
    "the same in bfloat16": lambda c: usual(c) and c.dtypes.kv == "bfloat16",
    "heads of 64": lambda c: c.heads.head_size == 64,
    "heads of 192": lambda c: c.heads.head_size == 192,
    "heads of 256": lambda c: c.heads.head_size == 256,
    "groups of 16": lambda c: c.heads.num_queries_per_kv == 16,
    "two KV heads": lambda c: usual(c) and c.heads.num_kv_heads == 2,
    "128 new tokens": lambda c: max(queries(c)) >= 128,
    "a prefill after the decodes": lambda c: c.sequences[0].query_len == 1 and c.sequences[-1].query_len >= 64,
    "5 decodes beside a prefill": lambda c: max(queries(c)) >= 64 and queries(c).count(1) >= 5,
    "a decode of 600 keys beside others": lambda c: max(queries(c)) == 1 and c.max_seq_len >= 600,
    "speculative decoding of two sequences": lambda c: len(queries(c)) >= 2 and KINDS["speculative decoding"](c),
}
"""Forty shapes that people serve. Each of them looks like serving beside what its row says."""


@cache
def stream_of(name: str, seed: int) -> CaseStream:
    """Return the stream of a domain's cases, which several tests share."""
    return CaseStream(DOMAINS[name], seed)


def drawn(name: str, seed: int) -> Iterator[AttentionCase]:
    """Return the first cases of a campaign, drawn as they are asked for."""
    return (stream_of(name, seed)[number].case for number in range(WITHIN))


def missing(name: str, seed: int) -> set[str]:
    """Return the shapes that a campaign's first cases do not have; the search ends where none is left."""
    left = dict(SHAPES)
    for case in drawn(name, seed):
        if not left:
            break
        if looks_like_serving(case):
            for shape in [shape for shape, holds in left.items() if holds(case)]:
                del left[shape]
    return set(left)


def test_there_are_forty_shapes() -> None:
    assert len(SHAPES) == 40


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["unified", "plain"])
def test_every_shape_is_drawn_early(name: str, seed: int) -> None:
    assert missing(name, seed) == set()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", DOMAINS)
def test_a_share_of_the_cases_looks_like_serving(name: str) -> None:
    found = sum(map(looks_like_serving, islice(drawn(name, SEEDS[0]), OF_CASES)))
    assert LEAST_SHARE <= found / OF_CASES <= 0.2


MODEL = AttentionCase(
    (Sequence(64, 256),),
    heads=HeadLayout(head_size=128, num_queries_per_kv=4),
    dtypes=DTypes("float16", "float8_e4m3fn", "float16"),
    pages=PageLayout(block_size=32),
)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ((Sequence(64, 256),), True),
        ((Sequence(63, 256),), False),
        ((Sequence(64, 255),), False),
        ((Sequence(64), *(Sequence(1, 127),) * 4), True),
        ((Sequence(64), *(Sequence(1, 127),) * 3), False),
        ((Sequence(64), *(Sequence(1, 127),) * 4, Sequence(2, 127)), False),
        ((Sequence(64), Sequence(0), *(Sequence(1, 126),) * 4), False),
        ((Sequence(1, 511),) * 8, True),
        ((Sequence(1, 511),) * 7, False),
        ((*(Sequence(1, 511),) * 8, Sequence(1, 510)), False),
        ((*(Sequence(1, 511),) * 8, Sequence(0, 3)), True),
        ((Sequence(2, 510),), True),
        ((Sequence(8, 504), Sequence(3, 600)), True),
        ((Sequence(8, 504), Sequence(1, 600)), False),
        ((Sequence(9, 600),), False),
        ((Sequence(0, 600),), False),
        ((), False),
    ],
)
def test_batches_that_schedulers_make(batch: tuple[Sequence, ...], expected: bool) -> None:
    assert is_scheduled(batch) == expected


def test_what_looks_like_serving_has_the_sizes_of_a_model_too() -> None:
    def changed(**fields: object) -> AttentionCase:
        return msgspec.structs.replace(MODEL, **fields)

    assert looks_like_serving(MODEL)
    assert not looks_like_serving(changed(sequences=(Sequence(1),)))
    assert not looks_like_serving(changed(heads=HeadLayout(head_size=80, num_queries_per_kv=4)))
    assert not looks_like_serving(changed(heads=HeadLayout(head_size=128, num_queries_per_kv=3)))
    assert not looks_like_serving(changed(pages=PageLayout(block_size=24)))
    assert not looks_like_serving(changed(dtypes=DTypes()))
    assert not looks_like_serving(changed(dtypes=DTypes("float16", "float8_e4m3fn", "float8_e4m3fn")))


@pytest.mark.parametrize("name", DOMAINS)
def test_batches_of_served_models_look_like_serving(sample: Callable[..., list[Any]], name: str) -> None:
    for key in serving_keys(DOMAINS[name], 40):
        assert serves(key)
        for batch in sample(serving_batches(key=key, num_kv_heads=1), 20):
            assert is_scheduled(batch), (key, batch)


def price(batch: tuple[Sequence, ...], num_kv_heads: int, key: CompileKey) -> float:
    """What tensors and oracle take for a batch by the two constants, summed independently."""
    rows = [s.seq_len * num_kv_heads * key.head_size for s in batch]
    pairs = [row * s.query_len * key.num_queries_per_kv for row, s in zip(rows, batch, strict=True)]
    return sum(rows) * KEY_MS + sum(pairs) * PAIR_MS


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_batches_of_served_models_are_bounded(sample: Callable[..., list[Any]], name: str, num_kv_heads: int) -> None:
    paid = [
        price(batch, num_kv_heads, key)
        for key in serving_keys(DOMAINS[name], 40)
        if may_serve(key, num_kv_heads)
        for batch in sample(serving_batches(key=key, num_kv_heads=num_kv_heads), 50)
    ]
    assert paid or num_kv_heads > 1
    assert max(paid, default=0.0) <= BUDGETS_MS[-1] + 2 * FEWEST_MS
    assert median([*paid, 0.0]) <= 2 * FEWEST_MS


@pytest.mark.parametrize("name", DOMAINS)
def test_a_sixth_of_the_pool_has_the_sizes_of_served_models(name: str) -> None:
    pool = key_pool(DOMAINS[name])
    assert sum(map(serves, pool)) >= len(pool) / 6 - 1


def test_a_domain_without_such_sizes_has_no_such_keys() -> None:
    assert serving_keys(Domain(head_sizes=(16, 32)), 10) == ()
    assert serving_keys(Domain(dtypes=("float32",)), 10) == ()
