"""Each relation catches a target that breaks it alone, and holds for a right one in every case that it is for."""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import DTypes, HeadLayout, LaunchHints, PageLayout, Scales, Sequence
from fuzz_attn.case.recipes import AlibiRecipe, ConstantValues, QQBiasRecipe, SinkRecipe
from fuzz_attn.engine.messages import Answer, Order
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.inputs.page_map import page_map
from fuzz_attn.properties import bounded, catalogue, check
from fuzz_attn.properties.catalogue import OWN_FAMILIES, chosen, num_pages, other_families, relations_of
from fuzz_attn.strategies.cases import cases
from fuzz_attn.targets.target import BUILT_IN_NAMES, Target, built_in

JudgeOf = Callable[[str], Callable[[Order], Answer]]

PLAIN = AttentionCase(
    sequences=(Sequence(3, 9), Sequence(0, 2), Sequence(1, 20)),
    heads=HeadLayout(num_kv_heads=2, num_queries_per_kv=2, head_size=8),
    pages=PageLayout(block_size=4),
    softmax_scale=0.35,
)
CHOICES = st.builds(lambda high, low: 64 * high + low, *[st.sampled_from(range(64))] * 2)
FP8_CACHE = DTypes(kv="float8_e4m3fn")
DOMAIN = Domain(features=Domain().features - {"fp8_q"}, paths=("auto", "2d", "3d"))


@dataclass(frozen=True)
class Specimen:
    """A target of tests/sample_targets, the one relation that it breaks in the plain case so changed, and how that
    reads."""

    target: str
    relation: str
    message: str
    kind: str = "different_bits"
    case: dict[str, Any] = field(default_factory=dict)


SPOILT = r": 8 of 128 elements wrong, worst "
SPECIMENS = (
    Specimen("nondeterministic", "determinism", r"in 1 \(token, head\) rows, first at token 0", "nondeterministic"),
    Specimen(
        "peeks_at_poison",
        "poison_independence",
        r"^a launch with other poison in slots, table entries and padding that nobody may read differs in 1 ",
        "poison_dependent",
    ),
    Specimen("moves_with_its_pages", "page_permutation", r"^a launch with the physical pages in reverse order "),
    Specimen("feels_its_strides", "other_strides", r"^a launch with other strides differs in 1 \(token, head\) rows, "),
    Specimen(
        "needs_an_empty_sequence",
        "empty_sequences",
        r"^a launch without the empty sequences differs in 1 ",
        case={"launch": LaunchHints(path="2d")},
    ),
    Specimen(
        "needs_an_empty_sequence_badly",
        "empty_sequences",
        rf"^a launch without the empty sequences{SPOILT}",
        "mismatch",
    ),
    *(
        Specimen(target, relation, rf"^{change}{SPOILT}", "mismatch", case)
        for target, relation, change, case in (
            ("wants_the_longest_first", "batch_order", "a launch of the batch in reverse order", {}),
            ("merges_wrongly", "segments", "a launch by 3D in 1 segments", {}),
            (
                "wants_slopes_that_fall",
                "head_permutation",
                "a launch with the heads in reverse order",
                {"alibi": AlibiRecipe()},
            ),
            ("wants_small_keys", "key_shift", "a launch with one vector added to all keys", {}),
            (
                "wants_values_that_are_not_zero",
                "value_shift",
                "a launch with one vector added to all values",
                {"values": ConstantValues()},
            ),
            (
                "wants_positive_values",
                "value_scale",
                "a launch with all values times -2",
                {"values": ConstantValues()},
            ),
            ("wants_even_windows", "narrower_window", "a launch with a window of 7", {"window": 8}),
            ("wants_no_window", "wide_window", "a launch with a window of 21", {}),
            ("wants_no_slopes", "zero_slopes", "a launch with ALiBi slopes of 0", {}),
            ("wants_no_bias", "zero_bias", "a launch with a query-query bias of 0", {}),
            ("wants_no_sinks", "absent_sinks", "a launch with sinks of -inf", {}),
            ("wants_no_scales", "unit_scales", "a launch with all scales 1", {}),
        )
    ),
    Specimen(
        "fears_to_be_alone",
        "alone_in_batch",
        r"^a launch of the batch reduced to sequence 0: 8 of 96 elements wrong",
        "mismatch",
    ),
)


