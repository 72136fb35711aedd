"""Cases: they stay in their domain, reach every feature, shrink to the simplest, and differ from each other."""

from __future__ import annotations

from itertools import combinations
from statistics import median
from typing import Any

import msgspec
import pytest
from hypothesis.errors import InvalidArgument

from fuzz_attn.case.aspects import (
    ALL_FEATURES,
    FEATURES_OF,
    UNPUBLISHED_FEATURES,
    has_bias_dtypes,
    has_inner_strides,
    is_mixed,
)
from fuzz_attn.case.attention_case import AttentionCase, CompileKey, far_length, replace
from fuzz_attn.case.domain import Domain, unpromised, within
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import FAR_AXES, CallForm, HeadLayout, PageLayout, Sequence, Strides, is_fp8
from fuzz_attn.case.recipes import (
    Chunks,
    Custom,
    Full,
    LevelScores,
    Lookahead,
    PoisonRecipe,
    SinkRecipe,
    TopLeft,
)
from fuzz_attn.strategies.batches import MOST_SCORES, MOST_TOKENS
from fuzz_attn.strategies.cases import ABOVE_ALL, cases
from fuzz_attn.strategies.compile_keys import key_pool
from fuzz_attn.strategies.heads import MOST_QUERY_HEADS

FULL = Domain(paths=("auto", "2d", "3d"), tile_hint=True)
RARE = {"large_offsets", "far_axes"}
SIMPLEST = AttentionCase(sequences=(Sequence(1),), softmax_scale=0.25)

DOMAINS = [
    FULL,
    Domain(features=frozenset()),
    Domain(dtypes=("bfloat16",), head_sizes=(64, 128, 256), block_sizes=(16, 16), group_sizes=(4, 8)),
    Domain(features=frozenset({"window", "sinks", "fp8_kv"})),
    Domain(fp8_q_scales=False, dtypes=("float16",), head_sizes=(80,), paths=("3d",)),
    Domain(tile_hint=True, tile_sizes=(128,), paths=("2d", "3d"), block_sizes=(100, 200)),
    *(Domain(features=ALL_FEATURES - set(sorted(ALL_FEATURES)[at::8])) for at in range(8)),
    *(Domain(features=frozenset({feature})) for feature in sorted(ALL_FEATURES)),
    *(Domain(family=family) for family in FAMILIES),
    Domain(family="chunked", dtypes=("bfloat16",), head_sizes=(64, 128, 256), features=frozenset({"fp8_kv"})),
    Domain(family="paged", dtypes=("float16",), features=FEATURES_OF["paged"] - {"filter_by_query_len", "fp8_out"}),
    Domain(family="context", features=frozenset({"stale_cache"})),
    Domain(cache_dtypes=("float16", "float8_e4m3fn"), output_dtypes=("float16", "float8_e4m3fn")),
    Domain(dtypes=("float16", "bfloat16"), output_dtypes=("float32",)),
    Domain(dtypes=("bfloat16",), cache_dtypes=("float8_e5m2",), output_dtypes=("float8_e5m2",)),
    Domain(paths=("2d", "3d"), segments=(16,), alibi_kinds=("standard", "positive")),
    Domain(paths=("3d",), segments=(3, 9), alibi_kinds=("standard",)),
    Domain(excluded=(frozenset({"alibi", "sinks"}), frozenset({"fp8_kv", "window"}), frozenset({"fp8_q", "fp8_out"}))),
    Domain(excluded=(frozenset({"window", "softcap", "qq_bias"}), frozenset({"alibi", "padded_tokens"}))),
    Domain(excluded=(frozenset({"strides", "empty_sequences"}), frozenset({"strides", "padded_tokens"}))),
    Domain(family="chunked", excluded=(frozenset({"uint8_cache", "stale_cache"}), frozenset({"sinks", "strides"}))),
]


