"""Equal heads: their logits are exactly 0, those of all other heads follow the recipes."""

from __future__ import annotations

import numpy as np
import pytest

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import HeadLayout, Sequence
from fuzz_attn.case.recipes import AlibiRecipe, SinkRecipe
from fuzz_attn.inputs.numbers import alibi_slopes, equal_heads, numbers_of, sinks


def case_of(num_heads: int, seed: int) -> AttentionCase:
    heads = HeadLayout(1, num_heads, 8)
    return AttentionCase((Sequence(3, 9), Sequence(1)), heads=heads, seed=seed, equal_heads=True)


@pytest.mark.parametrize("num_heads", [1, 2, 7, 64])
def test_there_is_at_least_one_equal_head(num_heads: int) -> None:
    chosen = [equal_heads(case_of(num_heads, seed)) for seed in range(40)]
    assert all(each.any() for each in chosen)
    assert num_heads == 1 or 0.6 < np.mean(chosen) < 0.95


@pytest.mark.parametrize("num_heads", [2, 7, 16, 64])
def test_few_heads_have_other_weights_each_of_them_in_some_case(num_heads: int) -> None:
    others = [~equal_heads(case_of(num_heads, seed)) for seed in range(60 * num_heads)]
    assert {int(each.sum()) for each in others} <= {*range(max(1, num_heads // 16) + 1)}
    assert np.any(others, axis=0).all()


def test_there_is_none_without_the_field() -> None:
    assert not equal_heads(replace(case_of(7, 1), equal_heads=False)).any()


def test_queries_slopes_and_sinks_of_equal_heads_are_zero_and_all_others_stay() -> None:
    case = case_of(64, 3)
    plain, chosen = replace(case, equal_heads=False), equal_heads(case)
    pairs = (
        [numbers_of(each).queries.swapaxes(0, 1) for each in (case, plain)],
        [alibi_slopes(AlibiRecipe(), each) for each in (case, plain)],
        [sinks(SinkRecipe(level=3.0), each) for each in (case, plain)],
    )
    for changed, unchanged in pairs:
        assert not changed[chosen].any()
        assert np.array_equal(changed[~chosen], unchanged[~chosen])
        assert unchanged[chosen].any()
    assert np.array_equal(numbers_of(case).keys, numbers_of(plain).keys)
    assert np.array_equal(numbers_of(case).values, numbers_of(plain).values)
