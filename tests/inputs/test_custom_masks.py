"""Custom masks: their bits, who sees whom with them, and what holds poison."""

from __future__ import annotations

import numpy as np
import pytest

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import PageLayout, Sequence
from fuzz_attn.case.recipes import CAUSAL, Chunks, Custom, Full, Lookahead, Mask, MaskBits, TopLeft
from fuzz_attn.case.visibility import Visibility
from fuzz_attn.inputs.batch_rows import custom_masks, needed_keys, page_map, seen_keys, sees
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.inputs.transforms import arranged

SEQUENCES = (Sequence(5, 9), Sequence(0, 3), Sequence(1, 20), Sequence(17, 0))
CASE = AttentionCase(SEQUENCES, family="extend", mask=Custom(), pages=PageLayout(block_size=4), seed=5)
ALL_BITS: tuple[MaskBits, ...] = ("random", "tree", "blocks", "bottom_right")
OTHERS: tuple[Mask, ...] = (CAUSAL, TopLeft(), Full(), Lookahead(2), Chunks(4))


@pytest.mark.parametrize("bits", ALL_BITS)
@pytest.mark.parametrize("causal", [True, False])
def test_each_row_sees_its_own_key(bits: MaskBits, causal: bool) -> None:
    for sequence, mask in zip(SEQUENCES, custom_masks(replace(CASE, mask=Custom(bits, causal))), strict=True):
        rows = np.arange(sequence.query_len)
        assert mask.shape == (sequence.query_len, sequence.seq_len)
        assert mask[rows, rows + sequence.context_len].all()


def test_a_tree_shows_the_context_and_a_path_of_ancestors() -> None:
    for sequence, mask in zip(SEQUENCES, custom_masks(replace(CASE, mask=Custom("tree", causal=False))), strict=True):
        assert mask[:, : sequence.context_len].all()
        new = mask[:, sequence.context_len :]
        assert not np.triu(new, 1).any()
        for row in new:  # what an ancestor sees, its descendant sees too
            assert not (new[row.nonzero()[0]] & ~row).any()


def test_bits_of_the_causal_mask_hide_what_the_causal_mask_hides() -> None:
    visibility, causal = Visibility(0, Custom(causal=False)), Visibility()
    for sequence, mask in zip(SEQUENCES, custom_masks(replace(CASE, mask=Custom("bottom_right", False))), strict=True):
        lengths = sequence.query_len, sequence.context_len
        assert np.array_equal(seen_keys(visibility, *lengths, mask), seen_keys(causal, *lengths))


def test_bits_that_the_causal_mask_hides_are_random() -> None:
    mask = custom_masks(replace(CASE, mask=Custom("tree")))[3]
    behind = mask[np.triu_indices(17, 1)]
    assert 0.3 < behind.mean() < 0.7


def test_some_row_sees_nothing() -> None:
    for seed in range(20):
        case = replace(CASE, mask=Custom(empty_rows=True), seed=seed)
        lengths = zip(SEQUENCES, custom_masks(case), strict=True)
        rows = np.concatenate([seen_keys(case.visibility, s.query_len, s.context_len, m).any(1) for s, m in lengths])
        assert not rows.all()
        assert rows.any()


@pytest.mark.parametrize("mask", [*OTHERS, Custom(), Custom(causal=False), Custom(empty_rows=True)])
@pytest.mark.parametrize("window", [0, 1, 3])
def test_a_row_sees_what_bits_mask_and_window_allow(mask: Mask, window: int) -> None:
    case = replace(CASE, mask=mask, window=window)
    bits = custom_masks(case) or (None,) * len(SEQUENCES)
    for index, sequence in enumerate(SEQUENCES):
        found = seen_keys(case.visibility, sequence.query_len, sequence.context_len, bits[index])
        for row in range(sequence.query_len):
            keys = case.visibility.keys_of(case.visibility.position(row, sequence.context_len), sequence.seq_len)
            own = bits[index]
            expected = [key in keys and (own is None or bool(own[row, key])) for key in range(sequence.seq_len)]
            assert found[row].tolist() == expected
            assert [sees(case, index, row, key) for key in range(sequence.seq_len)] == expected


@pytest.mark.parametrize("mask", [*OTHERS, *(Custom(bits, causal) for bits in ALL_BITS for causal in (True, False))])
@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("poisoned", [True, False])
def test_exactly_the_keys_that_no_row_needs_hold_poison(mask: Mask, window: int, poisoned: bool) -> None:
    if isinstance(mask, Custom):
        mask = Custom(mask.bits, mask.causal, poisoned=poisoned)
    case = replace(CASE, mask=mask, window=window)
    tensors, pages = materialise(case), page_map(case)
    starts = np.cumsum([0, *(s.seq_len for s in SEQUENCES)])
    for index, sequence in enumerate(SEQUENCES):
        bits = custom_masks(case)[index] if custom_masks(case) else None
        lengths = sequence.query_len, sequence.context_len
        exact = seen_keys(case.visibility, *lengths, bits).any(0)
        needed = needed_keys(case.visibility, *lengths, bits)
        assert not (exact & ~needed).any()
        if poisoned or not isinstance(mask, Custom):
            assert np.array_equal(exact, needed)
        assert np.array_equal(needed, tensors.needed_keys(index))
        slots = pages.slots[starts[index] : starts[index + 1]]
        for cache, packed in ((tensors.key_slots, tensors.new_keys), (tensors.value_slots, tensors.new_values)):
            assert packed is not None
            stored = cache.flatten(0, 1)[slots].isnan().flatten(1).any(1).numpy()
            assert np.array_equal(stored, ~needed)
            first = sum(tensors.query_lens[:index])
            new = packed[first : first + sequence.query_len].isnan().flatten(1).any(1).numpy()
            assert np.array_equal(new, ~needed[sequence.context_len :])


def test_bits_follow_their_sequence() -> None:
    tensors = materialise(CASE)
    changed, _ = arranged(materialise(CASE), (3, None, 0))
    for new, old in ((0, 3), (2, 0)):
        own, before = changed.mask_of(new), tensors.mask_of(old)
        assert own is not None
        assert before is not None
        assert np.array_equal(own, before)
    assert changed.custom_mask is not None
    assert changed.custom_mask.numel() == sum(changed.mask_sizes)