def features(case: AttentionCase) -> set[str]:
    found = {
        "window": case.window > 0,
        "softcap": case.softcap > 0,
        "alibi": case.alibi is not None,
        "qq_bias": case.qq_bias is not None,
        "sinks": case.sinks is not None,
        "fp8_kv": is_fp8(case.dtypes.kv) and not is_fp8(case.dtypes.q),
        "fp8_q": is_fp8(case.dtypes.q),
        "fp8_out": is_fp8(case.dtypes.out),
        "full_mask": isinstance(case.mask, Full) or getattr(case.mask, "causal", True) is False,
        "top_left": isinstance(case.mask, TopLeft),
        "lookahead": isinstance(case.mask, Lookahead),
        "chunks": isinstance(case.mask, Chunks),
        "custom_mask": isinstance(case.mask, Custom),
        "empty_rows": isinstance(case.mask, Custom) and case.mask.empty_rows,
        "hidden_poison": isinstance(case.mask, Custom) and case.mask.poisoned,
        "fewer_keys": case.family == "varlen" and any(sequence.context_len < 0 for sequence in case.sequences),
        "strides": case.strides != Strides(),
        "empty_sequences": not case.sequences or any(not sequence.query_len for sequence in case.sequences),
        "padded_tokens": case.padded_tokens > 0,
        "filter_by_query_len": case.filter_by_query_len,
        "uint8_cache": case.uint8_cache,
        "stale_cache": case.stale_cache,
        "lse": case.lse is not None,
        "head_size_v": case.heads.value_size > 0,
        "large_offsets": case.pages.first_block > 0,
        "scale_signs": min(case.softmax_scale, *msgspec.structs.astuple(case.scales)) <= 0,
        "mixed_dtypes": is_mixed(case.dtypes),
        "bias_dtypes": has_bias_dtypes(case),
        "inner_strides": has_inner_strides(case),
        "empty_decodes": any(not sequence.seq_len and sequence.query_len for sequence in case.sequences),
        "call_forms": case.form != CallForm(),
        "far_axes": bool(case.strides.far),
    }
    return {name for name, on in found.items() if on}


def lies_within(case: AttentionCase, domain: Domain) -> bool:
    sizes = (
        within(case.heads.head_size, domain.head_sizes)
        and within(case.pages.block_size, domain.block_sizes)
        and within(case.heads.num_queries_per_kv, domain.group_sizes)
    )
    types = (
        (is_fp8(case.dtypes.q) or case.dtypes.q in domain.dtypes)
        and case.dtypes.kv in domain.cache_dtypes
        and case.dtypes.out in domain.output_dtypes
    )
    segments = case.launch.path != "3d" or within(case.launch.num_segments, domain.segments)
    slopes = case.alibi is None or case.alibi.kind in domain.alibi_kinds
    tiles = (0, *domain.tile_sizes) if domain.tile_hint else (0,)
    scales = (case.scales.q, case.scales.k, case.scales.v)
    return (
        sizes
        and types
        and segments
        and slopes
        and not any(set(excluded) <= features(case) for excluded in domain.excluded)
        and case.launch.path in domain.paths
        and case.launch.tile_size in tiles
        and features(case) <= set(domain.features)
        and (domain.fp8_q_scales or not is_fp8(case.dtypes.q) or scales == (1, 1, 1))
    )


@pytest.mark.sampled(9)
@pytest.mark.parametrize("domain", DOMAINS, ids=[f"domain{number}" for number in range(len(DOMAINS))])
def test_every_case_lies_within_its_domain_which_promises_it(sample: Any, domain: Domain) -> None:
    drawn = sample(cases(domain), 60)
    assert [case for case in drawn if not lies_within(case, domain)] == []
    assert {unpromised(case, domain) for case in drawn} == {""}


EXCLUSIVE = Domain(
    excluded=(frozenset({"alibi", "sinks"}), frozenset({"fp8_kv", "window"}), frozenset({"strides", "padded_tokens"}))
)


def test_each_pair_of_features_occurs_unless_it_is_excluded(sample: Any) -> None:
    found = [features(case) for case in sample(cases(EXCLUSIVE), 1500)]
    pairs = map(frozenset, combinations(sorted(FEATURES_OF["unified"] - RARE - UNPUBLISHED_FEATURES), 2))
    absent = {pair for pair in pairs if not any(pair <= each for each in found)}
    assert absent == {*EXCLUSIVE.excluded, frozenset({"fp8_kv", "fp8_q"})}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("feature", sorted(FEATURES_OF["unified"] - RARE))
def test_share_of_cases_with_each_feature(drawn_cases: list[AttentionCase], feature: str) -> None:
    share = sum(feature in features(case) for case in drawn_cases) / len(drawn_cases)
    assert 0.1 < share < 0.6


RARE_IN: dict[Family, set[str]] = {
    "extend": {"bias_dtypes"},
    "varlen": {"bias_dtypes", "mixed_dtypes", "scale_signs"},
    "mla_decode": {"mixed_dtypes", "empty_sequences", "scale_signs"},
    "token_decode": {"empty_sequences", "bias_dtypes", "ragged_splits"},
}
"""Of the decode on a latent cache and of packed keys, of the type of q, only the softmax scale has a sign. Splits need
another path than the usual one."""


@pytest.mark.sampled(9)
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"unified"}))
def test_share_of_cases_with_each_feature_of_split_families(sample: Any, family: Family) -> None:
    drawn = [features(case) for case in sample(cases(Domain(family=family)), 600)]
    rare = RARE | RARE_IN.get(family, set())
    shares = {name: sum(name in found for found in drawn) / len(drawn) for name in FEATURES_OF[family] - rare}
    assert {name for name, share in shares.items() if not 0.05 < share < 0.6} == set(), shares


