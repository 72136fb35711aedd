"""Aspects: what each row of the table says holds in drawn cases of every family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import islice
from random import Random
from typing import Any, get_args

import msgspec
import pytest

from fuzz_attn.case.aspect_table import TABLE
from fuzz_attn.case.aspects import (
    ASPECTS,
    COMPILED_FEATURES,
    FEATURES,
    FEATURES_OF,
    NUANCES,
    POISONS,
    UNPUBLISHED_FEATURES,
    Aspect,
    Feature,
    all_features_of,
    with_feature,
)
from fuzz_attn.case.attention_case import AttentionCase, CompileKey, inexpressible, replace
from fuzz_attn.case.contract_trial import ContractTrial
from fuzz_attn.case.description import describe
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import DTypeName, DTypes, LaunchHints, PageLayout, Sequence
from fuzz_attn.errors import CaseError
from fuzz_attn.operations.attention.refusals import ATTRIBUTES, value_of_key, values_within
from fuzz_attn.strategies.cases import cases
from fuzz_attn.strategies.compile_keys import values_in
from fuzz_attn.strategies.draws import Sample
from fuzz_attn.targets.loading import load_target

PATHS = (("fast", (True,)), ("order", ("b", None)))
ONE_KEY = AttentionCase((Sequence(1),), softmax_scale=0.25)


@cache
def drawn(family: Family) -> tuple[AttentionCase, ...]:
    """Return cases of a family, one in four as a GPU has them, with options of the compiler, and some with paths or as
    contract trials."""
    domain = msgspec.structs.replace(load_target(family).domain, features=FEATURES_OF[family])
    with_paths = msgspec.structs.replace(domain, configurations=5, arguments=PATHS)
    random, usual, on_gpu, others = Random(4), cases(domain), cases(domain.on_gpu()), cases(with_paths)
    few = tuple(Sample(random).draw(others) for _ in range(40))
    few += tuple(replace(case, contract=ContractTrial("stepped", "seq_lens")) for case in few[:4])
    return tuple(Sample(random).draw(usual if number % 4 else on_gpu) for number in range(200)) + few


def every_case() -> Iterator[AttentionCase]:
    for family in FAMILIES:
        yield from drawn(family)


def having(aspect: Aspect, case: AttentionCase, value: Any) -> AttentionCase | None:
    """Return the case with a value of an aspect, None where the rest of it does not allow that."""
    try:
        return aspect.having(case, value)
    except CaseError:
        return None


@pytest.fixture(params=ASPECTS, ids=lambda aspect: aspect.words)
def aspect(request: pytest.FixtureRequest) -> Aspect:
    found: Aspect = request.param
    return found


def test_each_name_is_that_of_one_aspect() -> None:
    levels = [each.above.format(level) for each in TABLE.levelled for level in each.levels]
    for names in (
        [*(each.words for each in (*TABLE.traits, *NUANCES)), *levels],
        [each.refused_as for each in ATTRIBUTES],
        [each.feature for each in ASPECTS if each.feature],
        [each.words for each in FEATURES.values()],
    ):
        assert max(Counter(names).values()) == 1
    assert set(FEATURES) == set(get_args(Feature))


def test_a_case_of_one_key_is_the_simplest_apart_from_nuances() -> None:
    assert not [each.words for each in ASPECTS if each.present(ONE_KEY) and each not in NUANCES]
    assert not [each.words for each in TABLE.levelled if each.levels_of(ONE_KEY)]


@pytest.mark.sampled(3)
def test_some_case_has_each_aspect(aspect: Aspect) -> None:
    assert any(map(aspect.present, every_case()))


@pytest.mark.sampled(3)
def test_its_own_value_changes_nothing(aspect: Aspect) -> None:
    assert all(aspect.having(case, aspect.value(case)) == case for case in every_case())


@pytest.mark.sampled(6)
def test_a_case_without_it_has_the_simplest_value(aspect: Aspect) -> None:
    left = [having(aspect, case, aspect.simplest) for case in every_case() if aspect.present(case)]
    found = [aspect.value(case) for case in left if case is not None]
    assert found
    if aspect.levels or aspect.growing:  # an empty batch has shorter sequences than the simplest case
        assert max(found) == aspect.simplest
    else:
        assert set(found) == {aspect.simplest}


@pytest.mark.sampled(3)
def test_it_shows_in_the_description(aspect: Aspect) -> None:
    pairs = ((case, having(aspect, case, aspect.simplest)) for case in every_case() if aspect.present(case))
    changed = [*islice(((case, simple) for case, simple in pairs if simple is not None and simple != case), 50)]
    assert changed
    assert all(describe(case) != describe(simple) for case, simple in changed)


@pytest.mark.sampled(3)
def test_a_smaller_case_is_allowed_or_refused_as_a_case_error(aspect: Aspect) -> None:
    for case in drawn("unified")[:50]:
        for change in aspect.smaller:
            try:
                assert isinstance(change(case), AttentionCase)
            except CaseError:
                continue


@pytest.mark.parametrize("levelled", TABLE.levelled, ids=lambda each: each.above)
def test_a_case_below_a_level_is_not_above_it(levelled: Aspect) -> None:
    for case in every_case():
        for level in levelled.levels_of(case):
            lower = having(levelled, case, level)
            assert lower is None or level not in levelled.levels_of(lower)


@pytest.mark.parametrize("attribute", ATTRIBUTES, ids=lambda each: each.refused_as)
def test_a_case_gets_each_value_that_a_probe_tries(attribute: Aspect) -> None:
    for family in FAMILIES:
        domain = load_target(family).domain
        for case in drawn(family)[:20]:
            for value in values_within(attribute, domain):
                changed = having(attribute, case, value)
                assert changed is None or attribute.value(changed) in (value, 0)


def test_what_is_compiled_are_the_fields_of_the_compile_key() -> None:
    compiled = {each.key: each for each in ASPECTS if each.key}
    assert set(values_in(Domain())) == set(compiled)
    fields = {*CompileKey.__struct_fields__, *LaunchHints.__struct_fields__, *COMPILED_FEATURES}
    assert fields - {"family", "compiled", "path", "num_segments"} == set(compiled)
    for case in every_case():
        assert all(value_of_key(each, case.compile_key) == each.value(case) for each in compiled.values())


@pytest.mark.parametrize("name", FEATURES)
def test_each_feature_is_in_the_cases_of_its_families_only(name: Feature) -> None:
    feature = FEATURES[name]
    assert feature.families
    for family in FAMILIES:
        having_it = [case for case in drawn(family) if feature.value(case)]
        assert bool(having_it) == (family in feature.families) == (name in FEATURES_OF[family])
        for case in having_it[:5]:
            assert all(inexpressible(case, other) for other in FAMILIES if other not in feature.families)


@pytest.mark.parametrize("name", [name for name, feature in FEATURES.items() if feature.has_form])
def test_a_simple_case_gets_each_feature_that_has_a_form(name: Feature) -> None:
    family = FEATURES[name].families[0]
    cache: DTypeName = "float8_e5m2" if name == "uint8_cache" else "float32"
    plain = replace(ONE_KEY, family=family, dtypes=DTypes(kv=cache))
    assert name in all_features_of(with_feature(plain, name))


@pytest.mark.parametrize("name", sorted(UNPUBLISHED_FEATURES))
def test_each_feature_that_must_be_declared_can_be_removed(name: Feature) -> None:
    for case in every_case():
        if FEATURES[name].present(case):
            assert not FEATURES[name].present(FEATURES[name].without(case)), case


def test_each_trait_of_poison_is_a_nuance_that_its_field_removes() -> None:
    nuances = {trait.words: trait for trait in NUANCES}
    harmful = AttentionCase((Sequence(1, 16),))
    for words, field in POISONS.items():
        assert nuances[words].present(harmful)
        milder = nuances[words].without(harmful)
        assert getattr(milder.poison, field) != getattr(harmful.poison, field)
        assert not nuances[words].present(milder)


def test_packed_keys_have_no_traits_of_pages() -> None:
    packed = AttentionCase((Sequence(3, 40),), family="varlen", pages=PageLayout(block_size=1))
    paged = AttentionCase((Sequence(3, 40),), pages=PageLayout(block_size=1))
    assert {"small pages", "more than 1 pages"} <= {*TABLE.traits_of(paged)}
    assert not any("page" in trait for trait in TABLE.traits_of(packed))
