"""ALiBi slopes: recipes of one slope for each query head."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from hypothesis import strategies as st

from fuzz_attn.case.domain import ALIBI_KINDS
from fuzz_attn.case.recipes import AlibiKind, AlibiRecipe, BiasDType
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

POSITIVE_RECIPES = (AlibiRecipe(kind="positive"), AlibiRecipe(kind="positive", scale=4.0))
"""For targets that take no arbitrary slopes, which are positive too."""


@lru_cache(maxsize=64)
def alibi_slopes(
    *, kinds: tuple[AlibiKind, ...] = ALIBI_KINDS, other_dtypes: bool = False
) -> st.SearchStrategy[AlibiRecipe]:
    """Return a strategy of slope recipes of some kinds, some in ``other_dtypes``.

    Shrinks towards the standard ones in float32.
    """
    recipes = ALIBI_RECIPES if "arbitrary" in kinds else (*ALIBI_RECIPES, *POSITIVE_RECIPES)
    dtypes: tuple[BiasDType, ...] = BIAS_DTYPES if other_dtypes else ("float32",)
    return sampled_from(
        [msgspec.structs.replace(each, dtype=dtype) for dtype in dtypes for each in recipes if each.kind in kinds]
    )
