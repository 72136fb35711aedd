"""Covering arrays: every allowed pair, no forbidden one, the simplest row first."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz_attn.strategies.covering_arrays import Row, pairwise

SIZES = st.lists(st.integers(1, 6), min_size=2, max_size=6)


def covered(rows: tuple[Row, ...]) -> set[tuple[int, int, int, int]]:
    return {(i, row[i], j, row[j]) for row in rows for i, j in combinations(range(len(row)), 2)}


def all_pairs(sizes: list[int]) -> set[tuple[int, int, int, int]]:
    axes = combinations(range(len(sizes)), 2)
    return {(i, a, j, b) for i, j in axes for a, b in product(range(sizes[i]), range(sizes[j]))}


@given(SIZES, st.integers(0, 9))
def test_every_pair_occurs(sizes: list[int], seed: int) -> None:
    rows = pairwise([[1] * size for size in sizes], seed=seed)
    assert covered(rows) == all_pairs(sizes)


@given(SIZES)
def test_the_first_row_is_the_simplest_and_none_is_repeated(sizes: list[int]) -> None:
    rows = pairwise([[1] * size for size in sizes])
    assert rows[0] == (0,) * len(sizes)
    assert len(set(rows)) == len(rows)


@given(SIZES, st.integers(0, 9))
def test_forbidden_pairs_do_not_occur_and_all_others_do(sizes: list[int], seed: int) -> None:
    last = len(sizes) - 1

    def allowed(axis: int, value: int, other: int, other_value: int) -> bool:
        return (axis, other) != (0, last) or value == 0 or other_value == 0

    rows = pairwise([[1] * size for size in sizes], allowed=allowed, seed=seed)
    assert covered(rows) == {pair for pair in all_pairs(sizes) if allowed(*pair)}


def test_weights_decide_between_equal_gains() -> None:
    rows = pairwise([[1] * 20, [1] * 20, [9, 1]])
    assert sum(row[2] for row in rows) < len(rows) / 4


@pytest.mark.parametrize("sizes", [(24, 17, 16, 2, 2, 2, 2, 2, 9, 4)])
def test_few_rows_are_enough(sizes: tuple[int, ...]) -> None:
    fewest = 24 * 17
    assert fewest <= len(pairwise([[1] * size for size in sizes])) <= 1.15 * fewest
