"""Biases: ALiBi slopes, query-query bias and sinks of a case, as numpy arrays."""

from __future__ import annotations

import math

import numpy as np

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.recipes import AlibiRecipe, QQBiasRecipe, SinkRecipe
from fuzz_attn.inputs.numbers import equal_heads
from fuzz_attn.inputs.random_bits import Floats, Stream

_SLOPES, _BIAS, _TREE, _SINKS, _UNIFORM_SLOPES = 21, 22, 23, 24, 25


def alibi_slopes(recipe: AlibiRecipe, case: AttentionCase) -> Floats:
    """Return the slopes ``[num_query_heads]``.

    In a near-uniform case, most slopes are divided by about the longest sequence's length. A slope of 1 would leave no
    weight to keys that are 30 tokens away. Equal heads have a slope of 0.
    """
    slopes = _recipe_slopes(recipe, case)
    if case.near_uniform:
        factor = np.float32(2.0 ** -case.max_seq_len.bit_length())
        slopes *= np.where(Stream(case.seed, _UNIFORM_SLOPES).below(16, slopes.size) == 0, np.float32(1.0), factor)
    slopes[equal_heads(case)] = 0.0
    return slopes


def _recipe_slopes(recipe: AlibiRecipe, case: AttentionCase) -> Floats:
    heads = case.heads.num_query_heads
    if recipe.kind == "zero":
        return np.zeros(heads, np.float32)
    if recipe.kind == "positive":
        numbers = Stream(case.seed, _SLOPES).below(2**16, heads) + 1
        return numbers.astype(np.float32) * np.float32(2.0**-16 * recipe.scale)
    if recipe.kind == "arbitrary":
        uniform = Stream(case.seed, _SLOPES).below(2**20 + 1, heads).astype(np.float32) * np.float32(2.0**-19) - 1
        return uniform.astype(np.float32) * np.float32(recipe.scale)
    sign = -1.0 if recipe.kind == "negative" else 1.0
    return np.array(standard_slopes(heads), np.float32) * np.float32(sign * recipe.scale)


def standard_slopes(num_heads: int) -> list[float]:
    """Return the geometric slopes of Press et al., "Train Short, Test Long" (2022), for any number of heads.

    A power of two n has the slopes ``2 ** (-8 i / n)`` for i = 1 to n; other numbers add every second slope of 2 n.
    Only square roots and products are used, which IEEE rounds the same everywhere.
    """
    power = 1 << (num_heads.bit_length() - 1)
    slopes = _geometric(power)
    return slopes + _geometric(2 * power)[0::2][: num_heads - power]


def _geometric(count: int) -> list[float]:
    base = 2.0**-8
    for _ in range(count.bit_length() - 1):
        base = math.sqrt(base)
    slopes = [base]
    while len(slopes) < count:
        slopes.append(slopes[-1] * base)
    return slopes


def qq_bias(recipe: QQBiasRecipe, case: AttentionCase) -> Floats:
    """Return the bias between new tokens, without the rows that no kernel may read."""
    live = max(1, case.max_query_len)
    bias = _bias(recipe, case, live, max(1, live + recipe.extra_columns))
    if recipe.order == "one_row":
        bias[:] = bias[:1].copy()
    if recipe.order == "one_column":
        bias[:] = bias[:, :1].copy()
    return bias


def _bias(recipe: QQBiasRecipe, case: AttentionCase, rows: int, columns: int) -> Floats:
    if recipe.kind == "zero":
        return np.zeros((rows, columns), np.float32)
    if recipe.kind == "dense":
        return Stream(case.seed, _BIAS).normals(rows, columns) * np.float32(recipe.scale)
    seen = _tree(case, rows, columns) if recipe.kind == "tree" else np.eye(rows, columns, dtype=np.bool_)
    return np.where(seen, np.float32(0.0), np.float32(-np.inf))


def _tree(case: AttentionCase, rows: int, columns: int) -> np.typing.NDArray[np.bool_]:
    """Return which column is the row's own token or an ancestor of it in a random tree of draft tokens."""
    parents = Stream(case.seed, _TREE).below(np.maximum(np.arange(rows), 1), rows)
    ancestors = np.eye(rows, max(rows, columns), dtype=np.bool_)
    for row in range(1, rows):
        ancestors[row] |= ancestors[parents[row]]
    return ancestors[:, :columns]


def sinks(recipe: SinkRecipe, case: AttentionCase) -> Floats:
    """Return the sink logits ``[num_query_heads]`` before they are rounded and clamped to the recipe's type.

    Those of equal heads are 0.
    """
    normals = Stream(case.seed, _SINKS).normals(case.heads.num_query_heads)
    logits = normals * np.float32(recipe.spread) + np.float32(recipe.level)
    logits[equal_heads(case)] = 0.0
    return logits
