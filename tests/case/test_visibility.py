"""Which keys a token sees, from the definition of each mask, one token and one key after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fuzz_attn.case.recipes import CAUSAL, SIMPLEST, Chunks, Custom, Full, Lookahead, Mask, TopLeft
from fuzz_attn.case.visibility import Visibility

WINDOWS = st.integers(0, 40)
LENGTHS = st.integers(1, 20)
CONTEXTS = st.integers(0, 60)
MASKS = st.one_of(
    st.sampled_from((CAUSAL, TopLeft(), Full(), Custom(), Custom(causal=False))),
    st.builds(Lookahead, st.integers(0, 70)),
    st.builds(Chunks, st.integers(1, 70)),
)


def position_of(mask: Mask, row: int, context_len: int) -> int:
    """Return where a token stands."""
    return row if isinstance(mask, TopLeft) else context_len + row


def allows(mask: Mask, position: int, key: int) -> bool:
    """Return whether a mask lets a token see a key, without the bits of a custom one."""
    match mask:
        case Full() | Custom(causal=False):
            return True
        case Lookahead(keys=keys):
            return key - position <= keys
        case Chunks(size=size):
            return key <= position and key // size == position // size
    return key <= position


def seen(window: int, mask: Mask, position: int, seq_len: int) -> list[int]:
    """Return the keys that a token sees, one after the other."""
    return [key for key in range(seq_len) if allows(mask, position, key) and (not window or position - key < window)]


@given(WINDOWS, MASKS, LENGTHS, CONTEXTS)
def test_a_token_sees_the_keys_that_mask_and_window_allow(
    window: int, mask: Mask, query_len: int, context_len: int
) -> None:
    visibility, seq_len = Visibility(window, mask), query_len + context_len
    for row in {0, query_len // 2, query_len - 1}:
        position = visibility.position(row, context_len)
        keys = seen(window, mask, position, seq_len)
        assert position == position_of(mask, row, context_len)
        assert position in keys
        assert list(visibility.keys_of(position, seq_len)) == keys
        assert (visibility.first(position), visibility.last(position, seq_len)) == (keys[0], keys[-1])
        assert visibility.reach(position) == position - keys[0]
        assert visibility.cuts(position) == (keys[0] > 0)
        assert visibility.is_filled(position) == (position - keys[0] + 1 == window)
        assert [key for key in range(seq_len) if visibility.hides(position, key)] == list(range(keys[0]))


@given(WINDOWS, MASKS, LENGTHS, CONTEXTS)
def test_new_tokens_see_these_keys_together(window: int, mask: Mask, query_len: int, context_len: int) -> None:
    seq_len = query_len + context_len
    rows = [seen(window, mask, position_of(mask, row, context_len), seq_len) for row in range(query_len)]
    together = {key for keys in rows for key in keys}
    most = Visibility(window, mask).most_keys(query_len, seq_len)
    assert together == set(range(min(together), max(together) + 1)), "the keys of all tokens are one range"
    assert len(together) <= most
    if mask == CAUSAL:
        assert most <= len(together) + 1


@pytest.mark.parametrize("array", [np.array, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("mask", SIMPLEST.values(), ids=SIMPLEST)
@pytest.mark.parametrize("window", [0, 1, 3, 60, 1000])
def test_arrays_of_positions_give_arrays(window: int, mask: Mask, array: type) -> None:
    positions, visibility = [0, 1, 2, 3, 59, 60], Visibility(window, mask)
    for method in (visibility.first, visibility.reach, visibility.cuts):
        assert method(array(positions)).tolist() == [method(position) for position in positions]
    last = [visibility.last(position, 61) for position in positions]
    assert visibility.last(array(positions), 61).tolist() == last


PLACED = st.one_of(st.sampled_from((CAUSAL, TopLeft(), Full())), st.builds(Lookahead, st.integers(0, 70)))
"""The masks of sequences that may have fewer keys than query tokens."""


@given(WINDOWS, PLACED, st.integers(0, 20), st.integers(-20, 60))
def test_rows_with_keys_are_those_that_see_one(window: int, mask: Mask, query_len: int, context_len: int) -> None:
    seq_len = max(0, query_len + context_len)
    context_len = seq_len - query_len
    visibility = Visibility(window, mask)
    rows = [row for row in range(query_len) if seen(window, mask, position_of(mask, row, context_len), seq_len)]
    assert list(visibility.rows_with_keys(query_len, context_len)) == rows
    for row in range(query_len):
        position = visibility.position(row, context_len)
        assert list(visibility.keys_of(position, seq_len)) == seen(window, mask, position, seq_len)
