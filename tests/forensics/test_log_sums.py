"""What a wrong log-sum-exp is taken for."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fuzz_attn.forensics.log_sums import MANY, agreeing
from fuzz_attn.forensics.log_sums import _is as is_like

RIGHT = np.array([1.0, 2.0])
"""The right log-sum-exps of two rows."""


@pytest.mark.parametrize(
    ("actual", "other", "expected"),
    [
        (RIGHT / math.log(2.0), RIGHT / math.log(2.0), True),
        (RIGHT / math.log(2.0) + 1e-4, RIGHT / math.log(2.0), True),
        (RIGHT / math.log(2.0), RIGHT * math.log(2.0), False),
        (np.array([math.inf, 2.0 / math.log(2.0)]), RIGHT / math.log(2.0), False),
        (np.array([math.nan, math.nan]), RIGHT / math.log(2.0), False),
        (np.array([math.inf, math.inf]), np.array([math.inf, math.inf]), True),
        (np.array([math.inf, math.inf]), np.array([-math.inf, math.inf]), False),
    ],
)
def test_an_infinite_log_sum_is_only_like_an_infinite_one(
    actual: np.typing.NDArray[np.float64], other: np.typing.NDArray[np.float64], *, expected: bool
) -> None:
    assert is_like(actual, other, RIGHT) is expected


@pytest.mark.parametrize(("rows", "expected"), [(1, []), (MANY, ["another"])])
def test_a_formula_that_right_rows_refute_needs_many_wrong_ones(rows: int, expected: list[str]) -> None:
    value = np.arange(1.0, 7.0)
    other, wrong = value + 3.0, value <= rows
    actual = np.where(wrong, other, value)
    assert agreeing(actual, value, np.full(6, 0.1), wrong, {"another": other, "none": value}) == expected


def test_a_formula_may_agree_with_right_rows() -> None:
    value, wrong = np.arange(1.0, 7.0), np.arange(6) == 2
    other = np.where(wrong, 9.0, value)
    assert agreeing(other, value, np.full(6, 0.1), wrong, {"another": other}) == ["another"]
