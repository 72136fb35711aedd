"""Relation choices: whether a case is checked for a metamorphic relation, and which."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.serving import looks_like_serving
from fuzz_attn.strategies.draws import composite, draw_index, sampled_from

NUM_CHOICES: Final = 2**12
"""The number of choices; the schedule maps each to one of the relations that hold for the case."""

_ASKED = sampled_from((False,) * 11 + (True,) * 9)

COSTLY_KEYS, COSTLY_TOKENS, COSTLY_ELEMENTS, SELDOM = 8_193, 500, 2**15, 4
"""Cases with more keys, tokens or elements of q and K, or such as people serve, are asked for a relation ``SELDOM``
times less often: a fifth to a third of the cases of each family, which take a quarter to two thirds of its relations'
time."""


@composite
def relation_choices(draw: st.DrawFn) -> int | None:
    """Return a strategy of choices, 11 in 20 None for no relation; shrinks towards None.

    Each relation costs another launch. A choice does not depend on the case, so it can stay while the case shrinks.
    """
    asked, choice = draw(_ASKED), draw_index(draw, NUM_CHOICES)
    return choice if asked else None


@composite
def with_choices(draw: st.DrawFn, cases: st.SearchStrategy[AttentionCase]) -> tuple[AttentionCase, int | None]:
    """Return a strategy of a case and a choice, drawn under different labels; shrinks both.

    One in ten costly cases has a choice.
    """
    case, choice = draw(cases), draw(relation_choices())
    heads = case.heads
    rows = case.total_keys * heads.num_kv_heads + case.num_tokens * heads.num_query_heads
    elements = rows * heads.head_size
    large = case.total_keys > COSTLY_KEYS or case.num_tokens > COSTLY_TOKENS or elements > COSTLY_ELEMENTS
    costly = large or looks_like_serving(case)
    return case, None if costly and choice is not None and choice % SELDOM else choice
