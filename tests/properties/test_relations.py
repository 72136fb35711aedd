"""Each metamorphic relation catches a target that breaks only this one, and a right target passes all of them."""

import dataclasses
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.case.aspects import UNPUBLISHED_FEATURES
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import DTypes, HeadLayout, LaunchHints, PageLayout, Scales, Sequence, Strides
from fuzz_attn.case.recipes import (
    CAUSAL,
    AlibiRecipe,
    ConstantValues,
    Full,
    IntegerValues,
    LevelScores,
    LogSumExp,
    Mask,
    QQBiasRecipe,
    SinkRecipe,
    TopLeft,
)
from fuzz_attn.engine.case_judge import CaseJudge
from fuzz_attn.engine.orders import Answer, Order
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.inputs import transforms
from fuzz_attn.inputs.batch_rows import page_map
from fuzz_attn.inputs.tensors import Store, materialise
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties import relation_launches
from fuzz_attn.properties.check import check, check_relation
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.relations import (
    OWN_FAMILIES,
    RELATIONS,
    chosen_relation,
    num_pages,
    other_families,
    relations_of,
    second_case,
)
from fuzz_attn.strategies.cases import cases
from fuzz_attn.strategies.compile_keys import key_pool
from fuzz_attn.strategies.draws import Sample
from fuzz_attn.targets.built_in import BUILT_IN_NAMES, built_in
from fuzz_attn.targets.loading import load_target
from fuzz_attn.targets.target import Target

JudgeOf = Callable[[str], Callable[[Order], Answer]]

PLAIN = AttentionCase(
    sequences=(Sequence(3, 9), Sequence(0, 2), Sequence(1, 20)),
    heads=HeadLayout(num_kv_heads=2, num_queries_per_kv=2, head_size=8),
    pages=PageLayout(block_size=4),
    softmax_scale=0.35,
)
CHOICES = st.builds(lambda high, low: 64 * high + low, *[st.sampled_from(range(64))] * 2)
FP8_CACHE = DTypes(kv="float8_e4m3fn")
DOMAIN = Domain(features=Domain().features - UNPUBLISHED_FEATURES - {"fp8_q"}, paths=("auto", "2d", "3d"))
"""What the target in torch promises."""


@dataclass(frozen=True)
class BrokenTarget:
    """A target of tests/sample_targets, the one relation that it breaks, and the verdict's message and kind.

    ``case`` are the fields in which the case differs from the plain one.
    """

    target: str
    relation: str
    message: str
    kind: str = "different_bits"
    case: dict[str, Any] = field(default_factory=dict)


