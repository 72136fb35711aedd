"""Which keys a token sees, from the definition: those up to its own, and of these the last ones of a window."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fuzz_attn.case.visibility import Visibility

WINDOWS = st.integers(0, 40)
POSITIONS = st.integers(0, 60)


def seen(window: int, position: int) -> list[int]:
    """Return the keys that a token sees, one after the other."""
    return [key for key in range(100) if key <= position and (not window or position - key < window)]


@given(WINDOWS, POSITIONS)
def test_a_token_sees_the_last_keys_up_to_its_own(window: int, position: int) -> None:
    visibility, keys = Visibility(window), seen(window, position)
    assert list(visibility.keys_of(position)) == keys
    assert visibility.first(position) == keys[0]
    assert visibility.reach(position) == len(keys) - 1
    assert visibility.cuts(position) == (keys[0] > 0)
    assert visibility.is_filled(position) == (len(keys) == window)
    for key in range(position + 3):
        assert visibility.sees(position, key) == (key in keys)
        assert visibility.hides(position, key) == (key < keys[0])


@given(WINDOWS, st.integers(1, 20), POSITIONS)
def test_new_tokens_see_these_keys_together(window: int, query_len: int, context_len: int) -> None:
    together = {key for row in range(query_len) for key in seen(window, context_len + row)}
    most = Visibility(window).most_keys(query_len, query_len + context_len)
    assert len(together) <= most <= len(together) + 1


@pytest.mark.parametrize("array", [np.array, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("window", [0, 1, 3, 60, 1000])
def test_arrays_of_positions_give_arrays(window: int, array: type) -> None:
    positions, visibility = [0, 1, 2, 3, 59, 60], Visibility(window)
    for method in (visibility.first, visibility.reach, visibility.cuts):
        assert method(array(positions)).tolist() == [method(position) for position in positions]
