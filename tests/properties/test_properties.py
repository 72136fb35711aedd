"""Each property catches a target that breaks it, and names it; the right target holds them all."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
from fuzz_attn.engine.messages import Answer, Order
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.properties.catalogue import relations_of
from fuzz_attn.properties.check import LAUNCH, check
from fuzz_attn.properties.exact import with_other_poison
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.targets.target import load_target

JudgeOf = Callable[[str], Callable[[Order], Answer]]

SPECIMENS: dict[str, tuple[str, str, str]] = {
    "last_row_unwritten": ("oracle", "unwritten", r"64 of 128 elements wrong, 64 never written"),
    "poison_leaks": ("oracle", "nan", r"\d+ of 128 elements wrong, \d+ NaN"),
    "raises": (
        "oracle",
        "exception",
        r"raised ValueError: longest=21 must not exceed 8 at .*misbehaving.py:\d+$",
    ),
    "writes_an_input": ("inputs_unchanged", "input_changed", r"changed its input query"),
    "writes_table_padding": ("inputs_unchanged", "input_changed", r"changed its input block_table"),
    "writes_padded_rows": ("nothing_else_written", "written_outside", r"^256 bytes of the output's memory"),
    "writes_between_rows": ("nothing_else_written", "written_outside", r"^\d+ bytes of the output's memory"),
}
"""Target: the property and the kind of its verdict, what the message says."""

ONE_KEY = AttentionCase(sequences=(Sequence(1), Sequence(1)), heads=HeadLayout(head_size=4))


@pytest.mark.parametrize("name", SPECIMENS)
def test_a_specimen_is_caught_and_named(name: str, case: AttentionCase, judge_of: JudgeOf) -> None:
    property_name, kind, message = SPECIMENS[name]
    verdict = judge_of(name)(Order(case)).verdict
    assert (verdict.property_name, verdict.kind) == (property_name, kind)
    assert re.search(message, verdict.message), verdict.message


def test_every_launch_property_has_a_specimen() -> None:
    """Those of the convex hull are in test_hull.py."""
    assert {name for name, _, _ in SPECIMENS.values()} | {"sanitizers", "value_range"} == set(LAUNCH)


class Sanitizing(InterpreterBackend):
    """A backend that sees something wrong in every launch."""

    def __init__(self, *observations: Observation) -> None:
        super().__init__()
        self.observations = observations

    @contextmanager
    def running(self) -> Iterator[Watch]:
        yield Watch(list(self.observations))


@pytest.mark.parametrize(("seen", "more"), [(1, ""), (3, " (and 2 more findings)")])
def test_what_a_sanitizer_sees_is_a_verdict(
    seen: int, more: str, case: AttentionCase, spec: Callable[[str], str]
) -> None:
    backend = Sanitizing(*[Observation("race", "two programs wrote one element")] * seen)
    verdict = check(Experiment(case, load_target(spec("unified_attention")), backend))
    assert (verdict.property_name, verdict.kind, verdict.wrong) == ("sanitizers", "race", seen)
    assert verdict.message == f"two programs wrote one element{more}"


@pytest.mark.parametrize("name", ["unified_attention", "takes_anything", "without_sinks"])
def test_a_right_target_passes(name: str, case: AttentionCase, judge_of: JudgeOf) -> None:
    for relation in (None, *relations_of(case, Domain())):
        verdict = judge_of(name)(Order(case, relation)).verdict
        assert verdict.passed, (relation, verdict.message)
        assert verdict.ratio is not None
        assert 0.0 < verdict.ratio <= 1.0


@pytest.mark.parametrize("name", ["nondeterministic", "peeks_at_poison"])
def test_a_relation_that_is_not_asked_is_not_answered(name: str, case: AttentionCase, judge_of: JudgeOf) -> None:
    assert judge_of(name)(Order(case)).verdict.passed


def test_a_launch_property_answers_before_a_relation(case: AttentionCase, judge_of: JudgeOf) -> None:
    assert judge_of("writes_padded_rows")(Order(case, "determinism")).verdict.property_name == "nothing_else_written"


def test_an_exception_of_the_second_launch_alone_is_told(judge_of: JudgeOf, case: AttentionCase) -> None:
    verdict = judge_of("fails_second")(Order(case, "determinism")).verdict
    assert (verdict.property_name, verdict.kind) == ("determinism", "exception")
    assert verdict.message.startswith("only a second launch on the same input raised RuntimeError: not again")


@pytest.mark.parametrize("name", ["unified_attention", "last_row_unwritten"])
@pytest.mark.parametrize("sequences", [(), (Sequence(0, 5),)], ids=["no sequence", "only an empty one"])
def test_a_batch_without_tokens_passes(name: str, sequences: tuple[Sequence, ...], judge_of: JudgeOf) -> None:
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
def test_the_other_poison_differs_everywhere(case: AttentionCase, poison: PoisonRecipe) -> None:
    poisoned = replace(case, poison=poison)
    one, other = poison, with_other_poison(poisoned).poison
    assert (one.keys != other.keys, one.values != other.values, one.table != other.table, one.out != other.out) == (
        (True,) * 4
    )
    assert replace(with_other_poison(poisoned), poison=poison) == poisoned


def test_the_other_poison_changes_what_lies_around_and_nothing_else(case: AttentionCase) -> None:
    one, other = materialise(case), materialise(with_other_poison(case))
    assert one.query.view(torch.int32).equal(other.query.view(torch.int32))
    assert one.seq_lens.equal(other.seq_lens)
    assert not one.key_cache.equal(other.key_cache)
    assert not one.block_table.equal(other.block_table)


def test_an_unknown_relation_is_refused(judge_of: JudgeOf, case: AttentionCase) -> None:
    with pytest.raises(FuzzAttnError, match=r"^relation='oracle' must be one of: determinism, poison_independence, "):
        judge_of("unified_attention")(Order(case, "oracle"))