ONE_ROW_WRONG = r": 8 of 128 elements wrong, worst "
BROKEN = (
    BrokenTarget("nondeterministic", "determinism", r"in 1 \(token, head\) rows, first at token 0", "nondeterministic"),
    BrokenTarget(
        "depends_on_poison",
        "poison_independence",
        r"^a launch with other poison in unused slots, table entries and padding differs in 1 ",
        "poison_dependent",
    ),
    BrokenTarget("depends_on_page_order", "page_permutation", r"^a launch with the physical pages in reverse order "),
    BrokenTarget(
        "depends_on_strides", "other_strides", r"^a launch with other strides differs in 1 \(token, head\) rows, "
    ),
    BrokenTarget(
        "depends_on_empty_sequences",
        "empty_sequences",
        r"^a launch without the empty sequences differs in 1 ",
        case={"launch": LaunchHints(path="2d")},
    ),
    BrokenTarget(
        "wrong_without_empty_sequences",
        "empty_sequences",
        rf"^a launch without the empty sequences{ONE_ROW_WRONG}",
        "mismatch",
    ),
    *(
        BrokenTarget(target, relation, rf"^{change}{ONE_ROW_WRONG}", "mismatch", case)
        for target, relation, change, case in (
            ("wrong_with_shortest_first", "batch_order", "a launch of the batch in reverse order", {}),
            ("wrong_in_segments", "segments", "a launch by 3D in 1 segments", {}),
            (
                "wrong_with_rising_slopes",
                "head_permutation",
                "a launch with the heads in reverse order",
                {"alibi": AlibiRecipe()},
            ),
            ("wrong_with_large_keys", "key_shift", "a launch with one vector added to all keys", {}),
            (
                "wrong_with_zero_values",
                "value_shift",
                "a launch with one vector added to all values",
                {"values": ConstantValues()},
            ),
            (
                "wrong_with_negative_values",
                "value_scale",
                "a launch with all values times -2",
                {"values": ConstantValues()},
            ),
            ("wrong_with_odd_window", "narrower_window", "a launch with a window of 7", {"window": 8}),
            ("wrong_with_window", "wide_window", "a launch with a window of 21", {}),
            ("wrong_with_slopes", "zero_slopes", "a launch with ALiBi slopes of 0", {}),
            ("wrong_with_qq_bias", "zero_bias", "a launch with a query-query bias of 0", {}),
            ("wrong_with_sinks", "absent_sinks", "a launch with sinks of -inf", {}),
            ("wrong_with_scales", "unit_scales", "a launch with all scales 1", {}),
        )
    ),
    BrokenTarget(
        "wrong_with_shared_pages",
        "sequence_twice",
        r"^a launch of the batch with sequence 0 twice, on the same pages: 8 of 224 elements wrong",
        "mismatch",
    ),
    BrokenTarget(
        "wrong_for_one_sequence",
        "alone_in_batch",
        r"^a launch of the batch reduced to sequence 0: 8 of 96 elements wrong",
        "mismatch",
    ),
)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.target)
def test_broken_target_fails_its_relation(broken: BrokenTarget, judge_of: JudgeOf) -> None:
    case = replace(PLAIN, **broken.case)
    assert broken.relation in relations_of(case, DOMAIN)
    verdict = judge_of(broken.target)(Order(case, broken.relation)).verdict
    assert (verdict.property_name, verdict.kind) == (broken.relation, broken.kind)
    assert re.search(broken.message, verdict.message), verdict.message


@pytest.mark.sampled(6)
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.target)
def test_broken_target_passes_all_other_relations(broken: BrokenTarget, judge_of: JudgeOf) -> None:
    case = replace(PLAIN, **broken.case)
    others = [None, *(name for name in relations_of(case, DOMAIN) if name != broken.relation)]
    if broken.relation == "determinism":
        others = [None]  # every comparison of bits fails, and reports determinism
    others = [name for name in others if name != "other_family"]  # this one launches a built-in target instead
    for relation in others:
        verdict = judge_of(broken.target)(Order(case, relation)).verdict
        assert verdict.passed, (relation, verdict.message)


ELSEWHERE = {"other_family", "causal_bits", "expanded_heads", "cut_by_keys", "own_slots", "configurations"}
"""Relations whose broken targets are below, or in the tests of a log-sum-exp or of named paths."""


@pytest.mark.parametrize("mask", [CAUSAL, Full(), TopLeft()])
def test_packed_keys_are_cut_where_the_last_token_sees_all_of_them(mask: Mask) -> None:
    packed = AttentionCase((Sequence(1, 9),), family="varlen", pages=PageLayout(1), lse=LogSumExp(), mask=mask)
    assert ("cut_by_keys" in relations_of(packed, Domain("varlen"))) == (mask != TopLeft())


@pytest.mark.parametrize("block_size", [1, 5])
def test_packed_keys_that_are_cut_are_those_of_both_halves(block_size: int) -> None:
    case = AttentionCase(
        (Sequence(2, 20), Sequence(0, 4), Sequence(3, 9)), family="varlen", pages=PageLayout(block_size)
    )
    old, (new, tokens) = materialise(case), transforms.cut_by_keys(materialise(case), 7)
    assert tokens.tolist() == [1, 4]
    assert new.cache_format.is_packed
    for sequence, (first, second) in enumerate(((0, 2), (1, 3))):
        lengths = [new.context_lens[part] + 1 for part in (first, second)]
        assert sum(lengths) == case.sequences[2 * sequence].seq_len
        whole = Store(old).gather(np.array([2 * sequence]), np.arange(sum(lengths))[None])
        parts = [
            Store(new).gather(np.array([part]), np.arange(length)[None])
            for part, length in zip((first, second), lengths, strict=True)
        ]
        for axis in range(2):
            assert torch.equal(torch.cat([part[axis] for part in parts], 2), whole[axis])


