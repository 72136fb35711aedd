"""Biases: ALiBi slopes, query-query bias and sinks."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import HeadLayout, Sequence
from fuzz_attn.case.recipes import AlibiRecipe, QQBiasRecipe, SinkRecipe
from fuzz_attn.inputs.numbers import alibi_slopes, qq_bias, sinks, standard_slopes
from fuzz_attn.inputs.storage import BIAS_DTYPES
from fuzz_attn.inputs.tensors import materialise

QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)


def case_of(heads: int = 8, query_len: int = 6, seed: int = 3) -> AttentionCase:
    return AttentionCase((Sequence(2), Sequence(query_len, 4)), heads=HeadLayout(heads), seed=seed)


def slopes_of_the_paper(num_heads: int) -> list[mpmath.mpf]:
    """Return the slopes as the paper's section 3 and its published code define them."""
    power = 2 ** int(mpmath.floor(mpmath.log(num_heads, 2)))
    slopes = [mpmath.mpf(2) ** (mpmath.mpf(-8) * i / power) for i in range(1, power + 1)]
    twice = [mpmath.mpf(2) ** (mpmath.mpf(-8) * i / (2 * power)) for i in range(1, 2 * power + 1)]
    return slopes + twice[0::2][: num_heads - power]


@pytest.mark.parametrize("num_heads", range(1, 71))
def test_standard_slopes_are_those_of_the_paper(num_heads: int) -> None:
    slopes = standard_slopes(num_heads)
    assert len(slopes) == num_heads
    with mpmath.workdps(40):
        expected = slopes_of_the_paper(num_heads)
        # Eight roots and up to 128 products, each rounded to double once.
        assert max(abs(slope / exact - 1) for slope, exact in zip(slopes, expected, strict=True)) < 300 * 2.0**-53


def test_standard_slopes_by_hand() -> None:
    assert standard_slopes(8) == [2.0**-i for i in range(1, 9)]
    assert standard_slopes(1) == [2.0**-8]
    assert standard_slopes(3) == [2.0**-4, 2.0**-8, 2.0**-2]


@pytest.mark.parametrize("scale", [1.0, 0.5, -3.0])
def test_kinds_of_slopes(scale: float) -> None:
    case = case_of(heads=40)
    expected = np.array(standard_slopes(40)) * scale
    np.testing.assert_allclose(alibi_slopes(AlibiRecipe("standard", scale), case), expected, rtol=2.0**-24)
    np.testing.assert_allclose(alibi_slopes(AlibiRecipe("negative", scale), case), -expected, rtol=2.0**-24)
    assert alibi_slopes(AlibiRecipe("zero", scale), case).tolist() == [0.0] * 40
    positive = alibi_slopes(AlibiRecipe("positive", scale), case)
    assert 0 < (positive / scale).min() < (positive / scale).max() <= 1
    arbitrary = alibi_slopes(AlibiRecipe("arbitrary", scale), case)
    assert (np.abs(arbitrary) <= abs(scale)).all()
    assert (arbitrary < 0).any()
    assert (arbitrary > 0).any()
    assert len(np.unique(arbitrary)) == 40


def test_near_uniform_divides_the_slopes_of_most_heads() -> None:
    case = case_of(heads=200)
    slopes, scaled = (alibi_slopes(AlibiRecipe("arbitrary"), replace(case, near_uniform=on)) for on in (False, True))
    divided = scaled == slopes / 16  # the next power of two above the longest sequence, of 10 keys
    assert (divided | (scaled == slopes)).all()
    assert 0.85 < divided.mean() < 1.0


@pytest.mark.parametrize("heads", [1, 5, 64])
@pytest.mark.parametrize("kind", ["standard", "arbitrary", "zero", "negative"])
def test_one_float32_slope_for_each_query_head(heads: int, kind: str) -> None:
    slopes = alibi_slopes(AlibiRecipe(kind), case_of(heads=heads))  # type: ignore[arg-type]  # parametrized
    assert slopes.shape == (heads,)
    assert slopes.dtype == np.float32


RECIPES = st.builds(
    QQBiasRecipe,
    kind=st.sampled_from(("dense", "tree", "zero", "diagonal")),
    extra_rows=st.integers(0, 4),
    extra_columns=st.integers(-8, 8),
    row_padding=st.integers(0, 4),
    scale=st.sampled_from((1.0, 4.0, 1e30)),
)


@QUIET
@given(RECIPES, st.integers(0, 12))
def test_matrix_has_its_shape_and_nan_around(recipe: QQBiasRecipe, query_len: int) -> None:
    case = AttentionCase((Sequence(query_len, 4), Sequence(min(query_len, 2))))
    bias, live = qq_bias(recipe, case), max(1, query_len)
    assert bias.shape == (live, max(1, live + recipe.extra_columns))
    assert bias.dtype == np.float32
    assert not np.isnan(bias).any()
    tensor = materialise(replace(case, qq_bias=recipe)).qq_bias
    assert tensor is not None
    assert tensor.shape == (live + recipe.extra_rows, bias.shape[1])
    np.testing.assert_array_equal(tensor[:live].numpy(), bias)
    assert tensor[live:].isnan().all()
    assert tensor.stride(0) == bias.shape[1] + recipe.row_padding
    gap = tensor.storage_offset() + bias.shape[1]
    assert torch.as_strided(tensor, (tensor.shape[0], recipe.row_padding), tensor.stride(), gap).isnan().all()


