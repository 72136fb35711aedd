"""A failure names the poison that reaches the output, also the default one, and only that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.recipes import PoisonRecipe
from fuzz_attn.engine.orders import Answer, Order

JudgeOf = Callable[[str], Callable[[Order], Answer]]


@pytest.mark.parametrize(
    ("poison", "words"),
    [
        (PoisonRecipe(), "NaN in dead values"),
        (PoisonRecipe(keys="huge", values="inf"), "Inf in dead values"),
    ],
)
def test_poison_that_leaks_is_named(poison: PoisonRecipe, words: str, case: AttentionCase, judge_of: JudgeOf) -> None:
    order = Order(replace(case, poison=poison), explain=True)
    assert judge_of("poison_leaks")(order).verdict.message.endswith(f"; poison reaches the output: {words}")


@pytest.mark.parametrize("name", ["last_row_unwritten", "transposed_bias", "nondeterministic", "raises", "asserts"])
def test_failure_without_poison_names_none(name: str, case: AttentionCase, judge_of: JudgeOf) -> None:
    assert "poison" not in judge_of(name)(Order(case, "determinism", explain=True)).verdict.message