@pytest.mark.parametrize(
    ("share", "condition"),
    [
        pytest.param(0.2, lambda c: 0 < c.window < c.max_seq_len, id="window edge"),
        pytest.param(
            0.2, lambda c: c.max_seq_len % c.pages.block_size and c.max_seq_len > c.pages.block_size, id="tail"
        ),
        pytest.param(0.3, lambda c: len(c.sequences) > 1, id="second sequence"),
        pytest.param(0.3, lambda c: c.heads.num_kv_heads > 1 and c.heads.num_queries_per_kv > 1, id="head mapping"),
        pytest.param(0.1, lambda c: c.launch.num_segments > 1 and c.max_seq_len > 32, id="segment merge"),
        pytest.param(0.1, lambda c: any(s.query_len > 1 and s.context_len for s in c.sequences), id="chunked prefill"),
        pytest.param(0.3, lambda c: c.dtypes.q == c.dtypes.kv == c.dtypes.out, id="no fp8"),
        pytest.param(0.05, lambda c: c.dtypes.q == c.dtypes.kv == c.dtypes.out == "float32", id="float32"),
        pytest.param(0.5, lambda c: c.heads.head_size & (c.heads.head_size - 1), id="padded head"),
        pytest.param(0.1, lambda c: c.heads.num_queries_per_kv > 16, id="more than 16 rows"),
        pytest.param(0.2, lambda c: len({c.scales.k, c.scales.v}) == 2, id="unequal scales"),
        pytest.param(
            0.05, lambda c: c.qq_bias and any(s.query_len > 1 and s.context_len for s in c.sequences), id="bias"
        ),
        pytest.param(0.02, lambda c: isinstance(c.scores, LevelScores) and c.scores.level == -110, id="underflow"),
        pytest.param(0.01, lambda c: len(c.sequences) >= 10, id="binary search"),
        pytest.param(0.01, lambda c: c.max_seq_len >= 500, id="long sequence"),
        pytest.param(0.003, lambda c: not c.sequences, id="no sequence"),
    ],
)
def test_cases_that_show_bugs_are_frequent(drawn_cases: list[AttentionCase], share: float, condition: Any) -> None:
    assert sum(bool(condition(case)) for case in drawn_cases) / len(drawn_cases) > share


def test_few_cases_are_drawn_twice(drawn_cases: list[AttentionCase]) -> None:
    assert len(set(drawn_cases)) > 0.95 * len(drawn_cases)


def test_nearly_all_cases_have_a_key_of_the_pool(drawn_cases: list[AttentionCase]) -> None:
    pool = set(key_pool(FULL))
    assert sum(case.compile_key in pool for case in drawn_cases) > 0.94 * len(drawn_cases)


def test_given_keys_are_used(sample: Any) -> None:
    chosen = key_pool(FULL)[300:303]
    drawn = sample(cases(FULL, keys=chosen), 800)
    assert sum(case.compile_key in chosen for case in drawn) > 0.9 * len(drawn)
    assert {case.compile_key for case in drawn} >= set(chosen)


def test_median_case_is_small_and_no_case_is_large(drawn_cases: list[AttentionCase]) -> None:
    assert median(case.num_tokens for case in drawn_cases) <= 20
    assert median(case.max_seq_len for case in drawn_cases) <= 64
    assert max(case.heads.num_query_heads for case in drawn_cases) <= MOST_QUERY_HEADS
    assert median(case.heads.num_query_heads for case in drawn_cases) <= 16
    assert max(case.heads.num_query_heads * case.num_tokens for case in drawn_cases) <= 64 * MOST_TOKENS
    rows_times_keys = [c.heads.num_query_heads * sum(s.query_len * s.seq_len for s in c.sequences) for c in drawn_cases]
    assert median(rows_times_keys) <= 5000
    assert max(rows_times_keys) <= MOST_SCORES


def test_every_override_names_an_existing_element(sample: Any) -> None:
    found = 0
    for case in sample(cases(FULL)):
        for override in case.overrides:
            sequence = case.sequences[override.sequence]
            heads = case.heads.num_query_heads if override.tensor == "q" else case.heads.num_kv_heads
            assert override.position < (sequence.query_len if override.tensor == "q" else sequence.seq_len)
            assert override.head < heads
            assert override.column < case.heads.head_size
            found += 1
    assert found > 20


