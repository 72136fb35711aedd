"""Traits: features that a target must declare can be removed from the cases that have them."""

from __future__ import annotations

from random import Random

import pytest

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.families import FAMILIES, UNPUBLISHED_FEATURES, Family
from fuzz_attn.case.features import CASE_FEATURES
from fuzz_attn.case.parts import Sequence
from fuzz_attn.case.traits import NUANCES, POISONS, without_feature
from fuzz_attn.strategies.cases import cases
from fuzz_attn.strategies.sampling.draws import Sample
from fuzz_attn.targets.loading import load_target

PRESENT = {feature.name: feature.present for feature in CASE_FEATURES if feature.name in UNPUBLISHED_FEATURES}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_feature_can_be_removed(family: Family) -> None:
    strategy, random, seen = cases(load_target(family).domain), Random(4), set()
    for _ in range(300):
        case = Sample(random).draw(strategy)
        for name in (name for name, present in PRESENT.items() if present(case)):
            assert not PRESENT[name](without_feature(case, name)), case
            seen.add(name)
    assert seen == UNPUBLISHED_FEATURES & FAMILIES[family].features


def test_each_trait_of_poison_is_a_nuance_that_its_field_removes() -> None:
    nuances = {trait.name: trait for trait in NUANCES}
    harmful = AttentionCase((Sequence(1, 16),))
    for name, field in POISONS.items():
        assert nuances[name].present(harmful)
        milder = nuances[name].without(harmful)
        assert getattr(milder.poison, field) != getattr(harmful.poison, field)
        assert not nuances[name].present(milder)
