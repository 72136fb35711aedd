"""Write draws: strategies of cases of cache writes, and what each round draws. They know cases only."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from fuzz_attn.case.dtypes import DTYPES, is_fp8
from fuzz_attn.operations.cache_write.write_case import (
    LARGEST_NUMBER,
    MOST_ELEMENTS,
    OWN_SCALES,
    WriteCase,
    WriteDomain,
    WriteKey,
    key_pool,
)
from fuzz_attn.operations.operation import Drawing, ExcludesKey
from fuzz_attn.operations.seeds import ALL_SHARDS, derived_seed
from fuzz_attn.strategies.relation_choices import relation_choices
from fuzz_attn.strategies.sampling.draws import composite, sampled_from

_TOKENS: Final = sampled_from((1, 2, 3, 5, 8, 16, 17, 33))
_HEADS: Final = sampled_from((1, 2, 3, 4, 8))
_SPARE: Final = sampled_from((0, 1, 2, 5))
_UNITS: Final = sampled_from((1.0, 2.0**-6, 0.01, 37.0, 1e-4))
_SCALES: Final = sampled_from((1.0, 0.5, 3.0, 0.3))
_SMALL: Final = (1.0, 1.0, 16.0, 0.02)
_LARGE: Final = (500.0, 1e5)
_MAGNITUDES: Final = (1.0, 1.0, 1e-6, 300.0)
_BEYOND: Final = (1e5,)
_SEEDS: Final = sampled_from(range(2**20))
_RARELY: Final = sampled_from((False, False, False, True))
_SELDOM: Final = sampled_from((False,) * 15 + (True,))
_OFTEN: Final = sampled_from((False, True))
_FEW: Final = sampled_from((1, 3, 16))
FAR_PAGES: Final = 2
"""Spare pages of a far cache at least: with three pages, strides are below 2^31 and offsets are not."""
FIRST_STREAM: Final = 52


@composite
def write_cases(draw: st.DrawFn, domain: WriteDomain, keys: tuple[WriteKey, ...]) -> WriteCase:
    """Return a strategy of cases of some compile keys; shrinks towards one token and one head."""
    key = draw(sampled_from(keys))
    tokens, heads, spare = draw(_TOKENS), draw(_HEADS), draw(_SPARE)
    shuffled = draw(_OFTEN)
    skipped = domain.allows("skipped") and draw(_OFTEN)
    heads_first = domain.allows("heads_first") and draw(_RARELY)
    gap = draw(_FEW) if domain.allows("strides") and draw(_RARELY) else 0
    value_gap = draw(_FEW) if domain.allows("value_strides") and draw(_RARELY) else 0
    fused = domain.allows("fused") and draw(_RARELY)
    padded = draw(_FEW) if domain.allows("padded_tokens") and draw(_RARELY) else 0
    far = domain.allows("far") and draw(_SELDOM)
    magnitude, k_scale, v_scale = draw(_numbers(key, overflows=domain.allows("overflow")))
    spare = max(spare, FAR_PAGES) if far else spare
    pages = -(-tokens // key.page_size) + spare
    if pages * key.page_size * heads * (key.head_size + gap + value_gap) > MOST_ELEMENTS:
        heads = 1
    return WriteCase(
        num_tokens=tokens,
        num_heads=heads,
        head_size=key.head_size,
        page_size=key.page_size,
        spare_pages=spare,
        dtype=key.dtype,
        stored_as=key.stored_as,
        magnitude=magnitude,
        k_scale=k_scale,
        v_scale=v_scale,
        shuffled=shuffled or far,
        skipped=skipped,
        heads_first=heads_first,
        head_gap=gap,
        value_gap=value_gap,
        fused=fused,
        padded_tokens=padded,
        far=far,
        seed=draw(_SEEDS),
    )


@composite
def _numbers(draw: st.DrawFn, key: WriteKey, *, overflows: bool) -> tuple[float, float, float]:
    """Return a strategy of a magnitude and the scales of K and V; shrinks towards 1.

    The scales lie within a factor of ten of each other, or one of the caches would hold only zeros or its largest
    number. Without ``overflows`` all numbers stay within the cache.
    """
    if key.stored_as.endswith(OWN_SCALES):
        return draw(_UNITS) * draw(sampled_from(_SMALL)), 1.0, 1.0
    stored: Any = key.dtype if key.stored_as == "same" else key.stored_as
    if is_fp8(stored):
        unit = draw(_UNITS)
        k_scale, v_scale = unit * draw(_SCALES), unit * draw(_SCALES)
        return unit * draw(sampled_from(_SMALL + _LARGE * overflows)), k_scale, v_scale
    is_within = _BEYOND[0] * LARGEST_NUMBER < DTYPES[stored].largest
    return draw(sampled_from(_MAGNITUDES + _BEYOND * (overflows or is_within))), 1.0, 1.0


@composite
def with_choice(draw: st.DrawFn, domain: WriteDomain, keys: tuple[WriteKey, ...]) -> tuple[WriteCase, int | None]:
    """Return a strategy of a case and a choice of a relation; shrinks both."""
    return draw(write_cases(domain, keys)), draw(relation_choices())


def keys_of_round(
    domain: WriteDomain, round_seed: int, count: int, excludes: ExcludesKey | None, covered: Collection[int]
) -> tuple[WriteKey, ...]:
    """Return the keys of a round: a seeded sample of the pool, without ``covered`` ones as long as there are others."""
    pool = [key for key in key_pool(domain) if excludes is None or not excludes(key)] or list(key_pool(domain))
    order = sorted(pool, key=lambda key: (key.number in covered, derived_seed(round_seed, FIRST_STREAM, key.number)))
    return tuple(order[: max(1, count)])


@dataclass(frozen=True)
class WriteRound:
    """A visit of one compile key that shards share."""

    key: WriteKey
    relations: frozenset[str]
    sample: int
    turn: int
    is_usual: bool = True

    def usual(self) -> WriteRound:
        """Return the round with the usual variant of its kernels: itself."""
        return self

    def narrow(self, domain: WriteDomain) -> WriteRound:
        """Return the round with fewer kernels: itself."""
        return self


def shared_round(
    domain: WriteDomain, campaign: int, number: int, covered: Collection[int], relations: frozenset[str]
) -> WriteRound:
    """Return a round that the shards of a campaign can share; all keys have their turn, and then again."""
    pool = key_pool(domain)
    turn, place = divmod(number, len(pool))
    seed = derived_seed(campaign, ALL_SHARDS, -1 - turn)
    key = keys_of_round(domain, seed, len(pool), None, covered if turn == 0 else ())[place]
    return WriteRound(key, relations, derived_seed(key.number, ALL_SHARDS, turn), turn)


def drawing_of(domain: WriteDomain, keys: tuple[WriteKey, ...], relations: frozenset[str]) -> Drawing:
    """Return what a round of some keys draws."""
    return Drawing(with_choice(domain, keys), relations)