def test_drawn_cases_survive_a_json_round_trip(drawn_cases: list[AttentionCase]) -> None:
    for case in drawn_cases:
        assert msgspec.json.decode(msgspec.json.encode(case), type=AttentionCase) == case


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        pytest.param(lambda _: True, SIMPLEST, id="anything"),
        pytest.param(lambda c: c.sinks, replace(SIMPLEST, sinks=SinkRecipe()), id="sinks"),
        pytest.param(lambda c: c.window, replace(SIMPLEST, window=1), id="window"),
        pytest.param(
            lambda c: c.heads.num_queries_per_kv > 16,
            replace(SIMPLEST, heads=HeadLayout(num_queries_per_kv=17)),
            id="large group",
        ),
        pytest.param(
            lambda c: c.heads.num_kv_heads > 1 and c.heads.num_queries_per_kv > 1,
            replace(SIMPLEST, heads=HeadLayout(num_kv_heads=2, num_queries_per_kv=2)),
            id="head mapping",
        ),
        pytest.param(
            lambda c: c.heads.head_size % 16,
            replace(SIMPLEST, heads=HeadLayout(head_size=8), softmax_scale=8**-0.5),
            id="padded head",
        ),
        pytest.param(
            lambda c: c.poison.values == "huge", replace(SIMPLEST, poison=PoisonRecipe(values="huge")), id="poison"
        ),
        pytest.param(  # a batch without sequences has fewer choices still
            lambda c: c.strides.cache_slot and c.max_query_len,
            replace(SIMPLEST, strides=Strides(cache_slot=1)),
            id="strides",
        ),
        pytest.param(
            lambda c: c.pages.first_block,
            replace(SIMPLEST, pages=PageLayout(first_block=2**31 // 256)),
            id="large offsets",
        ),
        pytest.param(
            lambda c: "q_token" in c.strides.far and len(c.sequences) == 1,
            replace(SIMPLEST, sequences=(Sequence(3),), strides=Strides(far=("q_token",))),
            id="tokens far apart",
        ),
        pytest.param(lambda c: c.near_uniform, replace(SIMPLEST, near_uniform=True), id="near uniform"),
        pytest.param(lambda c: c.key_marks, replace(SIMPLEST, key_marks=True), id="key marks"),
        pytest.param(lambda c: c.padded_tokens > 1, replace(SIMPLEST, padded_tokens=2), id="padded tokens"),
        pytest.param(
            lambda c: getattr(c.scores, "level", 0.0) == -110.0,
            replace(SIMPLEST, scores=LevelScores(level=-110.0)),
            id="level",
        ),
        pytest.param(
            lambda c: c.window and c.sinks and c.window < c.max_seq_len and c.max_query_len,
            replace(SIMPLEST, sequences=(Sequence(2),), window=1, sinks=SinkRecipe()),
            id="two features",
        ),
    ],
)
def test_shrinks_to_the_simplest_case_with_the_condition(minimal: Any, condition: Any, expected: AttentionCase) -> None:
    assert minimal(cases(FULL), condition) == expected


def test_shrinks_from_a_given_key_to_the_simplest_case(minimal: Any) -> None:
    assert minimal(cases(FULL, keys=key_pool(FULL)[-3:])) == SIMPLEST


def test_few_cases_have_elements_far_apart(drawn_cases: list[AttentionCase]) -> None:
    far = [case for case in drawn_cases if case.strides.far]
    assert 0.04 < len(far) / len(drawn_cases) < 0.12
    assert all(far_length(case, name) > 2 for case in far for name in case.strides.far)
    found = {name for case in far for name in case.strides.far}
    assert found == set(FAR_AXES) - {"new_token", "new_head", "cache_dim"}


def test_sinks_beside_low_logits_are_as_low(drawn_cases: list[AttentionCase]) -> None:
    levels = [
        (case.lse, case.sinks.level, case.scores.level)
        for case in drawn_cases
        if case.sinks is not None and isinstance(case.scores, LevelScores) and case.scores.level <= -20
    ]
    assert {low for *_, low in levels} == {-70000.0, -20000.0, -110.0, -20.0}
    assert all(sink == low or (lse is not None and sink == ABOVE_ALL) for lse, sink, low in levels)


def test_keys_outside_of_the_domain_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"key\.compiled=\('sinks',\) lies outside"):
        cases(Domain(features=frozenset()), keys=[CompileKey(compiled=("sinks",))])


def test_few_cases_have_large_offsets(drawn_cases: list[AttentionCase]) -> None:
    offset = [case for case in drawn_cases if case.pages.first_block]
    assert 0.02 < len(offset) / len(drawn_cases) < 0.08
    reaches = [case.pages.first_block * case.cache_layout.page_strides[1] for case in offset]
    assert any(2**31 <= reach < 2**32 for reach in reaches)
    assert any(reach >= 2**32 for reach in reaches)
    assert "kv_first" not in {case.strides.cache for case in offset}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("cache", ["separate", "blocks_first", "heads_first"])
def test_caches_of_each_order_reach_large_offsets(find_any: Any, cache: str) -> None:
    assert find_any(cases(FULL), lambda case: case.pages.first_block and case.strides.cache == cache)
