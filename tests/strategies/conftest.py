"""Fixtures of the strategy tests: the simplest value with a condition, any value with a condition, a sample."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

import pytest
from hypothesis import Phase, find, settings
from hypothesis import strategies as st

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.strategies.cases import cases
from fuzz_attn.strategies.draws import Sample

Condition: TypeAlias = Callable[[Any], object]
Finder: TypeAlias = Callable[..., Any]
Sampler: TypeAlias = Callable[..., list[Any]]

FULL = Domain(paths=("auto", "2d", "3d"), tile_hint=True)
SAMPLE = 1000


def _find(strategy: st.SearchStrategy[Any], condition: Condition, phases: tuple[Phase, ...]) -> Any:
    found = settings(max_examples=20_000, database=None, phases=phases)
    return find(strategy, lambda value: bool(condition(value)), settings=found, random=Random(0))


@pytest.fixture(scope="session")
def minimal() -> Finder:
    """The simplest value of a strategy for which a condition holds."""

    def minimal(strategy: st.SearchStrategy[Any], condition: Condition = lambda _: True) -> object:
        return _find(strategy, condition, (Phase.generate, Phase.shrink))

    return minimal


@pytest.fixture(scope="session")
def find_any() -> Finder:
    """Any value of a strategy for which a condition holds; raises an error where there is none."""

    def find_any(strategy: st.SearchStrategy[Any], condition: Condition = lambda _: True) -> object:
        return _find(strategy, condition, (Phase.generate,))

    return find_any


@pytest.fixture(scope="session")
def sample() -> Sampler:
    """Values of a strategy as a campaign draws them, the same in every run."""

    def sample(strategy: st.SearchStrategy[Any], size: int = SAMPLE) -> list[Any]:
        random = Random(0)
        return [Sample(random).draw(strategy) for _ in range(size)]

    return sample


@pytest.fixture(scope="session")
def full_domain() -> Domain:
    """The domain with everything that a target can promise."""
    return FULL


@pytest.fixture(scope="session")
def drawn_cases(sample: Sampler) -> list[AttentionCase]:
    """A sample of the cases of the full domain, so large that the share of a feature varies by a percentage point."""
    return sample(cases(FULL), 3 * SAMPLE)
