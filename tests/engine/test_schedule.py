"""Rounds of cases: on a GPU many cases of few kernels, because compilation dominates there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, count
from random import Random

import msgspec
import pytest

from fuzz_attn.case.attention_case import AttentionCase, CompileKey
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import Family
from fuzz_attn.case.parts import Strides
from fuzz_attn.case.serving import serves
from fuzz_attn.engine import schedule
from fuzz_attn.engine.schedule import ON_CPU, ON_GPU, play_round, play_shared_round, size_on_cpu
from fuzz_attn.operations.attention.drawing import (
    FREED,
    SharedRound,
    keys_of_round,
    layouts_of_round,
    may_play,
    relations_of_round,
    shared_round,
)
from fuzz_attn.operations.operation import RoundSize
from fuzz_attn.properties.relations import RELATIONS
from fuzz_attn.strategies.compile_keys import key_pool, value_pairs
from fuzz_attn.targets.loading import load_target

DOMAIN = Domain(paths=("auto", "2d", "3d"), tile_hint=True)
DRAWN = set(RELATIONS) - {"configurations"}
"""The relations of targets without an autotuner."""


def drawn(size: RoundSize, cases: int = 150) -> list[AttentionCase]:
    seen: list[AttentionCase] = []
    play_round(DOMAIN, 5, cases, lambda case, relation: seen.append(case), size)
    return seen


def test_a_round_on_a_gpu_has_few_keys_and_layouts() -> None:
    cases = drawn(ON_GPU)
    keys = set(keys_of_round(DOMAIN, 5, ON_GPU.keys))
    layouts = {Strides(), *(layouts_of_round(DOMAIN, 5, ON_GPU.layouts) or ())}
    assert len(keys) <= ON_GPU.keys + 1
    # A few cases leave the pool, so that shrinking can too.
    assert sum(case.compile_key in keys for case in cases) > 0.8 * len(cases)
    near = [case.strides for case in cases if not case.strides.far]
    assert len(near) > 0.8 * len(cases)
    assert sum(strides in layouts for strides in near) > 0.9 * len(near)
    assert Counter(case.strides for case in cases).keys() >= layouts


def test_a_round_on_a_cpu_draws_any_layout() -> None:
    assert layouts_of_round(DOMAIN, 5, ON_CPU.layouts) is None
    assert len({case.strides for case in drawn(ON_CPU)}) > 20


@pytest.mark.parametrize("size", [ON_CPU, ON_GPU])
def test_rounds_differ_in_keys_and_layouts(size: RoundSize) -> None:
    keys: set[CompileKey] = set()
    layouts: set[Strides] = set()
    for seed in range(60):
        keys.update(keys_of_round(DOMAIN, seed, size.keys))
        layouts.update(layouts_of_round(DOMAIN, seed, size.layouts) or ())
    assert len(keys) > 200
    assert size.layouts is None or len(layouts) > 20


@pytest.mark.parametrize("seed", range(5))
def test_a_round_on_a_gpu_has_one_relation_that_compiles_another_kernel(seed: int) -> None:
    compiling = {name for name, relation in RELATIONS.items() if relation.compiles}
    assert relations_of_round(seed, None, Domain()) == DRAWN
    assert DRAWN - compiling < relations_of_round(seed, ON_GPU.compiling, Domain())
    assert len(relations_of_round(seed, ON_GPU.compiling, Domain()) & compiling) == 1


def test_the_first_round_on_a_cpu_has_no_relation_that_compiles_another_kernel() -> None:
    compiling = {name for name, relation in RELATIONS.items() if relation.compiles}
    assert relations_of_round(5, size_on_cpu(0).compiling, Domain()) == DRAWN - compiling
    later = [relations_of_round(5, size_on_cpu(number).compiling, Domain()) & compiling for number in (1, 2, 9)]
    assert [len(each) for each in later] == [2, 2, 2]


def test_rounds_differ_in_relations() -> None:
    assert frozenset().union(*(relations_of_round(seed, 1, Domain()) for seed in range(100))) == DRAWN
    tuned = Domain(configurations=2)
    assert frozenset().union(*(relations_of_round(seed, 1, tuned) for seed in range(100))) == set(RELATIONS)


def cases_of(shared: SharedRound, domain: Domain, seed: int) -> list[AttentionCase]:
    seen: list[AttentionCase] = []
    play_shared_round(domain, shared, seed, 60, lambda case, relation: seen.append(case))
    return seen


def test_shards_draw_different_cases_of_a_shared_round() -> None:
    near = msgspec.structs.replace(DOMAIN, features=DOMAIN.features - {"far_axes"})
    shared = shared_round(near, 7, 3)
    one, other = cases_of(shared, near, 1), cases_of(shared, near, 2)
    assert not any(case in other for case in one)
    assert {case.compile_key for case in one + other} == {shared.key}
    assert {case.strides for case in one + other} == {shared.form.strides}
    assert {case.heads.num_kv_heads for case in one + other} == {shared.form.num_kv_heads}


def test_shared_rounds_go_through_all_keys_and_then_again_in_other_forms() -> None:
    pool = key_pool(DOMAIN)
    first = [shared_round(DOMAIN, 7, number) for number in range(len(pool))]
    second = [shared_round(DOMAIN, 7, number + len(pool)) for number in range(len(pool))]
    assert {each.key for each in first} == set(pool)
    others = {each.key for each in second} - set(pool)
    assert {key for key in pool if key.number % FREED or serves(key)} <= {each.key for each in second}
    assert 0.1 < len(others) / len(pool) < 0.2, "with sizes that stand in no table"
    assert all(may_play(each, DOMAIN, None) for each in second)
    assert [each.key for each in first] != [each.key for each in second]
    assert ({each.turn for each in first}, {each.turn for each in second}) == ({0}, {1})
    forms = {each.key: each.form for each in first}
    again = [each for each in second if each.key in forms]
    assert sum(forms[each.key] == each.form for each in again) < 0.2 * len(pool), "dense with few heads is usual"
    assert {each.form.strides == Strides() for each in first} == {True, False}


def test_only_later_visits_of_a_key_ask_for_a_relation_that_compiles_another_kernel() -> None:
    compiling = {name for name, relation in RELATIONS.items() if relation.compiles}
    first, later = shared_round(DOMAIN, 7, 3), shared_round(DOMAIN, 7, 3 + len(key_pool(DOMAIN)))
    assert first.relations == set(RELATIONS) - compiling
    assert len(later.relations & compiling) == 1
    keys = range(len(key_pool(DOMAIN)), 2 * len(key_pool(DOMAIN)))
    assert {name for number in keys for name in shared_round(DOMAIN, 7, number).relations} == DRAWN


def test_shared_rounds_cover_pairs_of_values_early() -> None:
    pool = key_pool(DOMAIN)
    order = [shared_round(DOMAIN, 7, number).key for number in range(len(pool))]
    shuffled = Random(1).sample(pool, len(pool))
    every = len(pairs_of(pool))
    # The first 64 are the plainest key of each pair of features.
    assert len(pairs_of(order[:200])) > 1.15 * len(pairs_of(shuffled[:200]))
    assert len(pairs_of(order[: 3 * len(pool) // 4])) == every > len(pairs_of(shuffled[: 3 * len(pool) // 4]))


@pytest.mark.parametrize("family", ["context", "unified"])
def test_a_refused_pair_of_features_hides_no_other_for_long(family: Family) -> None:
    """Keys with a refused pair of features never run, whatever else they have."""
    domain = load_target(family).domain
    early = [shared_round(domain, 7, number).key for number in range(90)]
    for refused in feature_pairs(key_pool(domain)):
        possible, seen = (
            feature_pairs([key for key in keys if not {*refused} <= {*key.features}])
            for keys in (key_pool(domain), early)
        )
        assert possible == seen


def feature_pairs(keys: Sequence[CompileKey]) -> set[tuple[str, ...]]:
    return {pair for key in keys for pair in combinations(sorted(key.features), 2)}


def pairs_of(keys: Sequence[CompileKey]) -> set[object]:
    return {pair for key in keys for pair in value_pairs(key)}


def test_another_seed_plays_the_same_kernels_in_another_order() -> None:
    numbers = range(len(key_pool(DOMAIN)))
    one, other = ([shared_round(DOMAIN, seed, number) for number in numbers] for seed in (1, 2))
    assert one != other
    assert set(one) == set(other)


def test_covered_keys_come_last_in_the_first_turn() -> None:
    pool = key_pool(DOMAIN)
    covered = {key.number for key in pool[::2]}
    numbers = [shared_round(DOMAIN, 7, number, covered).key.number for number in range(len(pool))]
    uncovered = len(pool) - len(covered)
    assert covered.isdisjoint(numbers[:uncovered])
    assert set(numbers[uncovered:]) == covered


def test_a_round_outside_of_what_a_target_accepts_is_not_played() -> None:
    shared = shared_round(DOMAIN, 7, 0)
    assert may_play(shared, DOMAIN, None)
    assert may_play(shared, DOMAIN, lambda key: key != shared.key)
    assert not may_play(shared, DOMAIN, lambda key: key == shared.key)
    other = 16 if shared.key.head_size != 16 else 32
    assert not may_play(shared, msgspec.structs.replace(DOMAIN, head_sizes=(other,)), None)


@pytest.mark.parametrize("skipped", [(), range(0, 100, 3), range(7, 30)])
def test_a_skipped_case_changes_no_other(skipped: Sequence[int]) -> None:
    def tried(number_of_cases: int, skipped: Sequence[int]) -> list[tuple[AttentionCase, str | None]]:
        places = count()
        found: list[tuple[AttentionCase, str | None]] = []
        play_round(
            DOMAIN,
            5,
            number_of_cases,
            lambda case, relation: found.append((case, relation)),
            skips=lambda case, relation: next(places) in skipped,
        )
        return found

    all_drawn = tried(60, ())
    assert tried(30, skipped) == [drawn for place, drawn in enumerate(all_drawn) if place not in skipped][:30]


def test_a_round_ends_where_all_cases_are_skipped() -> None:
    asked: list[AttentionCase] = []

    def skips(case: AttentionCase, relation: str | None) -> bool:
        asked.append(case)
        return len(asked) > 3

    tried: list[AttentionCase] = []
    play_round(DOMAIN, 5, 10, lambda case, relation: tried.append(case), skips=skips)
    assert tried == asked[:3]
    assert len(asked) == 3 + schedule.MOST_DRAWS
