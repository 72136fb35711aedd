"""Relation choices: whether a case is asked a relation beyond its first launch, and which."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.strategies.sampling.draws import composite, sampled_from
from fuzz_attn.strategies.sampling.lattices import draw_index

NUM_CHOICES: Final = 2**12
"""How many choices there are; whoever reads one shares them out among the relations that hold for the case."""

_ASKED = sampled_from((False, False, False, True, True))


@composite
def relation_choices(draw: st.DrawFn) -> int | None:
    """Draw a choice, or None for no relation, since each costs another launch; shrinks towards None.

    Drawn beside the case, not from what holds for it: what is left of a choice while the case shrinks is up to the
    reader. Three in five are None.
    """
    asked, choice = draw(_ASKED), draw_index(draw, NUM_CHOICES)
    return choice if asked else None


@composite
def with_choices(draw: st.DrawFn, cases: st.SearchStrategy[AttentionCase]) -> tuple[AttentionCase, int | None]:
    """Draw a case, then a choice, each under a label of its own: as two arguments of a test they would share one."""
    return draw(cases), draw(relation_choices())
