"""Draws without Hypothesis: the same choices give the same values as in Hypothesis."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, find, settings
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase, choices_to_bytes

from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.strategies.cases import cases
from fuzz_attn.strategies.compile_keys import key_pool
from fuzz_attn.strategies.draws import Sample, composite, sampled_from
from fuzz_attn.strategies.memory_layouts import layout_pool
from fuzz_attn.strategies.relation_choices import with_choices


class OneDraw(ExampleDatabase):
    """A database with the choices of one draw, which Hypothesis repeats."""

    def __init__(self, choices: list[int]) -> None:
        super().__init__()
        self._choices = choices_to_bytes(choices)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return (self._choices,) if key == b"draw" else ()

    def save(self, key: bytes, value: bytes) -> None:
        """Store nothing."""

    def delete(self, key: bytes, value: bytes) -> None:
        """Store nothing."""


def hypothesis_makes(strategy: st.SearchStrategy[Any], choices: list[int]) -> object:
    chosen = settings(database=OneDraw(choices), deadline=None, phases=(Phase.reuse,), max_examples=1)
    return find(strategy, lambda value: True, settings=chosen, database_key=b"draw")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("family", FAMILIES)
def test_hypothesis_makes_the_same_cases_from_the_same_choices(family: Family) -> None:
    domain = Domain(family=family, paths=("auto", "2d", "3d") if family == "unified" else ("auto",), tile_hint=True)
    keys, random = key_pool(domain)[::7], Random(3)
    for layouts in (None, layout_pool(family=family)[:2]):
        strategy = with_choices(cases(domain, keys=keys, layouts=layouts))
        for _ in range(12):
            sample = Sample(random)
            assert sample.draw(strategy) == hypothesis_makes(strategy, sample.choices)


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
