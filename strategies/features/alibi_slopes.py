"""ALiBi slopes: recipes of one slope for each query head."""

from __future__ import annotations

from functools import lru_cache

from hypothesis import strategies as st

from fuzz_attn.case.domain import ALIBI_KINDS
from fuzz_attn.case.recipes import AlibiKind, AlibiRecipe
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

POSITIVE_RECIPES = (AlibiRecipe(kind="positive"), AlibiRecipe(kind="positive", scale=4.0))
"""For targets that take no arbitrary slopes, which are positive too."""


@lru_cache(maxsize=64)
def alibi_slopes(*, kinds: tuple[AlibiKind, ...] = ALIBI_KINDS) -> st.SearchStrategy[AlibiRecipe]:
    """Return a strategy of slope recipes of some kinds, in float32; shrinks towards the standard ones."""
    recipes = ALIBI_RECIPES if "arbitrary" in kinds else (*ALIBI_RECIPES, *POSITIVE_RECIPES)
    return sampled_from([each for each in recipes if each.kind in kinds])