@pytest.mark.parametrize(("num_kv_heads", "holds"), [(16, True), (96, False)])
def test_a_batch_that_has_no_room_for_a_sequence_more_gets_none(num_kv_heads: int, holds: bool) -> None:
    far = AttentionCase(
        (Sequence(1, 25),),
        heads=HeadLayout(num_kv_heads, 1, 48),
        pages=PageLayout(block_size=1),
        strides=Strides(far=("cache_slot",)),
        family="varlen",
    )
    assert ("sequence_twice" in relations_of(far, Domain("varlen"))) == holds


def test_every_relation_has_a_broken_target() -> None:
    assert {broken.relation for broken in BROKEN} | ELSEWHERE == set(RELATIONS)


DECODE = replace(PLAIN, sequences=(Sequence(1, 9), Sequence(1, 20)))


def writes_zeros(output: torch.Tensor, **_: Any) -> None:
    output.zero_()


def test_wrong_kernel_of_another_family_fails(judge_of: JudgeOf, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Target:
        own = built_in(name)
        assert own is not None
        return dataclasses.replace(own, call=writes_zeros)

    assert other_families(DECODE) == ("paged", "context", "chunked")
    assert judge_of("unified_attention")(Order(DECODE, "other_family")).verdict.passed
    monkeypatch.setattr(relation_launches, "built_in", broken)
    verdict = judge_of("unified_attention")(Order(DECODE, "other_family")).verdict
    assert (verdict.property_name, verdict.kind) == ("other_family", "mismatch")
    assert verdict.message.startswith("the same problem on this project's own kernel of the family paged: 64 of 64 ")


LATENT = AttentionCase(
    (Sequence(1, 9), Sequence(1, 20)), "mla_decode", HeadLayout(1, 3, 12, 7), pages=PageLayout(4), softmax_scale=0.3
)


def test_attention_on_expanded_heads_is_the_latent_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    domain = load_target("mla_decode").domain
    judge = CaseJudge(load_target("mla_decode"), SimulatorBackend())
    assert "expanded_heads" in relations_of(LATENT, domain)
    assert "expanded_heads" not in relations_of(replace(LATENT, heads=HeadLayout(1, 3, 257, 7)), domain)
    assert judge.judge(Order(LATENT, "expanded_heads")).verdict.passed
    unified = built_in("unified")
    assert unified is not None
    broken = dataclasses.replace(unified, call=lambda out, **_: out.zero_())
    monkeypatch.setattr(relation_launches, "built_in", lambda name: broken)
    verdict = judge.judge(Order(LATENT, "expanded_heads")).verdict
    assert (verdict.property_name, verdict.kind) == ("expanded_heads", "mismatch")
    assert verdict.message.startswith("this project's unified attention on expanded heads: 72 of 72 elements wrong")


@pytest.mark.parametrize(
    ("family", "relation", "count", "least"),
    [
        pytest.param("mla_decode", "expanded_heads", 30, 0.3, marks=pytest.mark.slow),
        pytest.param("mla_decode", "cut_by_keys", 80, 0.1, marks=pytest.mark.slow),
        ("varlen", "cut_by_keys", 30, 0.1),
    ],
)
def test_a_healthy_kernel_passes(family: str, relation: str, count: int, least: float) -> None:
    target, backend, sample = load_target(family), SimulatorBackend(), Sample(Random(5))
    domain = target.domain.in_memory()
    keys = [key for key in key_pool(domain) if key.head_size <= 64][:60:6]
    drawn = (sample.draw(cases(domain=domain, keys=keys, variants=1)) for _ in range(1200))
    chosen = (case for case in drawn if case.total_keys < 300 and relation in relations_of(case, target.domain))
    ratios = [verdict_of(relation, Experiment(case, target, backend)).ratio or 0.0 for case in islice(chosen, count)]
    assert len(ratios) == count
    assert least < max(ratios) <= 1.0


def verdict_of(relation: str, experiment: Experiment) -> Verdict:
    verdict = check_relation(relation, experiment)
    assert verdict.passed, (experiment.case, verdict.message)
    return verdict


def test_every_family_has_a_built_in_target() -> None:
    assert tuple(FAMILIES) == BUILT_IN_NAMES
    assert set(OWN_FAMILIES) <= set(FAMILIES)


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
def test_relation_holds_only_where_it_has_a_meaning(relation: str, changes: dict[str, Any]) -> None:
    assert relation not in relations_of(replace(PLAIN, **changes), DOMAIN)


def test_check_refuses_a_relation_that_does_not_hold(judge_of: JudgeOf) -> None:
    with pytest.raises(FuzzAttnError, match=r"^relation='narrower_window' does not hold for the case$"):
        judge_of("unified_attention")(Order(PLAIN, "narrower_window"))


def test_a_wide_window_reaches_the_first_key_from_behind_the_last() -> None:
    case = AttentionCase((Sequence(4, -3),), family="varlen", pages=PageLayout(block_size=1), mask=TopLeft())
    for seed in range(3):
        experiment = Experiment(replace(case, seed=seed), load_target("varlen"), SimulatorBackend())
        assert check(experiment, "wide_window").passed


@pytest.mark.parametrize("scale", [1.0, 0.125, 2.0**-8, 32.0])
def test_fp8_caches_may_be_shifted_if_their_scale_is_a_power_of_two(scale: float) -> None:
    case = replace(PLAIN, dtypes=FP8_CACHE, scales=Scales(k=scale, v=scale))
    assert {"key_shift", "value_shift"} <= set(relations_of(case, DOMAIN))


def test_every_relation_has_one_function() -> None:
    functions = {
        name
        for name, function in vars(relation_launches).items()
        if inspect.isfunction(function)
        and function.__module__ == relation_launches.__name__
        and list(inspect.signature(function).parameters) == ["experiment"]
    }
    assert functions - {"_positions", "_roomy"} == set(RELATIONS)


def test_nondeterministic_target_fails_determinism_in_every_exact_relation(judge_of: JudgeOf) -> None:
    for relation in ("poison_independence", "page_permutation", "other_strides"):
        verdict = judge_of("nondeterministic")(Order(PLAIN, relation)).verdict
        assert (verdict.property_name, verdict.kind) == ("determinism", "nondeterministic")


@pytest.mark.parametrize("context_len", [2, 5, 6])
def test_keys_may_be_shifted_to_zero(context_len: int) -> None:
    """Where the shifted keys are 0, no weight is rounded, but the weights of the original problem are, in float64."""
    target = built_in("unified")
    assert target is not None
    case = AttentionCase(
        sequences=(Sequence(1, context_len),),
        heads=HeadLayout(head_size=16),
        softmax_scale=0.25,
        scores=LevelScores(level=-16.0, jitter=0.0),
        values=IntegerValues(),
        seed=1,
    )
    verdict = check(Experiment(case, target, SimulatorBackend()), "key_shift")
    assert verdict.passed, verdict.message


@settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases(domain=DOMAIN), choice=CHOICES)
def test_right_target_passes_every_relation(judge_of: JudgeOf, case: AttentionCase, choice: int) -> None:
    relation = chosen_relation(choice, case, DOMAIN)
    verdict = judge_of("unified_attention")(Order(case, relation)).verdict
    assert verdict.passed, (relation, verdict.message)


