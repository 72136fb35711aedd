"""ALiBi slopes: recipes of one slope for each query head."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from fuzz_attn.case.recipes import AlibiRecipe, BiasDType
from fuzz_attn.strategies.sampling.draws import sampled_from

BIAS_DTYPES: tuple[BiasDType, ...] = ("float32",) * 9 + ("float16", "bfloat16", "float64")
"""The types of slopes and biases; each other type than float32 compiles a kernel anew."""

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


_RECIPES = sampled_from(ALIBI_RECIPES)
_OF_ALL_DTYPES = sampled_from(
    tuple(msgspec.structs.replace(recipe, dtype=dtype) for dtype in BIAS_DTYPES for recipe in ALIBI_RECIPES)
)


def alibi_slopes(*, other_dtypes: bool = False) -> st.SearchStrategy[AlibiRecipe]:
    """Return a strategy of slope recipes, some in ``other_dtypes``; shrinks towards the standard ones in float32."""
    return _OF_ALL_DTYPES if other_dtypes else _RECIPES
