"""Poisons: what memory holds that no kernel may read."""

from __future__ import annotations

from typing import Literal

from hypothesis import strategies as st

from fuzz_attn.case.recipes import PoisonRecipe, SlotPoison, TablePoison
from fuzz_attn.strategies.draws import composite, sampled_from

_SLOTS: st.SearchStrategy[SlotPoison] = sampled_from(("nan", "nan", "inf", "negative_inf", "huge"))
_TABLES: st.SearchStrategy[TablePoison] = sampled_from(("one_past", "negative", "huge", "zero"))
_OUTPUTS: st.SearchStrategy[Literal[0, 1]] = sampled_from((0, 1))


@composite
def poisons(draw: st.DrawFn) -> PoisonRecipe:
    """Return a strategy of poisons, independent for K and V.

    Shrinks towards NaN in the slots and the first invalid page number in the table.
    """
    return PoisonRecipe(keys=draw(_SLOTS), values=draw(_SLOTS), table=draw(_TABLES), out=draw(_OUTPUTS))