@pytest.mark.parametrize("specimen", SPECIMENS, ids=lambda specimen: specimen.target)
def test_a_specimen_is_caught_by_the_relation_that_it_breaks(specimen: Specimen, judge_of: JudgeOf) -> None:
    case = replace(PLAIN, **specimen.case)
    assert specimen.relation in relations_of(case, DOMAIN)
    verdict = judge_of(specimen.target)(Order(case, specimen.relation)).verdict
    assert (verdict.property_name, verdict.kind) == (specimen.relation, specimen.kind)
    assert re.search(specimen.message, verdict.message), verdict.message


@pytest.mark.parametrize("specimen", SPECIMENS, ids=lambda specimen: specimen.target)
def test_a_specimen_breaks_that_relation_alone(specimen: Specimen, judge_of: JudgeOf) -> None:
    case = replace(PLAIN, **specimen.case)
    others = [None, *(name for name in relations_of(case, DOMAIN) if name != specimen.relation)]
    if specimen.relation == "determinism":
        others = [None]  # whatever compares bits finds this one, and says that it is the target's determinism
    others = [name for name in others if name != "other_family"]  # which launches no target but our own
    for relation in others:
        verdict = judge_of(specimen.target)(Order(case, relation)).verdict
        assert verdict.passed, (relation, verdict.message)


def test_every_relation_has_a_specimen() -> None:
    assert {specimen.relation for specimen in SPECIMENS} | {"other_family"} == set(check.RELATIONS)


DECODE = replace(PLAIN, sequences=(Sequence(1, 9), Sequence(1, 20)))


def writes_zeros(output: torch.Tensor, **_: Any) -> None:
    output.zero_()


