"""State draws: strategies of cases of merging."""

from __future__ import annotations

import math
from typing import Final, get_args

from hypothesis import strategies as st

from fuzz_attn.case.domain import sizes_of, within
from fuzz_attn.case.recipes import SlotPoison
from fuzz_attn.operations.merge_states.state_case import (
    LARGEST,
    MOST_ELEMENTS,
    StateAxis,
    StateCase,
    StateDomain,
    StateKey,
)
from fuzz_attn.operations.small_draws import FEW, HEADS, OFTEN, RARELY, SEEDS, far_axes, grown, with_far_axes
from fuzz_attn.strategies.draws import composite, sampled_from

_STATES: Final = (2, 1, 3, 4, 5, 7, 8, 9, 16, 17, 33, 64)
_TOKENS: Final = sampled_from((1, 2, 3, 5, 8, 17, 33))
_OFFSETS: Final = sampled_from((0.0, 1.0, -5.0, 30.0, 100.0, -100.0, 1000.0, -1000.0, -1e4))
_SPREADS: Final = sampled_from((1.0, 0.0, 0.1, 5.0, 20.0, 100.0))
_ZERO: Final[SlotPoison] = "zero"
_POISONED: Final[tuple[SlotPoison, ...]] = ("zero", "nan", "nan", "inf", "huge")
_POISONS: Final = sampled_from(_POISONED)
_FAR_AXES: Final = far_axes(get_args(StateAxis))


@composite
def state_cases(draw: st.DrawFn, domain: StateDomain, keys: tuple[StateKey, ...]) -> StateCase:
    """Return a strategy of cases of some compile keys; shrinks towards one token, one head and two states."""
    key = draw(sampled_from(keys))
    allowed = [number for number in _STATES if within(number, domain.num_states)]
    states = draw(sampled_from(allowed or list(sizes_of(domain.num_states))[:1]))
    sizes = {"num_states": states, "num_tokens": draw(_TOKENS), "num_heads": draw(HEADS)}
    empty_states = domain.allows("empty_states") and draw(OFTEN)
    empty_rows = domain.allows("empty_rows") and draw(RARELY)
    gap = draw(FEW) if domain.allows("strides") and draw(RARELY) else 0
    padded = draw(FEW) if domain.allows("padded_tokens") and draw(RARELY) else 0
    poison = draw(_POISONS) if empty_states or empty_rows else _ZERO
    poison = poison if poison in domain.empty_outputs else _ZERO
    most = {name: LARGEST[name] for name in sizes} | {"num_states": max(domain.num_states)}
    sizes = draw(grown(sizes, most, key.head_size + gap))
    if not within(sizes["num_states"], domain.num_states):
        sizes["num_states"] = states
    if math.prod(sizes.values()) * (key.head_size + gap) > MOST_ELEMENTS:
        sizes["num_tokens"] = 1
    far = draw(_FAR_AXES) if domain.allows("far_axes") else ()
    case = StateCase(
        num_states=sizes["num_states"],
        num_tokens=sizes["num_tokens"],
        num_heads=sizes["num_heads"],
        head_size=key.head_size,
        dtype=key.dtype,
        lse_offset=draw(_OFFSETS),
        lse_spread=draw(_SPREADS),
        base=domain.lse.base,
        empty_states=empty_states,
        empty_rows=empty_rows,
        poison=poison,
        gap=gap,
        padded_tokens=padded,
        seed=draw(SEEDS),
    )
    return with_far_axes(case, far)
