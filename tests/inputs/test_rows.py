"""Rows: every row and key of a batch, by brute force. Numbers: what they do not depend on."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import CallForm, Sequence, Strides
from fuzz_attn.case.recipes import PoisonRecipe
from fuzz_attn.engine.schedule import play_round
from fuzz_attn.inputs import numbers
from fuzz_attn.inputs.batch_rows import rows_of
from fuzz_attn.strategies.cases import cases
from fuzz_attn.targets.loading import load_target

QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)


@QUIET
@given(cases(Domain()))
def test_rows_and_keys_of_a_batch(case: AttentionCase) -> None:
    rows = rows_of(case)
    expected_rows, expected_keys, start = [], [], 0
    for number, sequence in enumerate(case.sequences):
        for token in range(sequence.query_len):
            position = sequence.context_len + token
            seen = [key for key in range(position + 1) if not case.window or position - key < case.window]
            expected_rows.append((position, min(seen), start, sequence.seq_len))
        for position in range(sequence.seq_len):
            expected_keys.append((position, number, sequence.context_len, sequence.seq_len))
        start += sequence.seq_len
    actual_rows = np.stack((rows.position, rows.first, rows.start, rows.seq_len), axis=-1)
    actual_keys = np.stack((rows.key_position, rows.key_sequence, rows.key_context, rows.key_seq_len), axis=-1)
    assert [tuple(row) for row in actual_rows.tolist()] == expected_rows
    assert [tuple(key) for key in actual_keys.tolist()] == expected_keys


def test_window_of_two_by_hand() -> None:
    rows = rows_of(AttentionCase(sequences=(Sequence(2, 1), Sequence(0, 2), Sequence(1)), window=2))
    assert rows.position.tolist() == [1, 2, 0]
    assert rows.first.tolist() == [0, 1, 0]
    assert rows.start.tolist() == [0, 0, 5]
    assert rows.key_position.tolist() == [0, 1, 2, 0, 1, 0]
    assert rows.key_sequence.tolist() == [0, 0, 0, 1, 1, 2]


def test_no_sequences_have_no_rows() -> None:
    rows = rows_of(AttentionCase(sequences=()))
    assert rows.position.shape == rows.key_position.shape == (0,)


DRAWN = 60


def found_anew(case: AttentionCase) -> numbers.Numbers:
    numbers._numbers_of.cache_clear()
    return numbers.numbers_of(case)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", FAMILIES)
def test_numbers_do_not_depend_on_poison_strides_and_form(family: Family) -> None:
    drawn: list[AttentionCase] = []
    play_round(load_target(family).domain, 1, DRAWN, lambda case, _: drawn.append(case))
    poison = PoisonRecipe("zero", "zero", "zero", 1)
    for case in drawn:
        other = msgspec.structs.replace(case, poison=poison, strides=Strides(), form=CallForm())
        one, same = found_anew(case), found_anew(other)
        for name in ("queries", "keys", "values"):
            np.testing.assert_array_equal(getattr(one, name), getattr(same, name))
    assert len({case.poison for case in drawn}) > 1
    assert len({case.strides for case in drawn}) > 1
    assert len({case.form for case in drawn}) > 1
