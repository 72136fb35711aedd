"""Hypothesis' private behaviour that shrinking relies on: a new version that changes it fails here."""

from __future__ import annotations

import pytest
from hypothesis import find
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from fuzz_attn.engine.hypothesis_compat import DATABASE_KEY, shrink_only

NUMBERS = st.lists(st.sampled_from(range(100)), min_size=2, max_size=2)


def values_tried(choices: list[int], limit: int) -> tuple[list[int], list[list[int]]]:
    tried: list[list[int]] = []

    def fails(value: list[int]) -> bool:
        tried.append(value)
        return sum(value) > limit

    return find(NUMBERS, fails, settings=shrink_only(choices), database_key=DATABASE_KEY), tried


def test_the_choices_are_repeated_first_and_then_shrunk() -> None:
    smallest, tried = values_tried([70, 80], 50)
    assert tried[0] == [70, 80]
    assert smallest == [0, 51]


def test_shrinking_is_the_same_in_every_run() -> None:
    one, again = (values_tried([70, 80], 50)[1] for _ in range(2))
    assert one == again


def test_no_value_is_drawn_at_random() -> None:
    with pytest.raises(NoSuchExample):
        values_tried([0, 1], 50)
