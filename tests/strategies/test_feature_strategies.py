"""Strategies of single features: what each reaches, shrinks to and refuses."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import Family
from fuzz_attn.case.parts import DTypes, HeadLayout, PageLayout, Scales, Sequence, Strides, is_fp8
from fuzz_attn.case.recipes import (
    AlibiRecipe,
    LevelScores,
    NeedleScores,
    NormalScores,
    NormalValues,
    PoisonRecipe,
    QQBiasRecipe,
    SinkRecipe,
)
from fuzz_attn.strategies.cases import cases
from fuzz_attn.strategies.draws import sampled_from
from fuzz_attn.strategies.dtypes import dtypes
from fuzz_attn.strategies.features import (
    HUGE_WINDOW,
    LARGEST_WINDOW,
    alibi_slopes,
    hides_tile,
    qq_biases,
    scales,
    sinks,
    soft_caps,
    softmax_scales,
    windows,
)
from fuzz_attn.strategies.heads import MOST_QUERY_HEADS, MOST_ROW_ELEMENTS, head_layouts, head_sizes
from fuzz_attn.strategies.memory_layouts import block_sizes, layout_pool, memory_layouts, page_layouts
from fuzz_attn.strategies.relation_choices import NUM_CHOICES, relation_choices, with_choices
from fuzz_attn.strategies.values import overrides, poisons, score_recipes, value_recipes

FULL = Domain(paths=("auto", "2d", "3d"), tile_hint=True)
FP8 = DTypes(q="float8_e5m2", kv="float8_e5m2", out="float8_e5m2")
FP8_BESIDE_BFLOAT16 = DTypes(q="bfloat16", kv="float8_e4m3fn", out="float8_e4m3fn")
PADDED = Strides(q_token=3, cache="kv_first")
BATCH = (Sequence(5, 40), Sequence(0, 9), Sequence(3))


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (alibi_slopes(), AlibiRecipe()),
        (dtypes(), DTypes()),
        (dtypes(domain=Domain(dtypes=("bfloat16", "float16"))), DTypes("float16", "float16", "float16")),
        (head_layouts(), HeadLayout()),
        (memory_layouts(), Strides()),
        (page_layouts(block_size=24), PageLayout(block_size=24)),
        (poisons(), PoisonRecipe()),
        (qq_biases(), QQBiasRecipe()),
        (relation_choices(), None),
        (scales(), Scales()),
        (scales(dtypes=FP8), Scales()),
        (softmax_scales(head_size=64), 0.125),
        (sinks(), SinkRecipe()),
        (soft_caps(), 1.0),
        (score_recipes(), NormalScores()),
        (value_recipes(), NormalValues()),
        (overrides(sequences=BATCH), ()),
        (windows(), 1),
        (windows(sequences=BATCH, block_size=544), 1),
    ],
)
def test_shrinks_towards(minimal: Any, strategy: st.SearchStrategy[object], expected: object) -> None:
    assert minimal(strategy) == expected


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("strategy", "condition"),
    [
        (alibi_slopes(), lambda recipe: recipe.kind == "negative"),
        (alibi_slopes(), lambda recipe: recipe.kind == "zero"),
        (alibi_slopes(), lambda recipe: recipe.kind == "arbitrary"),
        (alibi_slopes(kinds=("standard", "positive")), lambda recipe: recipe.kind == "positive"),
        (dtypes(), lambda types: is_fp8(types.q) and is_fp8(types.out)),
        (head_layouts(), lambda heads: heads.num_kv_heads == 8),
        (head_layouts(num_queries_per_kv=17, head_size=256), lambda heads: heads.num_kv_heads == 2),
        (memory_layouts(), lambda strides: strides.cache == "heads_first" and strides.cache_slot),
        (memory_layouts(), lambda strides: strides.q_token and strides.out_head and strides.block_table),
        (memory_layouts(layouts=[PADDED]), lambda strides: strides == PADDED),
        (memory_layouts(layouts=[PADDED]), lambda strides: strides == Strides(q_token=3)),
        (page_layouts(), lambda pages: pages.permuted and pages.shared_prefix and pages.repeated),
        (page_layouts(), lambda pages: pages.spare_blocks and pages.extra_columns),
        (poisons(), lambda poison: (poison.keys, poison.values, poison.table) == ("huge", "inf", "zero")),
        (poisons(), lambda poison: poison.out == 1 and poison.table == "negative"),
        (qq_biases(), lambda recipe: recipe.kind == "tree" and recipe.extra_columns < 0),
        (qq_biases(), lambda recipe: recipe.kind == "diagonal" and not recipe.extra_columns),
        (qq_biases(), lambda recipe: recipe.row_padding and recipe.extra_columns > 0 and recipe.extra_rows),
        (relation_choices(), lambda choice: choice is not None and choice > 4000),
        (scales(dtypes=FP8), lambda values: values.k / values.v >= 2**10),
        (scales(dtypes=FP8), lambda values: values.q != 1 and values.k != 1 and values.out not in (1, values.k)),
        (softmax_scales(), lambda scale: scale == 1.0),
        (sinks(), lambda recipe: recipe.level <= -1e4),
        (sinks(), lambda recipe: recipe.level + 2 * recipe.spread >= 30),
        (soft_caps(), lambda cap: 88 * cap < 64),
        (score_recipes(), lambda recipe: isinstance(recipe, LevelScores) and recipe.level < -10000),
        (score_recipes(softcap=1.0), lambda recipe: isinstance(recipe, NormalScores) and recipe.spread > 50),
        (score_recipes(softcap=32.0), lambda recipe: recipe == LevelScores(level=7.0, jitter=1.0)),
        (
            score_recipes(window=True),
            lambda recipe: isinstance(recipe, NeedleScores) and recipe.place == "outside_left",
        ),
        (overrides(sequences=BATCH), lambda chosen: len(chosen) == 3 and chosen[0].sequence == 2),
        (overrides(sequences=BATCH), lambda chosen: chosen and chosen[0].tensor == "k" and chosen[0].position > 5),
        *(
            (windows(sequences=BATCH), lambda window, edge=edge: window == edge)
            for edge in (1, 2, 39, 40, 41, 44, 45, 46)
        ),
        *((windows(block_size=24), lambda window, edge=edge: window == edge) for edge in (23, 24, 25)),
        *((windows(tile_sizes=(64,)), lambda window, edge=edge: window == edge) for edge in (63, 64, 65)),
        (windows(sequences=BATCH), lambda window: window == HUGE_WINDOW),
        (windows(sequences=BATCH), lambda window: window == LARGEST_WINDOW),
        (scales(dtypes=FP8_BESIDE_BFLOAT16), lambda values: values.v == values.out == 2.0**-30),
        (score_recipes(), lambda recipe: isinstance(recipe, LevelScores) and recipe.level < -65504),
        (score_recipes(), lambda recipe: isinstance(recipe, LevelScores) and recipe.level > 10000),
    ],
)
def test_reaches(find_any: Any, strategy: st.SearchStrategy[object], condition: Any) -> None:
    assert condition(find_any(strategy, condition))


@pytest.mark.parametrize(
    ("strategy", "condition"),
    [
        (score_recipes(one_byte=True), lambda recipe: getattr(recipe, "level", 0.0) <= 30),
        (score_recipes(), lambda recipe: getattr(recipe, "place", "") != "outside_left"),
        (scales(dtypes=FP8, fp8_q_scales=False), lambda values: values == Scales()),
        (scales(dtypes=DTypes(out="float8_e4m3fn")), lambda values: values.q == values.k == values.v == 1),
        (head_layouts(num_queries_per_kv=64), lambda heads: heads.num_query_heads <= MOST_QUERY_HEADS),
        (head_layouts(head_size=256), lambda heads: heads.num_kv_heads * 256 <= MOST_ROW_ELEMENTS),
        (overrides(), lambda chosen: chosen == ()),
        (windows(sequences=BATCH), lambda window: window >= 1),
        (dtypes(domain=Domain(features=frozenset())), lambda types: types.q == types.kv == types.out),
    ],
)
def test_always(sample: Any, strategy: st.SearchStrategy[object], condition: Any) -> None:
    assert all(condition(value) for value in sample(strategy, 300))


@pytest.mark.parametrize("group", [1, 3, 17, 64])
def test_few_cases_have_many_heads(sample: Any, group: int) -> None:
    drawn = sample(head_layouts(num_queries_per_kv=group), 2000)
    usual = [heads for heads in drawn if heads.num_query_heads <= max(16, group) or heads.num_kv_heads in (2, 8)]
    assert 0.02 < 1 - len(usual) / len(drawn) < 0.07
    assert max(heads.num_query_heads for heads in drawn) > 256


def test_nine_in_twenty_choices_are_relations_and_evenly_spread(sample: Any) -> None:
    drawn = sample(relation_choices(), 1000)
    asked = [choice for choice in drawn if choice is not None]
    assert 380 < len(asked) < 520
    assert 0.4 < sum(choice < NUM_CHOICES // 2 for choice in asked) / len(asked) < 0.6


@pytest.mark.parametrize(
    ("sequence", "least", "most"), [(Sequence(1, 2_000), 0.38, 0.52), (Sequence(1, 2**14), 0.05, 0.17)]
)
def test_costly_cases_have_fewer_relations(sample: Any, sequence: Sequence, least: float, most: float) -> None:
    drawn = sample(with_choices(sampled_from((AttentionCase((sequence,)),))), 2000)
    assert least < sum(choice is not None for _, choice in drawn) / len(drawn) < most


@given(st.integers(1, 40), st.integers(0, 200), st.integers(1, 241), st.sampled_from([(16,), (16, 32, 64), (64,)]))
def test_a_window_hides_a_tile_from_the_last_token_only(query: int, context: int, window: int, tiles: Any) -> None:
    sequence = Sequence(query, context)
    fitting = [tile for tile in tiles if tile < sequence.seq_len]
    last, before = (sequence.seq_len - window - row for row in (0, 1))  # the first key that each sees
    expected = query > 1 and bool(fitting) and last > 0 and last // max(fitting) > before // max(fitting)
    assert hides_tile(window, (Sequence(1), sequence), tiles) == expected


def test_low_logits_stay_low_where_a_window_hides_a_tile(sample: Any) -> None:
    hiding = [
        case
        for case in sample(cases(Domain(tile_sizes=(16,)), sequences=(Sequence(4, 300),), variants=0), 1500)
        if case.window
        and case.sinks is None
        and hides_tile(case.window, case.sequences, (case.launch.tile_size or 16,))
    ]
    low = [case for case in hiding if isinstance(case.scores, LevelScores) and case.scores.level < 0]
    assert len(low) > len(hiding) / 2
    assert not any(case.equal_heads for case in low)
    assert any(case.equal_heads for case in hiding)


def test_half_of_the_windows_hide_keys(sample: Any) -> None:
    drawn = sample(windows(sequences=(Sequence(4, 60),)), 400)
    assert sum(window < 64 for window in drawn) > len(drawn) / 2


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((64, 128), (64, 65, 72, 80, 96, 112, 120, 128)),
        ((18, 22), (18, 22)),
        ((8, 16, 256), (16, 8, 256)),
        ((40,), (40,)),
    ],
)
def test_head_sizes_of_a_domain(bounds: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert head_sizes(domain=Domain(head_sizes=bounds)) == expected


def test_block_sizes_of_a_domain() -> None:
    assert block_sizes(domain=Domain(block_sizes=(12, 20))) == (16, 12, 15, 17, 20)


@pytest.mark.parametrize(
    ("strategy", "arguments", "message"),
    [
        (head_layouts, {"num_queries_per_kv": 0}, "num_queries_per_kv=0"),
        (head_layouts, {"head_size": 0}, "head_size=0"),
        (page_layouts, {"block_size": 0}, "block_size=0 must be at least 1"),
        (softmax_scales, {"head_size": 0}, "head_size=0 must be at least 1"),
        (memory_layouts, {"layouts": ()}, r"layouts=\(\) must hold"),
        (windows, {"block_size": 0}, "block_size=0"),
        (windows, {"tile_sizes": (0, 16)}, r"tile_sizes=\(0, 16\)"),
    ],
)
def test_bad_arguments_are_refused(strategy: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        strategy(**arguments)


@pytest.mark.parametrize("inner_strides", [False, True])
@pytest.mark.parametrize("family", get_args(Family))
def test_layout_pool_covers_every_pair_of_paddings(family: Family, inner_strides: bool) -> None:
    pool = layout_pool(family=family, inner_strides=inner_strides)
    assert Strides() not in pool
    assert len(set(pool)) == len(pool) < 60
    named = [field for field in Strides.__struct_fields__ if len({getattr(layout, field) for layout in pool}) > 1]
    for one, other in itertools.combinations(named, 2):
        pairs = {(getattr(layout, one), getattr(layout, other)) for layout in (*pool, Strides())}
        assert len(pairs) == len({pair[0] for pair in pairs}) * len({pair[1] for pair in pairs})
