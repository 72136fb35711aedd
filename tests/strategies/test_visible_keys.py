"""Drawn cases make most of their keys count; ``tests/benchmarks/bench_visibility.py`` measures it at length."""

from __future__ import annotations

from statistics import mean
from types import ModuleType
from typing import get_args

from fuzz_attn.case.families import Family
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.mutation.batch_runner import CaseStream
from fuzz_attn.targets.built_in import built_in

CASES, LEAST = 20, 0.9
"""Of each family; measured are 0.95. A case counts as the share of its own pairs. A very rare case has
hundreds of query tokens or thousands of keys, and would decide the share of all pairs: one with 8,191 keys, most of
them too far away for its ALiBi slopes, had 8 % of them."""


def test_boundary_keys_are_visible(visible_keys: ModuleType) -> None:
    shares = []
    for family in get_args(Family):
        target = built_in(family)
        assert target is not None
        stream = CaseStream(target.domain, seed=1)
        for number in range(CASES):
            counts = visible_keys.visible_share(materialise(stream[number].case), target.rounding_model)
            if counts.boundary_pairs:
                shares.append(counts.boundary_visible / counts.boundary_pairs)
    assert len(shares) > CASES
    assert mean(shares) >= LEAST
