"""Draws without Hypothesis: the same choices give the same values, so that Hypothesis can shrink what they find."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st

from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.engine.shrinking import shrink
from fuzz_attn.errors import FoundError
from fuzz_attn.strategies.cases import cases
from fuzz_attn.strategies.compile_keys import key_pool
from fuzz_attn.strategies.memory_layouts import layout_pool
from fuzz_attn.strategies.relation_choices import with_choices
from fuzz_attn.strategies.sampling.draws import Sample, composite, sampled_from


def hypothesis_makes(strategy: st.SearchStrategy[Any], choices: list[int]) -> object:
    made = []

    def attempt(value: object) -> None:
        made.append(value)

    shrink(strategy, choices, attempt)
    return made[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_hypothesis_makes_the_same_cases_from_the_same_choices(family: Family) -> None:
    domain = Domain(family=family, paths=("auto", "2d", "3d") if family == "unified" else ("auto",), tile_hint=True)
    keys, random = key_pool(domain)[::7], Random(3)
    for layouts in (None, layout_pool(family=family)[:2]):
        strategy = with_choices(cases(domain, keys=keys, layouts=layouts))
        for _ in range(30):
            sample = Sample(random)
            assert sample.draw(strategy) == hypothesis_makes(strategy, sample.choices)


def test_a_failing_sample_is_shrunk() -> None:
    strategy, random = cases(), Random(0)
    while True:
        sample = Sample(random)
        if sample.draw(strategy).num_tokens > 20:
            break
    failing: list[int] = []

    def attempt(case: Any) -> None:
        if case.num_tokens > 2:
            failing.append(case.num_tokens)
            raise FoundError("more than two tokens")

    shrink(strategy, sample.choices, attempt)
    assert failing[0] > 20
    assert failing[-1] == 3


def test_hypothesis_repeats_a_single_choice() -> None:
    assert hypothesis_makes(sampled_from("abc"), [2]) == "c"


def test_sampled_values_are_equally_likely() -> None:
    random = Random(0)
    drawn = [Sample(random).draw(sampled_from(range(4))) for _ in range(4000)]
    assert all(900 < drawn.count(value) < 1100 for value in range(4))


def test_other_strategies_cannot_be_sampled() -> None:
    @composite
    def made(draw: st.DrawFn) -> int:
        return draw(st.integers())

    with pytest.raises(TypeError, match=r"integers\(\) cannot be sampled"):
        Sample(Random(0)).draw(made())
