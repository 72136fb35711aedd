"""Query-query biases: recipes of the matrix between the new tokens of a sequence."""

from __future__ import annotations

from hypothesis import strategies as st

from fuzz_attn.case.recipes import QQBiasRecipe
from fuzz_attn.strategies.sampling.draws import sampled_from

QQ_BIAS_RECIPES = (
    QQBiasRecipe(),
    QQBiasRecipe(),
    QQBiasRecipe(scale=4.0),
    QQBiasRecipe(kind="tree"),
    QQBiasRecipe(kind="tree"),
    QQBiasRecipe(row_padding=3),
    QQBiasRecipe(extra_columns=2),
    QQBiasRecipe(extra_columns=-1),
    QQBiasRecipe(extra_columns=-3, scale=4.0),
    QQBiasRecipe(extra_rows=1),
    QQBiasRecipe(extra_rows=2, extra_columns=3, row_padding=1),
    QQBiasRecipe(kind="tree", row_padding=8),
    QQBiasRecipe(kind="tree", extra_columns=2, row_padding=1),
    QQBiasRecipe(kind="tree", extra_columns=-1),
    QQBiasRecipe(kind="tree", extra_rows=2),
    QQBiasRecipe(kind="zero", extra_columns=-1),
    QQBiasRecipe(kind="diagonal"),
    QQBiasRecipe(kind="diagonal"),
    QQBiasRecipe(kind="diagonal"),
    QQBiasRecipe(kind="diagonal"),
    QQBiasRecipe(kind="diagonal", extra_columns=-1),
)
"""Dense and tree masks: square, wider and narrower than the queries, with extra rows, slices of a wider matrix.

With a diagonal mask no token sees another one, so whole tiles and segments have no visible key for any row."""


def qq_biases() -> st.SearchStrategy[QQBiasRecipe]:
    """Return a strategy of bias recipes; shrinks towards a dense square matrix."""
    return sampled_from(QQ_BIAS_RECIPES)