@pytest.mark.parametrize("dtype", BIAS_DTYPES)
@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize(
    ("order", "strides"), [("rows", (9, 1)), ("columns", (1, 8)), ("one_row", (0, 1)), ("one_column", (4, 0))]
)
def test_memory_of_a_bias(order: Any, strides: tuple[int, int], step: int, dtype: Any) -> None:
    recipe = QQBiasRecipe("dense", 1, 2, 3, dtype=dtype, order=order, step=step)
    case = case_of(query_len=4)
    tensor = materialise(replace(case, qq_bias=recipe)).qq_bias
    assert tensor is not None
    assert tensor.shape == (5, 6)
    assert tensor.stride() == tuple(stride * step for stride in strides)
    assert torch.equal(tensor[:4], torch.from_numpy(qq_bias(recipe, case)).to(BIAS_DTYPES[recipe.dtype]))
    memory = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    unused = torch.ones_like(memory, dtype=torch.bool)
    unused.as_strided((4, 6), tensor.stride(), tensor.storage_offset()).fill_(False)
    assert bool(memory[unused].isnan().all())


@QUIET
@given(RECIPES, st.integers(1, 12), st.integers(0, 100))
def test_diagonal_is_finite_and_nothing_is_plus_infinity(recipe: QQBiasRecipe, query_len: int, seed: int) -> None:
    bias = qq_bias(recipe, case_of(query_len=query_len, seed=seed))
    matrix = bias[: max(2, query_len)]
    assert np.isfinite(np.diagonal(matrix)).all()
    assert not np.isposinf(matrix).any()


@QUIET
@given(st.integers(1, 12), st.integers(0, 1000), st.integers(-6, 6))
def test_tree_shows_the_own_token_and_its_ancestors(query_len: int, seed: int, extra_columns: int) -> None:
    case = AttentionCase((Sequence(query_len),), seed=seed)
    whole = qq_bias(QQBiasRecipe("tree"), case)
    assert set(np.unique(whole).tolist()) <= {0.0, -np.inf}
    parents = {}
    for row in range(query_len):
        path = np.flatnonzero(whole[row] == 0.0).tolist()
        assert path[-1] == row
        if row:
            assert path[0] == 0
            parents[row] = path[-2]
            # A path is the parent's path and the token itself: so it is a tree.
            assert path[:-1] == np.flatnonzero(whole[parents[row]] == 0.0).tolist()
    other = qq_bias(QQBiasRecipe("tree", extra_columns=extra_columns), case)
    shared = min(other.shape[1], query_len)
    np.testing.assert_array_equal(other[:, :shared], whole[:, :shared])
    assert (other[:, query_len:] == -np.inf).all()


def test_diagonal_bias_lets_tokens_see_only_themselves() -> None:
    bias = qq_bias(QQBiasRecipe("diagonal"), case_of(query_len=5))
    np.testing.assert_array_equal(bias == 0.0, np.eye(5, dtype=np.bool_))
    assert set(np.unique(bias).tolist()) == {0.0, -np.inf}


def test_trees_branch() -> None:
    # Not a chain: some token has a parent other than the one before it, and the seed decides which.
    trees = {qq_bias(QQBiasRecipe("tree"), case_of(query_len=6, seed=seed)).tobytes() for seed in range(20)}
    chain = np.where(np.tri(6, dtype=np.bool_), np.float32(0.0), np.float32(-np.inf)).tobytes()
    assert len(trees) > 10
    assert trees != {chain}


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_dense_bias_is_normal(scale: float) -> None:
    bias = qq_bias(QQBiasRecipe(scale=scale), case_of(query_len=50))
    assert abs(bias.std() / scale - 1.0) < 0.1
    assert abs(bias.mean()) < 0.1 * scale


def test_zero_bias_is_zero() -> None:
    assert not qq_bias(QQBiasRecipe("zero"), case_of()).any()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("level", [0.0, -20.0, 5.0])
@pytest.mark.parametrize("spread", [0.0, 1.0, 2.0])
def test_sinks_have_level_spread_and_type(dtype: str, level: float, spread: float) -> None:
    recipe = SinkRecipe(level, spread, dtype)  # type: ignore[arg-type]  # parametrized
    case = AttentionCase((Sequence(1),), heads=HeadLayout(500), sinks=recipe)
    exact = sinks(recipe, case)
    assert exact.shape == (500,)
    assert abs(exact.mean() - level) <= 5 * spread / 500**0.5
    assert abs(exact.std() - spread) <= 0.15 * spread
    tensor = materialise(case).sinks
    assert tensor is not None
    assert str(tensor.dtype) == f"torch.{dtype}"
    unit = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    assert (np.abs(tensor.double().numpy() - exact) <= np.abs(exact) * unit + 2.0**-25).all()
