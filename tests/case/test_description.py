"""Descriptions: every difference between cases shows in the words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.description import describe
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import CallForm, DTypes, HeadLayout, LaunchHints, PageLayout, Scales, Sequence, Strides
from fuzz_attn.case.recipes import (
    AlibiRecipe,
    LevelScores,
    NeedleScores,
    OneHotValues,
    OutlierValues,
    Override,
    PoisonRecipe,
    QQBiasRecipe,
    SinkRecipe,
)
from fuzz_attn.errors import CaseError
from fuzz_attn.strategies.cases import cases

QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
WIDE = Domain(paths=("auto", "2d", "3d"), tile_hint=True)

PLAINEST = """\
sequence 0: 1 query token, 0 in the cache before
heads: 1 query head on 1 KV head (group of 1), head size 16
types: q, cache and output float32
pages: 16 slots each
scale: softmax_scale 1
mask: causal, no window
numbers: scores normal (spread 1), values normal, seed 0
launch: the launcher's choice"""

RICHEST = """\
sequence 0: 3 query tokens, 5 in the cache before
sequences 1 to 2: empty: no query tokens, 7 in the cache
sequence 3: 1 query token, 0 in the cache before
padding: 2 more rows in q and out than tokens
heads: 6 query heads on 2 KV heads (group of 3), head size 64
types: q bfloat16, cache float8_e4m3fn with k_scale 0.5 and v_scale 1.7, output float8_e5m2 with scale 0.3
pages: 8 slots each, in a random order, one used twice by each sequence, the first shared by all sequences, \
2 spare pages, a table 1 column wider than needed
scale: softmax_scale 0.125, 1 / sqrt(head size)
soft cap: 30
mask: causal, window of 7 keys
ALiBi: negative slopes times 2
qq-bias: tree times 0.5, 1 row more than the longest query, 2 columns fewer than the longest query, \
a slice of a matrix 4 columns wider
sinks: -4 with spread 0.25, bfloat16
numbers: scores needle (place outside left, strength 9), values one-hot, seed 12
near-uniform: the queries of most rows divided by 64, the slopes of most heads by 16
equal heads: the queries and slopes and sinks of most heads are 0
key marks: every other column of V marks the keys
v: -16 set at sequence 1, position 2, head 1, column 4
memory: K and V in one allocation [num_blocks, 2, ...], gap of 1 after each q token, gap of 2 after each q head, \
gap of 3 after each out token, gap of 4 after each out head, gap of 5 after each cache row, \
gap of 6 after each table row
poison: the largest number in dead keys, -Inf in dead values, 0 in dead table entries, the second NaN in the output
launch: 3D kernel, 5 segments, tiles of 32 keys"""


ONE_ALLOCATION = "K and V in one allocation [2, num_blocks, ...]"


def text_of(case: AttentionCase) -> str:
    return "\n".join(f"{what}: {words}" for what, words in describe(case))


def test_plainest_case() -> None:
    assert text_of(AttentionCase((Sequence(1),))) == PLAINEST


