"""Values: what the queries, keys and values of a case hold, and the poisons that no kernel may read."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from hypothesis import strategies as st

from fuzz_attn.case.parts import HeadLayout, Sequence
from fuzz_attn.case.recipes import (
    ConstantValues,
    DenormalScores,
    DenormalValues,
    HeavyScores,
    IntegerValues,
    LevelScores,
    NeedleScores,
    NormalScores,
    NormalValues,
    OneHotValues,
    OutlierScores,
    OutlierValues,
    Override,
    PoisonRecipe,
    PositionValues,
    RampScores,
    ScoreRecipe,
    SlotPoison,
    TablePoison,
    UniformScores,
    ValueRecipe,
)
from fuzz_attn.strategies.draws import composite, indices, sampled_from

MAX_OVERRIDES = 3
SCORES: tuple[ScoreRecipe, ...] = (
    *(NormalScores(),) * 3,
    NormalScores(spread=4.0),
    NormalScores(spread=4.0),
    NormalScores(spread=16.0),
    *(UniformScores(),) * 3,
    NeedleScores(place="own"),
    NeedleScores(place="first"),
    NeedleScores(place="first"),
    NeedleScores(place="boundary"),
    NeedleScores(place="boundary"),
    NeedleScores(place="outside_right"),
    NeedleScores(place="outside_right"),
    NeedleScores(place="random"),
    RampScores(),
    RampScores(step=1.0),
    RampScores(step=-0.25),
    OutlierScores(),
    HeavyScores(place="random"),
)
"""Recipes for every case, the most readable first; peaks of ``exp(8)`` leave the other keys visible."""

EXACT: tuple[ScoreRecipe, ...] = (
    *(HeavyScores(),) * 4,
    *(HeavyScores(place="pages"),) * 4,
    *(HeavyScores(place="random"),) * 8,
    *(HeavyScores(place="one"),) * 8,
)
"""Weights of exactly 0 and 1, for those heads of long sequences that do not give all keys the same weight."""

LONG, MEDIUM = 256, 96
"""Keys above which nearly all cases, and three in four, have heads of equal weights."""

LOW: tuple[ScoreRecipe, ...] = (
    *(LevelScores(level=-20000.0),) * 2,
    LevelScores(level=-70000.0),
    LevelScores(),
    *(LevelScores(level=-110.0),) * 4,
)
"""All logits so far below 0, some below all numbers of float16, that they have no weight in float32, or at least in
float16, beside a wrong maximum of 0 or a finite stand-in for -inf. Beside a sink of another level they would have no
weight in a correct kernel either."""

HIDDEN: tuple[ScoreRecipe, ...] = tuple(recipe for recipe in reversed(LOW) for _ in range(2))
"""More of them where some rows see nothing of a tile or segment. In reverse order, so that equal recipes are neighbours
and a recipe drawn from here can shrink into ``LOW``."""

EXTREME: tuple[ScoreRecipe, ...] = (
    LevelScores(level=80.0),
    LevelScores(level=110.0),
    LevelScores(level=20000.0),
    NeedleScores(place="boundary", strength=30.0),
    DenormalScores(),
)
"""Logits at the ends of the exponential's range; not for one-byte caches, whose error bounds are larger than they."""

WINDOWED: tuple[ScoreRecipe, ...] = (NeedleScores(place="outside_left"),) * 5
"""The key just left of the window has far more weight than all visible keys."""

KNEE = 7 / 32
"""The share of a soft cap at which it begins to bend logits: there the higher terms of tanh matter without dominating,
and an implementation changes from a series to a quotient."""

VALUES: tuple[ValueRecipe, ...] = (
    *(NormalValues(),) * 5,
    *(PositionValues(),) * 5,
    *(IntegerValues(),) * 3,
    *(OneHotValues(),) * 2,
    ConstantValues(),
    ConstantValues(value=-3.0),
    OutlierValues(),
    DenormalValues(),
)

OVERRIDE_VALUES = (0.0, 1.0, -1.0, 16.0, -16.0, 448.0, -1000.0)

_VALUES = sampled_from(VALUES)
_EXACT_VALUES = sampled_from((*VALUES, *(IntegerValues(),) * (2 * len(VALUES))))
_FIRST = sampled_from((False,) * 11 + (True,))
_ANOTHER = sampled_from((False, False, True))
_OVERRIDE_VALUES = sampled_from(OVERRIDE_VALUES)
_OVERRIDE_TENSORS: st.SearchStrategy[Literal["q", "k", "v"]] = sampled_from(("q", "k", "v"))


