"""Sinks: recipes of one logit for each query head that enters only the denominator."""

from __future__ import annotations

from hypothesis import strategies as st

from fuzz_attn.case.recipes import SinkRecipe
from fuzz_attn.strategies.sampling.draws import sampled_from

SINK_RECIPES = (
    SinkRecipe(),
    SinkRecipe(),
    SinkRecipe(),
    SinkRecipe(level=3.0),
    SinkRecipe(level=3.0),
    SinkRecipe(level=-3.0),
    SinkRecipe(spread=4.0),
    SinkRecipe(level=12.0),
    SinkRecipe(level=6.0, spread=12.0),
    SinkRecipe(level=-20.0),
    SinkRecipe(level=-110.0),
    SinkRecipe(level=-1e4, spread=0.0),
    SinkRecipe(spread=0.0),
)
"""Among the logits, far above them, far below, and so far below that they have no effect. Sinks above 15 stand beside
lower ones: with such a sink the weights are 0 in a half type and hide the keys."""


_RECIPES = sampled_from(SINK_RECIPES)


def sinks() -> st.SearchStrategy[SinkRecipe]:
    """Return a strategy of recipes of float32 sinks; shrinks towards sinks among the logits."""
    return _RECIPES