def test_richest_case() -> None:
    case = AttentionCase(
        sequences=(Sequence(3, 5), Sequence(0, 7), Sequence(0, 7), Sequence(1)),
        heads=HeadLayout(2, 3, 64),
        dtypes=DTypes("bfloat16", "float8_e4m3fn", "float8_e5m2"),
        scales=Scales(k=0.5, v=1.7, out=0.3),
        pages=PageLayout(8, True, 1, True, 2, 1),
        softmax_scale=0.125,
        window=7,
        softcap=30.0,
        alibi=AlibiRecipe("negative", 2.0),
        qq_bias=QQBiasRecipe("tree", 1, -2, 4, 0.5),
        sinks=SinkRecipe(-4.0, 0.25, "bfloat16"),
        scores=NeedleScores("outside_left", 9.0),
        values=OneHotValues(),
        near_uniform=True,
        equal_heads=True,
        key_marks=True,
        overrides=(Override("v", 1, 2, 1, 4, -16.0),),
        strides=Strides(1, 2, 3, 4, "blocks_first", 5, 6),
        padded_tokens=2,
        poison=PoisonRecipe("huge", "negative_inf", "zero", 1),
        launch=LaunchHints("3d", 5, 32),
        seed=12,
    )
    assert text_of(case) == RICHEST


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"sequences": ()}, ("batch", "no sequences")),
        ({"window": 1}, ("mask", "causal, window of 1 key")),
        ({"alibi": AlibiRecipe()}, ("ALiBi", "standard slopes")),
        ({"qq_bias": QQBiasRecipe()}, ("qq-bias", "dense")),
        ({"qq_bias": QQBiasRecipe(extra_columns=1)}, ("qq-bias", "dense, 1 column more than the longest query")),
        ({"sinks": SinkRecipe()}, ("sinks", "0 with spread 1, float32")),
        ({"softmax_scale": 0.1000001}, ("scale", "softmax_scale 0.1000001")),
        ({"softmax_scale": 0.25}, ("scale", "softmax_scale 0.25, 1 / sqrt(head size)")),
        (
            {"scores": LevelScores()},
            ("numbers", "scores level (level -20, jitter 0.5), values normal, seed 0"),
        ),
        (
            {"values": OutlierValues()},
            ("numbers", "scores normal (spread 1), values outlier (factor 64), seed 0"),
        ),
        (
            {"poison": PoisonRecipe("inf", "inf")},
            ("poison", "Inf in dead keys and values, num_blocks in dead table entries"),
        ),
        ({"launch": LaunchHints("2d", tile_size=16)}, ("launch", "2D kernel, tiles of 16 keys")),
        (
            {"qq_bias": QQBiasRecipe(order="columns", step=3, dtype="float64")},
            ("qq-bias", "dense, stored column by column, every element followed by 2 others, float64"),
        ),
        (
            {"form": CallForm("expanded", 1, extra_table_rows=2)},
            (
                "call",
                "scales expanded over sequences and heads, window in alternative form 1, 2 more rows in the table",
            ),
        ),
        (
            {"heads": HeadLayout(1, 1, 16, 8), "strides": Strides(cache="kv_first")},
            (
                "memory",
                f"each cache in memory of its own, as values have their own size, instead of {ONE_ALLOCATION}",
            ),
        ),
        ({"padded_tokens": 1}, ("padding", "1 more row in q and out than tokens")),
        (
            {"dtypes": DTypes("float16", "float16", "float32")},
            ("types", "q float16, cache float16, output float32"),
        ),
    ],
)
def test_single_lines(changes: dict[str, Any], line: tuple[str, str]) -> None:
    assert line in describe(replace(AttentionCase((Sequence(1),)), **changes))


@QUIET
@given(cases(WIDE), cases(WIDE))
def test_different_cases_have_different_descriptions(left: AttentionCase, right: AttentionCase) -> None:
    assert (text_of(left) == text_of(right)) == (left == right)


@QUIET
@given(
    cases(WIDE), cases(WIDE), st.sampled_from([name for name in AttentionCase.__struct_fields__ if name != "family"])
)
def test_every_field_is_described(left: AttentionCase, right: AttentionCase, field: str) -> None:
    try:
        changed = replace(left, **{field: getattr(right, field)})
    except CaseError:
        assume(False)
    assert (text_of(changed) == text_of(left)) == (changed == left)


