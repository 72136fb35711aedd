"""Each launch property catches a target that breaks it, and right targets pass all of them."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace as replaced
from functools import wraps
from itertools import count
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fuzz_attn.backends.backend import Observation, Watch
from fuzz_attn.backends.interpreter import InterpreterBackend
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import HeadLayout, Sequence
from fuzz_attn.case.recipes import PoisonRecipe
from fuzz_attn.engine.orders import Answer, Order
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.properties.check import LAUNCH_PROPERTIES, all_failures, check, comparison_of
from fuzz_attn.properties.comparisons import WithinBound, reference_of
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.relations import relations_of, with_other_poison
from fuzz_attn.targets.loading import load_target

JudgeOf = Callable[[str], Callable[[Order], Answer]]

BROKEN: dict[str, tuple[str, str, str]] = {
    "last_row_unwritten": ("oracle", "unwritten", r"64 of 128 elements wrong, 64 never written"),
    "poison_leaks": ("oracle", "nan", r"\d+ of 128 elements wrong, \d+ NaN"),
    "raises": (
        "oracle",
        "exception",
        r"raised RuntimeError: longest=21 must not exceed 8 at .*misbehaving.py:\d+$",
    ),
    "asserts": (
        "oracle",
        "exception",
        r"raised AssertionError: assert int\(seqused_k.max\(\)\) <= 8 at .*misbehaving.py:\d+$",
    ),
    "writes_an_input": ("inputs_unchanged", "input_changed", r"changed its input query"),
    "writes_table_padding": ("inputs_unchanged", "input_changed", r"changed its input block_table"),
    "writes_padded_rows": ("nothing_else_written", "written_outside", r"^256 bytes of the output's memory"),
    "writes_between_rows": ("nothing_else_written", "written_outside", r"^\d+ bytes of the output's memory"),
}
"""Target: the property that it breaks, the kind of the verdict and its message."""

ONE_KEY = AttentionCase(sequences=(Sequence(1), Sequence(1)), heads=HeadLayout(head_size=4))


@pytest.mark.parametrize("name", BROKEN)
def test_broken_target_fails_its_property(name: str, case: AttentionCase, judge_of: JudgeOf) -> None:
    property_name, kind, message = BROKEN[name]
    verdict = judge_of(name)(Order(case)).verdict
    assert (verdict.property_name, verdict.kind) == (property_name, kind)
    assert re.search(message, verdict.message), verdict.message


def test_every_launch_property_has_a_broken_target() -> None:
    """Sanitizers are tested below, the value range and few values in modules of their own."""
    others = {"sanitizers", "value_range", "few_values"}
    assert {name for name, _, _ in BROKEN.values()} | others == set(LAUNCH_PROPERTIES)


class Sanitizing(InterpreterBackend):
    """A backend whose sanitizers find something in every launch."""

    def __init__(self, *observations: Observation) -> None:
        super().__init__()
        self.observations = observations

    @contextmanager
    def running(self) -> Iterator[Watch]:
        yield Watch(list(self.observations))


@pytest.mark.parametrize(("seen", "more"), [(1, ""), (3, " (and 2 more findings there)")])
def test_finding_of_a_sanitizer_fails(seen: int, more: str, case: AttentionCase, spec: Callable[[str], str]) -> None:
    backend = Sanitizing(*[Observation("race", "two programs wrote one element")] * seen)
    verdict = check(Experiment(case, load_target(spec("unified_attention")), backend))
    assert (verdict.property_name, verdict.kind, verdict.wrong) == ("sanitizers", "race", seen)
    assert verdict.message == f"two programs wrote one element{more}"


@pytest.mark.parametrize(
    ("target", "kinds"),
    [("poison_leaks", ["nan"]), ("last_row_unwritten", ["race", "unwritten"])],
)
def test_a_race_that_nan_makes_is_none_of_its_own(
    target: str, kinds: list[str], case: AttentionCase, spec: Callable[[str], str]
) -> None:
    backend = Sanitizing(Observation("race", "two programs wrote one element"))
    failures = all_failures(Experiment(case, load_target(spec(target)), backend))
    assert [failure.kind for failure in failures] == kinds


class SanitizingSecond(Sanitizing):
    """A backend whose sanitizers find something in every launch but the first."""

    @contextmanager
    def running(self) -> Iterator[Watch]:
        yield Watch(list(self.observations) if self.ran else [])
        self.ran = True

    ran = False


def test_a_finding_of_only_the_second_launch_fails(case: AttentionCase, spec: Callable[[str], str]) -> None:
    backend = SanitizingSecond(Observation("race", "two programs wrote one element", "kernel.py:7"))
    verdict = check(Experiment(case, load_target(spec("unified_attention")), backend), "determinism")
    assert (verdict.property_name, verdict.kind, verdict.site) == ("determinism", "race", "kernel.py:7")
    assert verdict.message == "only a second launch on the same input: two programs wrote one element"


def test_a_second_launch_of_the_same_shape_may_not_be_refused(case: AttentionCase, spec: Callable[[str], str]) -> None:
    right, calls = load_target(spec("unified_attention")), count()

    def refuses_once(**given: Any) -> None:
        if next(calls) == 1:
            raise ValueError("no second call")
        right.call(**given)

    target = replaced(right, call=wraps(right.call)(refuses_once))
    experiment = Experiment(case, target, InterpreterBackend(), strict=False)
    verdict = check(experiment, "determinism")
    assert (verdict.property_name, verdict.kind) == ("determinism", "exception")
    assert "no second call" in verdict.message


def test_a_second_launch_may_be_off_by_its_own_bound_only(case: AttentionCase, spec: Callable[[str], str]) -> None:
    experiment = Experiment(case, load_target(spec("unified_attention")), InterpreterBackend())
    comparison = comparison_of("batch_order", experiment)
    assert isinstance(comparison, WithinBound)
    assert comparison.own is not None
    reference = reference_of(comparison, experiment)
    assert bool((reference["out"].bound >= comparison.own["out"].bound).all())
    assert bool((reference["out"].bound <= 1.001 * comparison.own["out"].bound).all())


@pytest.mark.parametrize("name", ["unified_attention", "takes_any_keyword", "without_sinks"])
def test_right_target_passes(name: str, case: AttentionCase, judge_of: JudgeOf) -> None:
    for relation in (None, *relations_of(case, Domain())):
        verdict = judge_of(name)(Order(case, relation)).verdict
        assert verdict.passed, (relation, verdict.message)
        assert verdict.ratio is not None
        assert 0.0 < verdict.ratio <= 1.0


@pytest.mark.parametrize("name", ["nondeterministic", "depends_on_poison"])
def test_relation_is_not_checked_without_a_request(name: str, case: AttentionCase, judge_of: JudgeOf) -> None:
    assert judge_of(name)(Order(case)).verdict.passed


def test_launch_properties_are_checked_before_the_relation(case: AttentionCase, judge_of: JudgeOf) -> None:
    assert judge_of("writes_padded_rows")(Order(case, "determinism")).verdict.property_name == "nothing_else_written"


def test_exception_of_only_the_second_launch_is_reported(judge_of: JudgeOf, case: AttentionCase) -> None:
    verdict = judge_of("fails_second")(Order(case, "determinism")).verdict
    assert (verdict.property_name, verdict.kind) == ("determinism", "exception")
    assert verdict.message.startswith("only a second launch on the same input raised RuntimeError: not again")


@pytest.mark.parametrize("name", ["unified_attention", "last_row_unwritten"])
@pytest.mark.parametrize("sequences", [(), (Sequence(0, 5),)], ids=["no sequence", "only an empty one"])
def test_batch_of_no_tokens_passes(name: str, sequences: tuple[Sequence, ...], judge_of: JudgeOf) -> None:
    assert judge_of(name)(Order(replace(ONE_KEY, sequences=sequences))).verdict.passed


@given(
    st.builds(
        PoisonRecipe,
        keys=st.sampled_from(("nan", "inf", "negative_inf", "huge")),
        values=st.sampled_from(("nan", "inf", "negative_inf", "huge")),
        table=st.sampled_from(("zero", "negative", "one_past", "huge")),
        out=st.sampled_from((0, 1)),
    )
)
def test_other_poison_differs_everywhere(case: AttentionCase, poison: PoisonRecipe) -> None:
    poisoned = replace(case, poison=poison)
    one, other = poison, with_other_poison(poisoned).poison
    assert (one.keys != other.keys, one.values != other.values, one.table != other.table, one.out != other.out) == (
        (True,) * 4
    )
    assert replace(with_other_poison(poisoned), poison=poison) == poisoned


def test_other_poison_changes_only_unused_memory(case: AttentionCase) -> None:
    one, other = materialise(case), materialise(with_other_poison(case))
    assert one.query.view(torch.int32).equal(other.query.view(torch.int32))
    assert one.seq_lens.equal(other.seq_lens)
    assert not one.key_cache.equal(other.key_cache)
    assert not one.block_table.equal(other.block_table)


def test_unknown_relation_is_refused(judge_of: JudgeOf, case: AttentionCase) -> None:
    with pytest.raises(FuzzAttnError, match=r"^relation='oracle' must be one of: determinism, poison_independence, "):
        judge_of("unified_attention")(Order(case, "oracle"))