def test_a_family_that_disagrees_is_caught(judge_of: JudgeOf, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Target:
        own = built_in(name)
        assert own is not None
        return dataclasses.replace(own, call=writes_zeros)

    assert other_families(DECODE) == ("paged", "context", "chunked")
    assert judge_of("unified_attention")(Order(DECODE, "other_family")).verdict.passed
    monkeypatch.setattr(bounded, "built_in", broken)
    verdict = judge_of("unified_attention")(Order(DECODE, "other_family")).verdict
    assert (verdict.property_name, verdict.kind) == ("other_family", "mismatch")
    assert verdict.message.startswith("the same problem on this project's own kernel of the family paged: 64 of 64 ")


def test_the_families_that_a_problem_is_asked_of_are_those_with_kernels() -> None:
    assert OWN_FAMILIES == BUILT_IN_NAMES


@pytest.mark.parametrize(
    ("relation", "changes"),
    [
        ("page_permutation", {"sequences": (Sequence(3),)}),
        ("empty_sequences", {"family": "paged", "sequences": (Sequence(1, 3),)}),
        ("batch_order", {"sequences": (Sequence(3), Sequence(0, 5))}),
        ("head_permutation", {"heads": HeadLayout(head_size=8)}),
        ("key_shift", {"softcap": 3.0}),
        ("key_shift", {"sinks": SinkRecipe()}),
        ("key_shift", {"dtypes": FP8_CACHE, "scales": Scales(k=0.3)}),
        ("value_shift", {"dtypes": FP8_CACHE, "scales": Scales(v=0.3)}),
        ("value_shift", {"dtypes": DTypes(out="float8_e5m2")}),
        ("value_shift", {"sinks": SinkRecipe()}),
        ("narrower_window", {"window": 1}),
        ("narrower_window", {"window": 22}),
        ("other_family", {"softcap": 3.0}),
        ("wide_window", {"window": 3}),
        ("zero_slopes", {"alibi": AlibiRecipe()}),
        ("zero_bias", {"qq_bias": QQBiasRecipe()}),
        ("absent_sinks", {"sinks": SinkRecipe()}),
    ],
)
def test_a_relation_that_does_not_hold_is_not_asked(relation: str, changes: dict[str, Any]) -> None:
    assert relation not in relations_of(replace(PLAIN, **changes), DOMAIN)


def test_a_relation_that_does_not_hold_is_refused(judge_of: JudgeOf) -> None:
    with pytest.raises(FuzzAttnError, match=r"^relation='narrower_window' does not hold for the case$"):
        judge_of("unified_attention")(Order(PLAIN, "narrower_window"))


@pytest.mark.parametrize("scale", [1.0, 0.125, 2.0**-8, 32.0])
def test_sums_of_fp8_numbers_are_exact_where_their_scale_is_a_power_of_two(scale: float) -> None:
    case = replace(PLAIN, dtypes=FP8_CACHE, scales=Scales(k=scale, v=scale))
    assert {"key_shift", "value_shift"} <= set(relations_of(case, DOMAIN))


def test_the_catalogue_and_the_check_know_the_same_relations() -> None:
    assert list(catalogue.RELATIONS) == list(check.RELATIONS)


def test_whatever_compares_bits_blames_a_target_that_is_not_deterministic(judge_of: JudgeOf) -> None:
    for relation in ("poison_independence", "page_permutation", "other_strides"):
        verdict = judge_of("nondeterministic")(Order(PLAIN, relation)).verdict
        assert (verdict.property_name, verdict.kind) == ("determinism", "nondeterministic")


@settings(max_examples=600, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases(domain=DOMAIN), choice=CHOICES)
def test_a_right_target_passes_whatever_it_is_asked(judge_of: JudgeOf, case: AttentionCase, choice: int) -> None:
    relation = chosen(choice, case, DOMAIN)
    verdict = judge_of("unified_attention")(Order(case, relation)).verdict
    assert verdict.passed, (relation, verdict.message)


@pytest.mark.parametrize("sequences", [(), (Sequence(0, 5),)], ids=["no sequence", "only an empty one"])
def test_a_batch_without_tokens_passes(sequences: tuple[Sequence, ...], judge_of: JudgeOf) -> None:
    case = replace(PLAIN, sequences=sequences)
    assert relations_of(case, DOMAIN) == ("determinism", "poison_independence")
    for relation in relations_of(case, DOMAIN):
        assert judge_of("nondeterministic")(Order(case, relation)).verdict.passed


@settings(max_examples=200, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases(domain=DOMAIN), choice=CHOICES)
def test_the_relation_chosen_is_one_that_holds(case: AttentionCase, choice: int) -> None:
    assert chosen(choice, case, DOMAIN) in relations_of(case, DOMAIN)


def test_each_relation_has_a_fair_share_of_the_choices() -> None:
    holding = relations_of(PLAIN, DOMAIN)
    found = [chosen(choice, PLAIN, DOMAIN) for choice in range(1000)]
    for name in holding:
        assert 0.6 < found.count(name) * len(holding) / 1000 < 1.5, name


def test_a_choice_keeps_its_relation_while_that_holds() -> None:
    smaller = replace(PLAIN, sequences=(Sequence(2),))
    held = set(relations_of(smaller, DOMAIN))
    assert held < set(relations_of(PLAIN, DOMAIN))
    for choice in range(100):
        before = chosen(choice, PLAIN, DOMAIN)
        assert chosen(choice, smaller, DOMAIN) == before or before not in held


@settings(max_examples=300, database=None, deadline=None)
@given(case=cases())
def test_pages_are_counted_as_the_page_map_lays_them(case: AttentionCase) -> None:
    assert max(1, num_pages(case)) == page_map(case).num_blocks - case.pages.first_block