@pytest.mark.parametrize("sequences", [(), (Sequence(0, 5),)], ids=["no sequence", "only an empty one"])
def test_batch_without_tokens_passes(sequences: tuple[Sequence, ...], judge_of: JudgeOf) -> None:
    case = replace(PLAIN, sequences=sequences)
    assert relations_of(case, DOMAIN) == ("determinism", "poison_independence")
    for relation in relations_of(case, DOMAIN):
        assert judge_of("nondeterministic")(Order(case, relation)).verdict.passed


@settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases(domain=DOMAIN), choice=CHOICES)
def test_chosen_relation_holds(case: AttentionCase, choice: int) -> None:
    assert chosen_relation(choice, case, DOMAIN) in relations_of(case, DOMAIN)


def test_each_relation_has_a_fair_share_of_the_choices() -> None:
    holding = relations_of(PLAIN, DOMAIN)
    found = [chosen_relation(choice, PLAIN, DOMAIN) for choice in range(1000)]
    for name in holding:
        assert 0.6 < found.count(name) * len(holding) / 1000 < 1.5, name


def test_a_choice_keeps_its_relation_while_that_holds() -> None:
    smaller = replace(PLAIN, sequences=(Sequence(2),))
    held = set(relations_of(smaller, DOMAIN))
    assert held < set(relations_of(PLAIN, DOMAIN))
    for choice in range(100):
        before = chosen_relation(choice, PLAIN, DOMAIN)
        assert chosen_relation(choice, smaller, DOMAIN) == before or before not in held


