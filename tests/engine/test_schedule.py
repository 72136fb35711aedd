"""Rounds of cases: on a GPU many cases of few kernels, because compilation dominates there."""

from __future__ import annotations

from collections import Counter

import pytest

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.compile_key import CompileKey
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import Strides
from fuzz_attn.engine.schedule import (
    ON_CPU,
    ON_GPU,
    RoundSize,
    keys_of_round,
    layouts_of_round,
    play_round,
    relations_of_round,
)
from fuzz_attn.properties.relations import RELATIONS

DOMAIN = Domain(paths=("auto", "2d", "3d"), tile_hint=True)


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
    assert sum(case.strides in layouts for case in cases) > 0.9 * len(cases)
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
    assert relations_of_round(seed, ON_CPU.compiling) == set(RELATIONS)
    assert set(RELATIONS) - compiling < relations_of_round(seed, ON_GPU.compiling)
    assert len(relations_of_round(seed, ON_GPU.compiling) & compiling) == 1


def test_rounds_differ_in_relations() -> None:
    assert frozenset().union(*(relations_of_round(seed, 1) for seed in range(100))) == set(RELATIONS)
