"""Whether some or all elements of a mask hold, as torch itself answers."""

from __future__ import annotations

import math

import pytest
import torch

from fuzz_attn.oracle.masks import every, some, some_between

MASKS = [torch.tensor(mask) for mask in ([False], [True], [[False, True], [False, False]], [True, True])]
NUMBERS = [[0.0, 2.0], [0.5], [1.0], [math.nan, 0.5], [math.nan], [math.inf, -1.0], [[0.0, 0.0], [0.1, 3.0]]]


@pytest.mark.parametrize("mask", [*MASKS, MASKS[2].T, torch.zeros(0, dtype=torch.bool)])
def test_masks_are_answered_as_by_torch(mask: torch.Tensor) -> None:
    assert (some(mask), every(mask)) == (bool(mask.any()), bool(mask.all()))


@pytest.mark.parametrize("numbers", NUMBERS)
def test_numbers_between_two_others(numbers: list[float]) -> None:
    tensor = torch.tensor(numbers, dtype=torch.float64)
    assert some_between(tensor, 0.0, 1.0) == bool(((tensor > 0.0) & (tensor < 1.0)).any())