@settings(database=None, deadline=None)
@given(case=cases())
def test_pages_are_counted_as_the_page_map_lays_them(case: AttentionCase) -> None:
    assert max(1, num_pages(case)) == page_map(case).num_blocks - case.pages.first_block


def test_bits_of_the_causal_mask_find_a_wrong_custom_mask() -> None:
    case, domain = replace(PLAIN, family="extend"), load_target("extend").domain
    assert "causal_bits" in relations_of(case, domain)
    for other in (replace(case, mask=Full()), PLAIN):
        assert "causal_bits" not in relations_of(other, domain if other.family == "extend" else DOMAIN)
    file = Path(__file__).parents[1] / "sample_targets" / "extend_in_torch.py"
    right, wrong = (
        CaseJudge(load_target(f"{file}:{name}"), SimulatorBackend())
        for name in ("extend_attention", "wrong_with_custom_mask")
    )
    for relation in relations_of(case, right.target.domain):
        assert right.judge(Order(case, relation)).verdict.passed, relation
    verdict = wrong.judge(Order(case, "causal_bits")).verdict
    assert (verdict.property_name, verdict.kind) == ("causal_bits", "mismatch")
    assert verdict.message.startswith("a launch with the bits of the causal mask as a custom one: 8 of 128 ")


TOKENS = Path(__file__).parents[1] / "sample_targets" / "token_decode_in_torch.py"
SHARED = replace(
    DECODE, family="token_decode", pages=PageLayout(block_size=1, permuted=True, shared_prefix=2, repeated=True)
)


@pytest.mark.parametrize("family", ["extend", "token_decode"])
def test_slots_are_shared_only_in_caches_of_slots(family: Family) -> None:
    domain, case = load_target(family).domain, replace(SHARED, family=family)
    assert "own_slots" in relations_of(case, domain)
    alone = replace(case, pages=msgspec.structs.replace(case.pages, shared_prefix=0, repeated=False))
    assert "own_slots" not in relations_of(alone, domain)
    assert "own_slots" not in relations_of(replace(SHARED, family="unified"), DOMAIN)


def test_a_written_row_without_keys_shifts_with_no_value() -> None:
    domain = load_target("token_decode").domain
    assert "value_shift" in relations_of(SHARED, domain)
    assert "value_shift" not in relations_of(replace(SHARED, sequences=(Sequence(1, 9), Sequence(1, -1))), domain)


def test_copies_of_shared_slots_find_a_kernel_that_needs_sharing() -> None:
    right, wrong = (
        CaseJudge(load_target(f"{TOKENS}:{name}"), SimulatorBackend())
        for name in ("token_decode", "wrong_without_shared_slots")
    )
    case = replace(SHARED, launch=LaunchHints(path="3d", num_segments=3), ragged_splits=True)
    for relation in relations_of(case, right.target.domain):
        assert right.judge(Order(case, relation)).verdict.passed, relation
    for relation in set(relations_of(case, wrong.target.domain)) - {"alone_in_batch", "other_family"}:
        verdict = wrong.judge(Order(case, relation)).verdict
        assert verdict.passed == (relation != "own_slots"), relation


def test_strides_change_only_where_the_caches_stay_within_the_limits_of_a_case() -> None:
    small, large = (
        AttentionCase((Sequence(1, keys),), family="paged", heads=HeadLayout(8, 1, 128), pages=PageLayout(block_size=1))
        for keys in (100, 4700)
    )
    assert RELATIONS["other_strides"].holds(small, Domain(family="paged"))
    assert not RELATIONS["other_strides"].holds(large, Domain(family="paged"))


@pytest.mark.parametrize("family", ["unified", "varlen"])
def test_the_case_of_a_second_launch_has_as_long_empty_sequences(family: Family) -> None:
    """Packed keys are those of the sequences, so that a new one has none."""
    case = AttentionCase((Sequence(2, 3),), family=family, pages=PageLayout(1 if family == "varlen" else 16))
    launched, _ = transforms.arranged(materialise(case), (None, 0, None))
    assert second_case(case, "empty_sequences").sequences == (
        *map(Sequence, launched.query_lens, launched.context_lens),
    )
