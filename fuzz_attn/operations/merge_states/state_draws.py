"""State draws: strategies of cases of merging, and what each round draws. They know cases only."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from hypothesis import strategies as st

from fuzz_attn.case.domain import sizes_of, within
from fuzz_attn.case.recipes import SlotPoison
from fuzz_attn.operations.merge_states.state_case import MOST_ELEMENTS, StateCase, StateDomain, StateKey, key_pool
from fuzz_attn.operations.operation import Drawing, ExcludesKey
from fuzz_attn.operations.seeds import ALL_SHARDS, derived_seed
from fuzz_attn.strategies.relation_choices import relation_choices
from fuzz_attn.strategies.sampling.draws import composite, sampled_from

_STATES: Final = (2, 1, 3, 4, 5, 7, 8, 9, 16, 17, 33, 64)
_TOKENS: Final = sampled_from((1, 2, 3, 5, 8, 17, 33))
_HEADS: Final = sampled_from((1, 2, 3, 4, 8))
_OFFSETS: Final = sampled_from((0.0, 1.0, -5.0, 30.0, 100.0, -100.0, 1000.0, -1000.0))
_SPREADS: Final = sampled_from((1.0, 0.0, 0.1, 5.0, 20.0, 100.0))
_ZERO: Final[SlotPoison] = "zero"
_POISONED: Final[tuple[SlotPoison, ...]] = ("zero", "nan", "nan", "inf", "huge")
_POISONS: Final = sampled_from(_POISONED)
_SEEDS: Final = sampled_from(range(2**20))
_RARELY: Final = sampled_from((False, False, False, True))
_OFTEN: Final = sampled_from((False, True))
_FEW: Final = sampled_from((1, 3, 16))
FIRST_STREAM: Final = 51


@composite
def state_cases(draw: st.DrawFn, domain: StateDomain, keys: tuple[StateKey, ...]) -> StateCase:
    """Return a strategy of cases of some compile keys; shrinks towards one token, one head and two states."""
    key = draw(sampled_from(keys))
    allowed = [number for number in _STATES if within(number, domain.num_states)]
    states = draw(sampled_from(allowed or list(sizes_of(domain.num_states))[:1]))
    tokens, heads = draw(_TOKENS), draw(_HEADS)
    empty_states = domain.allows("empty_states") and draw(_OFTEN)
    empty_rows = domain.allows("empty_rows") and draw(_RARELY)
    gap = draw(_FEW) if domain.allows("strides") and draw(_RARELY) else 0
    padded = draw(_FEW) if domain.allows("padded_tokens") and draw(_RARELY) else 0
    poison = draw(_POISONS) if empty_states or empty_rows else _ZERO
    if states * tokens * heads * (key.head_size + gap) > MOST_ELEMENTS:
        tokens = 1
    return StateCase(
        num_states=states,
        num_tokens=tokens,
        num_heads=heads,
        head_size=key.head_size,
        dtype=key.dtype,
        lse_offset=draw(_OFFSETS),
        lse_spread=draw(_SPREADS),
        empty_states=empty_states,
        empty_rows=empty_rows,
        poison=poison,
        gap=gap,
        padded_tokens=padded,
        seed=draw(_SEEDS),
    )


@composite
def with_choice(draw: st.DrawFn, domain: StateDomain, keys: tuple[StateKey, ...]) -> tuple[StateCase, int | None]:
    """Return a strategy of a case and a choice of a relation; shrinks both."""
    return draw(state_cases(domain, keys)), draw(relation_choices())


def keys_of_round(
    domain: StateDomain, round_seed: int, count: int, excludes: ExcludesKey | None, covered: Collection[int]
) -> tuple[StateKey, ...]:
    """Return the keys of a round: a seeded sample of the pool, without ``covered`` ones as long as there are others."""
    pool = [key for key in key_pool(domain) if excludes is None or not excludes(key)] or list(key_pool(domain))
    order = sorted(pool, key=lambda key: (key.number in covered, derived_seed(round_seed, FIRST_STREAM, key.number)))
    return tuple(order[: max(1, count)])


@dataclass(frozen=True)
class StateRound:
    """A visit of one compile key that shards share."""

    key: StateKey
    relations: frozenset[str]
    sample: int
    turn: int
    is_usual: bool = True

    def usual(self) -> StateRound:
        """Return the round with the usual variant of its kernels: itself."""
        return self

    def narrow(self, domain: StateDomain) -> StateRound:
        """Return the round with fewer kernels: itself."""
        return self


def shared_round(
    domain: StateDomain, campaign: int, number: int, covered: Collection[int], relations: frozenset[str]
) -> StateRound:
    """Return a round that the shards of a campaign can share; all keys have their turn, and then again."""
    pool = key_pool(domain)
    turn, place = divmod(number, len(pool))
    seed = derived_seed(campaign, ALL_SHARDS, -1 - turn)
    key = keys_of_round(domain, seed, len(pool), None, covered if turn == 0 else ())[place]
    return StateRound(key, relations, derived_seed(key.number, ALL_SHARDS, turn), turn)


def drawing_of(domain: StateDomain, keys: tuple[StateKey, ...], relations: frozenset[str]) -> Drawing:
    """Return what a round of some keys draws."""
    return Drawing(with_choice(domain, keys), relations)