FIELDS: list[tuple[str, Any]] = [
    ("heads", HeadLayout(3, 1, 16)),
    ("heads", HeadLayout(1, 3, 16)),
    ("pages", PageLayout(permuted=True)),
    ("pages", PageLayout(repeated=True)),
    ("pages", PageLayout(shared_prefix=1)),
    ("pages", PageLayout(shared_prefix=2)),
    ("pages", PageLayout(spare_blocks=1)),
    ("pages", PageLayout(extra_columns=1)),
    ("strides", Strides(q_token=1)),
    ("strides", Strides(q_head=1)),
    ("strides", Strides(out_token=1)),
    ("strides", Strides(out_head=1)),
    ("strides", Strides(cache="kv_first")),
    ("strides", Strides(cache="blocks_first")),
    ("strides", Strides(cache="heads_first")),
    ("strides", Strides(cache_slot=1)),
    ("strides", Strides(block_table=1)),
    ("strides", Strides(new_value_token=1)),
    ("strides", Strides(new_value_head=1)),
    ("strides", Strides(page_head=1)),
    ("strides", Strides(key_chunk=1)),
    ("strides", Strides(key_slot=1)),
    ("strides", Strides(value_dim=1)),
    ("strides", Strides(key_piece=1)),
    *(("form", CallForm(scales=form)) for form in ("scalar", "expanded", "omitted")),
    *(("form", CallForm(window=form)) for form in (1, 2)),
    *(("form", CallForm(cache_name=name)) for name in (1, 2)),
    ("form", CallForm(query_starts=False)),
    ("form", CallForm(extra_table_rows=1)),
    ("form", CallForm(extra_output_rows=1)),
    ("form", CallForm(extra_new_rows=1)),
    *(("poison", PoisonRecipe(keys=kind)) for kind in ("inf", "negative_inf", "huge")),
    *(("poison", PoisonRecipe(values=kind)) for kind in ("inf", "negative_inf", "huge")),
    *(("poison", PoisonRecipe(table=entry)) for entry in ("zero", "negative", "huge")),
    ("poison", PoisonRecipe(out=1)),
    ("scores", NeedleScores()),
    ("scores", NeedleScores("first")),
    ("scores", NeedleScores(strength=8.5)),
    ("sinks", SinkRecipe()),
    ("sinks", SinkRecipe(level=1.0)),
    ("sinks", SinkRecipe(spread=2.0)),
    ("sinks", SinkRecipe(dtype="float16")),
    ("alibi", AlibiRecipe()),
    ("alibi", AlibiRecipe(scale=2.0)),
    ("alibi", AlibiRecipe("zero")),
    ("alibi", AlibiRecipe(dtype="float16")),
    ("qq_bias", QQBiasRecipe()),
    ("qq_bias", QQBiasRecipe("tree")),
    ("qq_bias", QQBiasRecipe(scale=2.0)),
    ("qq_bias", QQBiasRecipe(extra_rows=1)),
    ("qq_bias", QQBiasRecipe(extra_columns=1)),
    ("qq_bias", QQBiasRecipe(extra_columns=-1)),
    ("qq_bias", QQBiasRecipe(row_padding=1)),
    *(("qq_bias", QQBiasRecipe(order=order)) for order in ("columns", "one_row", "one_column")),
    ("qq_bias", QQBiasRecipe(step=2)),
    ("qq_bias", QQBiasRecipe(dtype="float16")),
    *(("overrides", (Override(tensor),)) for tensor in ("q", "k", "v")),
    ("overrides", (Override("q", 1),)),
    ("overrides", (Override("q", position=1),)),
    ("overrides", (Override("q", head=1),)),
    ("overrides", (Override("q", column=1),)),
    ("overrides", (Override("q", value=1.0),)),
    ("overrides", (Override("q"), Override("q"))),
    ("launch", LaunchHints("2d")),
    ("launch", LaunchHints("3d")),
    ("launch", LaunchHints("3d", 1)),
    ("launch", LaunchHints(tile_size=16)),
    ("sequences", (Sequence(1), Sequence(1))),
    ("sequences", (Sequence(2),)),
    ("sequences", (Sequence(0, 1),)),
    ("sequences", (Sequence(1, 1),)),
    ("sequences", ()),
]


def test_every_part_of_a_field_is_described() -> None:
    plain = AttentionCase((Sequence(1),))
    texts = [text_of(replace(plain, **{name: value})) for name, value in FIELDS]
    assert len({text_of(plain), *texts}) == len(FIELDS) + 1


@QUIET
@given(cases(WIDE))
def test_each_description_is_one_line(case: AttentionCase) -> None:
    for what, words in describe(case):
        assert words == words.strip() != ""
        assert "\n" not in what + words
        assert "_" not in words.replace("softmax_scale", "").replace("k_scale", "").replace("v_scale", "").replace(
            "num_blocks", ""
        ).replace("float8_e", "")
