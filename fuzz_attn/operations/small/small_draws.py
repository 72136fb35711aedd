"""Small draws: what a round of a small operation draws. They know keys and strategies of cases only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from hypothesis import strategies as st
from msgspec.structs import replace

from fuzz_attn.operations.operation import Drawing, ExcludesKey
from fuzz_attn.operations.seeds import ALL_SHARDS, derived_seed
from fuzz_attn.operations.small.small_case import why_not_far
from fuzz_attn.strategies.relation_choices import relation_choices
from fuzz_attn.strategies.sampling.draws import composite, sampled_from

C = TypeVar("C")
HEADS: Final = sampled_from((1, 2, 3, 4, 8))
SEEDS: Final = sampled_from(range(2**20))
RARELY: Final = sampled_from((False, False, False, True))
OFTEN: Final = sampled_from((False, True))
FEW: Final = sampled_from((1, 3, 16))
FEWEST_FAR: Final = 3
"""Indices of a far axis at least: with two the stride itself would need 64 bits."""
KEYS_STREAM: Final = 51
"""The index of the stream of random numbers that orders keys."""


@composite
def with_choice(draw: st.DrawFn, cases: st.SearchStrategy[Any]) -> tuple[Any, int | None]:
    """Return a strategy of a case and a choice of a relation; shrinks both."""
    return draw(cases), draw(relation_choices())


def far_axes(names: Sequence[str]) -> st.SearchStrategy[tuple[str, ...]]:
    """Return a strategy of far axes, at most one of each tensor; shrinks towards none, which most draws have."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition("_")[0], []).append(name)
    return _far_axes(tuple(sampled_from((None, *group * 4)) for group in groups.values()))


@composite
def _far_axes(draw: st.DrawFn, groups: tuple[st.SearchStrategy[str | None], ...]) -> tuple[str, ...]:
    if not draw(RARELY):
        return ()
    return tuple(name for group in groups if (name := draw(group)) is not None)


def with_far_axes(case: C, names: Sequence[str]) -> C:
    """Return a case with those of the axes far that have enough indices, and not too many."""
    near: Any = case
    lengths: Mapping[str, int] = near.far_lengths
    fitting = (name for name in names if lengths.get(name, 0) >= FEWEST_FAR)
    kept = tuple(name for name in fitting if not why_not_far((name,), lengths, near.num_elements))
    changed: C = replace(near, far_axes=kept)
    return changed


def keys_of_round(
    pool: Sequence[Any], round_seed: int, count: int, excludes: ExcludesKey | None, covered: Collection[int]
) -> tuple[Any, ...]:
    """Return the keys of a round: a seeded sample of the pool, without ``covered`` ones as long as there are others."""
    left = [key for key in pool if excludes is None or not excludes(key)] or list(pool)
    order = sorted(left, key=lambda key: (key.number in covered, derived_seed(round_seed, KEYS_STREAM, key.number)))
    return tuple(order[: max(1, count)])


@dataclass(frozen=True)
class SmallRound:
    """A visit of one compile key that shards share; its kernels have one variant."""

    key: Any
    sample: int
    turn: int
    is_usual: bool = True

    def usual(self) -> SmallRound:
        """Return the round with the usual variant of its kernels: itself."""
        return self

    def narrow(self, domain: Any) -> SmallRound:
        """Return the round with fewer kernels: itself."""
        return self


def shared_round(pool: Sequence[Any], campaign: int, number: int, covered: Collection[int]) -> SmallRound:
    """Return a round that the shards of a campaign can share; all keys have their turn, and then again."""
    turn, place = divmod(number, len(pool))
    seed = derived_seed(campaign, ALL_SHARDS, -1 - turn)
    key = keys_of_round(pool, seed, len(pool), None, covered if turn == 0 else ())[place]
    return SmallRound(key, derived_seed(key.number, ALL_SHARDS, turn), turn)


def drawing_of(cases: st.SearchStrategy[Any], relations: Collection[str]) -> Drawing:
    """Return what a round draws that takes cases from a strategy."""
    return Drawing(with_choice(cases), frozenset(relations))
