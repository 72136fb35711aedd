"""Counts of visible keys agree with leaving out each key by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import DTypeName, DTypes, HeadLayout, PageLayout, Scales, Sequence
from fuzz_attn.case.recipes import ConstantValues, NeedleScores, NormalScores, SinkRecipe, UniformScores
from fuzz_attn.inputs.tensors import AttentionTensors, materialise
from fuzz_attn.oracle.reference import attend

Builder = Callable[..., AttentionTensors]
RowViews = Callable[[AttentionTensors], Iterator[Any]]

CASE = AttentionCase(
    (Sequence(3, 20), Sequence(0, 4), Sequence(1, 33)),
    heads=HeadLayout(1, 2, 4),
    pages=PageLayout(5, permuted=True),
    window=18,
    scores=NormalScores(8.0),
    sinks=SinkRecipe(),
)
DTYPES: tuple[DTypeName, ...] = ("float32", "bfloat16", "float8_e5m2")


@pytest.mark.parametrize("dtype", DTYPES)
def test_counts_agree_with_leaving_each_key_out(
    dtype: DTypeName, row_views: RowViews, visible_keys: ModuleType
) -> None:
    case = replace(CASE, dtypes=DTypes(out=dtype), scales=Scales(out=0.7 if dtype == "float8_e5m2" else 1.0))
    tensors = materialise(case)
    reference = attend(tensors)
    factor = 1.0 if tensors.out_scale is None else 1 / float(tensors.out_scale)
    pairs = visible = 0
    for row in row_views(tensors):
        weights = np.exp(row.keys @ row.query * row.scale)
        sink = np.exp(row.sink)
        for key in range(len(weights)):
            rest = np.delete(weights, key)
            without = rest @ np.delete(row.values, key, axis=0) / (rest.sum() + sink) * factor
            change = np.abs(without - reference["out"].value[row.token, row.head].numpy())
            visible += bool((change > reference["out"].bound[row.token, row.head].numpy()).any())
            pairs += 1
    counts = visible_keys.visible_share(tensors)
    assert (counts.pairs, counts.visible) == (pairs, visible)
    assert 0 < visible < pairs


def test_constant_values_without_a_sink_make_no_key_visible(visible_keys: ModuleType) -> None:
    counts = visible_keys.visible_share(materialise(AttentionCase((Sequence(1, 30),), values=ConstantValues())))
    assert (counts.pairs, counts.visible) == (31, 0)


def test_only_key_is_visible(by_hand: Builder, visible_keys: ModuleType) -> None:
    assert visible_keys.visible_share(by_hand([[1.0]], [[1.0]], [[0.0]])).visible == 1


def test_dominant_key_hides_the_others_in_half_precision(visible_keys: ModuleType) -> None:
    half = DTypes("bfloat16", "bfloat16", "bfloat16")
    case = AttentionCase((Sequence(1, 63),), dtypes=half, scores=NeedleScores("own", 99.0))
    counts = visible_keys.visible_share(materialise(case))
    assert counts.visible == counts.boundary_visible == 1


def test_boundary_keys_are_the_edges_of_window_page_tile_and_sequence(visible_keys: ModuleType) -> None:
    case = AttentionCase(
        (Sequence(1, 40),), window=30, pages=PageLayout(12), scores=UniformScores(), dtypes=DTypes("float32")
    )
    edges = {11, 40} | {12, 23, 24, 35, 36} | {15, 16, 31, 32}
    counts = visible_keys.visible_share(materialise(case))
    assert (counts.pairs, counts.boundary_pairs) == (30, len(edges))


def test_padding_does_not_count_rows_twice(visible_keys: ModuleType) -> None:
    case = AttentionCase((Sequence(4, 0), Sequence(1, 1), Sequence(2, 9)), heads=HeadLayout(1, 3, 4))
    assert visible_keys.visible_share(materialise(case)).pairs == 3 * (1 + 2 + 3 + 4 + 2 + 10 + 11)


def test_counts_add_up(visible_keys: ModuleType) -> None:
    counts = visible_keys.Visibility
    assert counts(4, 3, 2, 1) + counts(10, 20, 30, 40) == counts(14, 23, 32, 41)
    assert visible_keys.visible_share(materialise(AttentionCase(()))) == counts()


def test_ill_conditioned_rows_make_no_key_visible(by_hand: Builder, visible_keys: ModuleType) -> None:
    tensors = by_hand([[1e4]], [[1e4], [10000.001]], [[1.0], [2.0]])
    assert not bool(attend(tensors)["out"].judged)
    assert torch.equal(torch.tensor(visible_keys.visible_share(tensors).visible), torch.tensor(0))
