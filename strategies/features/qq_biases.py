"""Query-query biases: recipes of the matrix between the new tokens of a sequence."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from hypothesis import strategies as st

from fuzz_attn.case.recipes import QQBiasRecipe
from fuzz_attn.strategies.sampling.draws import composite, sampled_from

Order: TypeAlias = Literal["rows", "columns", "one_row", "one_column"]

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


_ORDERS: tuple[Order, ...] = ("rows",) * 6 + ("columns", "columns", "one_row", "one_column")
_STEPS = (1,) * 7 + (2, 3, 16)

_RECIPES = sampled_from(QQ_BIAS_RECIPES)
_STRIDES = sampled_from(tuple((order, step) for step in _STEPS for order in _ORDERS))


@composite
def qq_biases(draw: st.DrawFn, *, inner_strides: bool = False) -> QQBiasRecipe:
    """Return a strategy of bias recipes; shrinks towards a dense square float32 matrix, row by row.

    With ``inner_strides`` some are stored column by column, with gaps, or expanded. Masks cannot be expanded: they are
    stored column by column instead.
    """
    recipe, (order, step) = draw(_RECIPES), draw(_STRIDES)
    if order != "rows" and recipe.kind not in ("dense", "zero"):
        order = "columns"
    return msgspec.structs.replace(recipe, order=order, step=step) if inner_strides else recipe
