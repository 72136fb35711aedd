"""The numbers of a case do not depend on what a relation changes around them, so they are found once for both."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import CallForm, Strides
from fuzz_attn.case.recipes import PoisonRecipe
from fuzz_attn.engine.schedule import play_round
from fuzz_attn.inputs import numbers
from fuzz_attn.targets.loading import load_target

CASES = 60


def found_anew(case: AttentionCase) -> numbers.Numbers:
    numbers._numbers_of.cache_clear()
    return numbers.numbers_of(case)


@pytest.mark.parametrize("family", FAMILIES)
def test_numbers_do_not_depend_on_poison_strides_and_form(family: Family) -> None:
    drawn: list[AttentionCase] = []
    play_round(load_target(family).domain, 1, CASES, lambda case, _: drawn.append(case))
    poison = PoisonRecipe("zero", "zero", "zero", 1)
    for case in drawn:
        other = msgspec.structs.replace(case, poison=poison, strides=Strides(), form=CallForm())
        one, same = found_anew(case), found_anew(other)
        for name in ("queries", "keys", "values"):
            np.testing.assert_array_equal(getattr(one, name), getattr(same, name))
    assert len({case.poison for case in drawn}) > 1
    assert len({case.strides for case in drawn}) > 1
    assert len({case.form for case in drawn}) > 1
