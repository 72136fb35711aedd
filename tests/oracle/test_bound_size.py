"""Terms of the bound are no larger than their derivations, which a bound that only holds does not show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.logits import addition_error, exp_error, significant_keys, softcap_error
from fuzz_attn.oracle.reference import attend
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.oracle.roundings import UNIT, unit_roundoff

Builder = Callable[..., AttentionTensors]
Array = np.ndarray[Any, np.dtype[np.float64]]


def float32s(low: float, high: float) -> Array:
    """Return 100,000 float32 numbers in float64."""
    return np.random.default_rng(4).uniform(low, high, 100_000).astype(np.float32).astype(np.float64)


def rounded(numbers: Array) -> Array:
    return numbers.astype(np.float32).astype(np.float64)


def test_an_exponential_of_a_large_exponent() -> None:
    """A kernel subtracts the maximum and multiplies with a rounded log2(e) before it calls exp2."""
    scores, top = float32s(-90.0, -10.0), 1.7
    exact = scores - float(np.float32(top))
    base2 = rounded(rounded(exact) * float(np.float32(np.log2(np.e))))
    lost = np.abs(base2 * np.log(2.0) - exact)
    bound = exp_error(torch.from_numpy(exact), torch.zeros(1), torch.zeros(1), units=0.0).numpy()
    assert 0.5 < (lost / bound).max() <= 1.0


def test_a_bias_far_above_the_score() -> None:
    """A kernel rounds the product of slope and distance, and then the sum."""
    slope, distance, score = float32s(1.0, 2.0), 977.0, 0.3
    exact = slope * distance
    total = exact + float(np.float32(score))
    lost = np.abs(rounded(rounded(exact) + float(np.float32(score))) - total)
    bound = addition_error(torch.from_numpy(exact), torch.from_numpy(total)).numpy()
    assert 0.4 < (lost / bound).max() <= 1.0


def test_a_score_far_beyond_the_soft_cap() -> None:
    """The soft cap is flat there: an error of 1 in a score of 10,000 moves nothing; only tanh and a product round."""
    one = torch.ones(1, dtype=torch.float64)
    error = softcap_error(10_000 * one, 3 * one, one, 3.0, RoundingModel(tanh_units=24.0))
    assert float(error) == pytest.approx(3 * 26 * UNIT, rel=1e-3)


def test_values_that_are_alike_hide_errors_of_the_weights(by_hand: Builder) -> None:
    """The errors of these scores move 2e-4 of the weight, between values that are all 1."""
    query, key = [1.0] + [1e-3] * 63, [30.0] + [1e-3] * 63
    tensors = by_hand([query], [key, [-30.0, *key[1:]], key], [[1.0] * 64] * 3, output=torch.zeros(1, 1, 64))
    assert float(attend(tensors)["out"].bound.max()) < 64 * UNIT


def test_weights_that_are_summed_before_their_cast(by_hand: Builder) -> None:
    """Only the numerator has the cast of P, once; a target that rounds the denominator too must declare it."""
    tensors = by_hand([[0.0]], [[1.0]] * 8, [[1.0]] * 8, torch.bfloat16, output=torch.zeros(1, 1, 1))
    assert float(attend(tensors)["out"].bound) < 1.1 * unit_roundoff(torch.bfloat16)


@pytest.mark.parametrize(("distance", "significant"), [(1.0, True), (30.0, True), (103.0, True), (120.0, False)])
def test_a_key_is_negligible_where_its_weight_is_0_in_float32(distance: float, significant: bool) -> None:
    exponent = torch.tensor([[0.0, -distance]], dtype=torch.float64)
    assert (np.exp(-distance) >= 2.0**-149) == significant
    top, error = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 2), 1e-6, dtype=torch.float64)
    found = significant_keys(exponent, exponent, top, error, error.amax(-1, keepdim=True))
    assert (True if found is None else bool(found[0, 1])) == significant


def test_fp8_outputs_beyond_the_range_are_the_largest_number(by_hand: Builder) -> None:
    output = torch.zeros(1, 1, 1).to(torch.float8_e5m2)
    tensors = by_hand([[0.0]], [[1.0]] * 2, [[1e6]] * 2, output=output)
    reference = attend(tensors)
    assert float(reference["out"].value) == torch.finfo(torch.float8_e5m2).max
    assert float(reference["out"].bound) < 0.25 * float(reference["out"].value)


def test_sums_of_values_of_both_signs_have_half_the_bound(by_hand: Builder) -> None:
    """Of 1,000 equal weights that are not exact; the sum of the positive values is half of all."""
    bounds = []
    for sign in (1.0, -1.0):
        keys, values = [[1e-4 * n] for n in range(1000)], [[1.0], [sign]] * 500
        tensors = by_hand([[0.1]], keys, values, output=torch.zeros(1, 1, 1))
        bounds.append(float(attend(tensors)["out"].bound))
    # With one sign the denominator loses as much as the numerator; with both, weights may move between the values.
    assert 0.2 < bounds[1] / bounds[0] < 0.6


def test_values_of_zero_are_no_additions(by_hand: Builder) -> None:
    """Of 1,000 weights that are not exact; one value of ten or of a hundred is not 0 in the other columns."""
    keys = [[1e-4 * n, 0.0, 0.0] for n in range(1000)]
    values = [[1.0, float(n % 10 == 0), float(n % 100 == 0)] for n in range(1000)]
    tensors = by_hand([[0.1, 0.0, 0.0]], keys, values, output=torch.zeros(1, 1, 3))
    nearest, truncating = attend(tensors), attend(tensors, RoundingModel(accumulate_slack=2.0))
    units = ((truncating["out"].bound - nearest["out"].bound) / (nearest["out"].value * UNIT)).flatten().tolist()
    # A truncating adder loses two units in each of 1,000 additions and 64 rescalings, also those of 0. A factor loses
    # one unit more in each of 64 rescalings and of 5 others. The query has one number, so its dots have no additions.
    for found, nonzero in zip(units, (1000, 100, 10), strict=True):
        assert found == pytest.approx(2 * 1064 + 69 - (nonzero - 1), rel=0.02)


def test_a_narrow_softmax_without_a_sink_has_a_small_bound(by_hand: Builder) -> None:
    """The sink's logit of -inf has no error, though differences with it are rounded to bfloat16 too."""
    tensors = by_hand([[1.0]], [[0.5], [1.0], [0.25]], [[1.0], [2.0], [4.0]], torch.bfloat16)
    reference = attend(tensors, RoundingModel(softmax="query"))
    assert bool(reference["out"].judged.all())
    assert float(reference["out"].bound) < 20 * unit_roundoff(torch.bfloat16) * float(reference["out"].value)


@pytest.mark.parametrize("units", [6.0, 2.0**12, 2.0**20])
def test_an_exponential_may_lose_its_units_in_both_directions(units: float) -> None:
    zero = torch.zeros(1, 1, dtype=torch.float64)
    error = float(exp_error(zero.clone(), zero, zero, units))
    assert np.exp(-error) <= 1 - units * UNIT * (1 - 1e-9)
    assert error < 1.1 * units * UNIT
