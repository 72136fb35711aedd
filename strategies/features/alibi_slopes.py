"""ALiBi slopes: recipes of one slope for each query head."""

from __future__ import annotations

from hypothesis import strategies as st

from fuzz_attn.case.recipes import AlibiRecipe
from fuzz_attn.strategies.sampling.draws import sampled_from

ALIBI_RECIPES = (
    AlibiRecipe(),
    AlibiRecipe(kind="arbitrary"),
    AlibiRecipe(kind="arbitrary"),
    AlibiRecipe(kind="standard", scale=16.0),
    AlibiRecipe(kind="negative"),
    AlibiRecipe(kind="negative", scale=16.0),
    AlibiRecipe(kind="arbitrary", scale=4.0),
    AlibiRecipe(kind="zero"),
)
"""Some are scaled up, as the standard slopes of one or two heads are too small to show over short contexts."""


def alibi_slopes() -> st.SearchStrategy[AlibiRecipe]:
    """Return a strategy of slope recipes; shrinks towards the standard slopes."""
    return sampled_from(ALIBI_RECIPES)
