"""Small draws: what a round of a small operation draws. They know keys and strategies of cases only."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, Final, TypeVar

from hypothesis import strategies as st
from msgspec.structs import replace

from fuzz_attn.case.parts import FEWEST_FAR
from fuzz_attn.operations.operation import ALL_SHARDS, Drawing, ExcludesKey, derived_seed
from fuzz_attn.strategies.draws import Sample, around, composite, one_of_each, sampled_from
from fuzz_attn.strategies.relation_choices import relation_choices

C = TypeVar("C")
HEADS: Final = sampled_from((1, 2, 3, 4, 8))
SEEDS: Final = sampled_from(range(2**20))
RARELY: Final = sampled_from((False, False, False, True))
OFTEN: Final = sampled_from((False, True))
FEW: Final = sampled_from((1, 3, 16))
_GROWING: Final = 20
"""One case of this many has a size from anywhere up to what it can afford."""
_BUDGETS: Final = sampled_from((2**18,) * 7 + (2**20,))
"""The elements of such a case, which a thousand rows more cost some milliseconds."""
_STEPS: Final = 2**12
_PLACES: Final = sampled_from(range(_STEPS))
FREED: Final = 3
"""One key of about this many in a round has sizes from anywhere in the domain; they differ from round to round."""
KEYS_STREAM: Final = 51
"""The index of the stream of random numbers that orders keys."""


@composite
def grown(draw: st.DrawFn, sizes: Mapping[str, int], largest: Mapping[str, int], row: int) -> dict[str, int]:
    """Return a strategy of sizes of a case, in a few cases with one of ``largest`` anywhere up to its bound.

    All sizes and the elements of a ``row`` together are what a case costs, so that a large size has small ones beside
    it. Half of the large ones lie beside a power of two, where kernels have thresholds; the others are as likely in
    each octave. Shrinks towards the sizes that are given.
    """
    name = draw(_chosen(tuple(largest)))
    if not name:
        return dict(sizes)
    alone = draw(OFTEN)
    beside = {other: min(size, 1 if alone else 2) for other, size in sizes.items() if other != name}
    most = max(1, min(largest[name], draw(_BUDGETS) // (row * math.prod(max(1, each) for each in beside.values()))))
    edges = [edge for edge in around(*(1 << place for place in range(5, most.bit_length()))) if edge <= most]
    anywhere = int(most ** (draw(_PLACES) / _STEPS))
    return {**beside, name: draw(sampled_from(edges or [anywhere])) if draw(OFTEN) else anywhere}


@lru_cache(maxsize=16)
def _chosen(names: tuple[str, ...]) -> st.SearchStrategy[str]:
    return sampled_from(("",) * (len(names) * (_GROWING - 1)) + names)


@composite
def with_choice(draw: st.DrawFn, cases: st.SearchStrategy[Any]) -> tuple[Any, int | None]:
    """Return a strategy of a case and a choice of a relation; shrinks both."""
    return draw(cases), draw(relation_choices())


def far_axes(names: Sequence[str], some: st.SearchStrategy[bool] = RARELY) -> st.SearchStrategy[tuple[str, ...]]:
    """Return a strategy of far axes, at most one of each tensor, where ``some`` says so; shrinks towards none."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition("_")[0], []).append(name)
    return one_of_each(some, tuple(sampled_from((None, *group * 4)) for group in groups.values()))


def with_far_axes(case: C, names: Sequence[str]) -> C:
    """Return a case with those of the axes far that have enough indices, and not too many."""
    near: Any = case
    lengths: Mapping[str, int] = near.far_lengths
    changed: C = replace(near, far_axes=tuple(name for name in names if lengths.get(name, 0) >= FEWEST_FAR))
    return changed


def keys_of_round(
    pool: Sequence[Any],
    round_seed: int,
    count: int,
    excludes: ExcludesKey | None,
    covered: Collection[int],
    free: Callable[[Any, Sample], Any],
) -> tuple[Any, ...]:
    """Return the keys of a round: a seeded sample of the pool, without ``covered`` ones as long as there are others.

    One in ``FREED`` gets sizes that stand in no table from ``free``.
    """
    left = [key for key in pool if excludes is None or not excludes(key)] or list(pool)
    order = sorted(left, key=lambda key: (key.number in covered, derived_seed(round_seed, KEYS_STREAM, key.number)))
    random = Random(round_seed)  # noqa: S311 - nothing secret
    chosen = order[: max(1, count)]
    freed = [free(key, Sample(random)) if random.random() * FREED < 1.0 else key for key in chosen]
    kept = (key if excludes is not None and excludes(new) else new for key, new in zip(chosen, freed, strict=True))
    return tuple(dict.fromkeys(kept))


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
    key = keys_of_round(pool, seed, len(pool), None, covered if turn == 0 else (), lambda key, sample: key)[place]
    return SmallRound(key, derived_seed(key.number, ALL_SHARDS, turn), turn)


def drawing_of(cases: st.SearchStrategy[Any], relations: Collection[str]) -> Drawing:
    """Return what a round draws that takes cases from a strategy."""
    return Drawing(with_choice(cases), frozenset(relations))