def capped_scores(softcap: float) -> tuple[ScoreRecipe, ...]:
    """Return recipes of logits far beyond a soft cap, of both signs, and around its knee."""
    return (
        *(NormalScores(spread=64.0),) * 4,
        *(OutlierScores(factor=64.0),) * 2,
        *(LevelScores(level=KNEE * softcap, jitter=softcap / 32),) * 6,
    )


def score_recipes(
    *,
    window: bool = False,
    softcap: float = 0.0,
    sinks: bool = False,
    segments: bool = False,
    one_byte: bool = False,
    long: bool = False,
    hidden_tile: bool = False,
) -> st.SearchStrategy[ScoreRecipe]:
    """Return a strategy of recipes of the logits; shrinks towards standard normal ones.

    With a window, some logits peak just outside of it. With a soft cap, some are far beyond it or at its knee. With a
    window or segments, some rows may see nothing of a tile or segment; low logits, which reveal mistakes there, are
    frequent, with ``sinks`` less so, which then must be low too. ``one_byte`` operands exclude levels at which their
    coarse steps would make every row ill-conditioned. ``long`` sequences often have weights of exactly 0 and 1. With
    ``hidden_tile`` of only some rows of a block, most logits are low unless there are ``sinks``.
    """
    return _score_recipes(window, softcap, sinks, segments, one_byte, long, hidden_tile and not sinks)


def is_low(scores: ScoreRecipe) -> bool:
    """Return whether a recipe puts all logits far below those of a usual sink."""
    return scores in LOW


@lru_cache(maxsize=128)
def _score_recipes(
    window: bool, softcap: float, sinks: bool, segments: bool, one_byte: bool, long: bool, hidden_tile: bool
) -> st.SearchStrategy[ScoreRecipe]:
    low = ((LOW, True), (HIDDEN, not sinks and (window or segments)))
    tables = (*low, (EXTREME, not one_byte), (WINDOWED, window), (capped_scores(softcap), softcap > 0))
    # A table that does not apply is filled with others: an index must mean the same when shrinking drops a feature.
    chosen = (recipe for table, applies in tables for recipe in (table if applies else SCORES[: len(table)]))
    return sampled_from((*SCORES, *chosen, *EXACT * long, *HIDDEN * (4 * hidden_tile)))


def value_recipes(*, exact: bool = False) -> st.SearchStrategy[ValueRecipe]:
    """Return a strategy of recipes of the cached values; shrinks towards standard normal ones.

    With ``exact`` weights most values are integers, whose sums are exact too.
    """
    return _EXACT_VALUES if exact else _VALUES


@composite
def overrides(
    draw: st.DrawFn,
    *,
    sequences: tuple[Sequence, ...] = (),
    heads: HeadLayout = HeadLayout(),  # noqa: B008 (frozen)
) -> tuple[Override, ...]:
    """Return a strategy of up to three overrides, in about one case of twelve; shrinks towards none."""
    owners = [index for index, sequence in enumerate(sequences) if sequence.query_len and sequence.seq_len]
    chosen: list[Override] = []
    while len(chosen) < MAX_OVERRIDES and draw(_ANOTHER if chosen else _FIRST) and owners:
        chosen.append(_override(draw, sequences, owners[draw(indices(len(owners)))], heads))
    return tuple(chosen)


def _override(draw: st.DrawFn, sequences: tuple[Sequence, ...], owner: int, heads: HeadLayout) -> Override:
    tensor = draw(_OVERRIDE_TENSORS)
    sequence = sequences[owner]
    positions = sequence.query_len if tensor == "q" else sequence.seq_len
    return Override(
        tensor=tensor,
        sequence=owner,
        position=draw(indices(positions)),
        head=draw(indices(heads.num_query_heads if tensor == "q" else heads.num_kv_heads)),
        column=draw(indices(heads.head_size)),
        value=draw(_OVERRIDE_VALUES),
    )


_SLOTS: st.SearchStrategy[SlotPoison] = sampled_from(("nan", "nan", "inf", "negative_inf", "huge"))
_TABLES: st.SearchStrategy[TablePoison] = sampled_from(("one_past", "negative", "huge", "zero"))
_OUTPUTS: st.SearchStrategy[Literal[0, 1]] = sampled_from((0, 1))


@composite
def poisons(draw: st.DrawFn) -> PoisonRecipe:
    """Return a strategy of poisons, independent for K and V.

    Shrinks towards NaN in the slots and the first invalid page number in the table.
    """
    return PoisonRecipe(keys=draw(_SLOTS), values=draw(_SLOTS), table=draw(_TABLES), out=draw(_OUTPUTS))
