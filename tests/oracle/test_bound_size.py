"""Terms of the bound are no larger than their derivations, which a bound that only holds does not show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.exactness import significant_keys
from fuzz_attn.oracle.logits import addition_error, exp_error, softcap_error
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
    bound = exp_error(torch.from_numpy(exact), torch.zeros(1), units=0.0).numpy()
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
    assert float(attend(tensors).bound.max()) < 64 * UNIT


def test_weights_that_are_summed_before_their_cast(by_hand: Builder) -> None:
    """Only the numerator has the cast of P, once; a target that rounds the denominator too must declare it."""
    tensors = by_hand([[0.0]], [[1.0]] * 8, [[1.0]] * 8, torch.bfloat16, output=torch.zeros(1, 1, 1))
    assert float(attend(tensors).bound) < 1.1 * unit_roundoff(torch.bfloat16)


@pytest.mark.parametrize(("distance", "significant"), [(1.0, True), (30.0, True), (103.0, True), (120.0, False)])
def test_a_key_is_negligible_where_its_weight_is_0_in_float32(distance: float, significant: bool) -> None:
    exponent = torch.tensor([[0.0, -distance]], dtype=torch.float64)
    assert (np.exp(-distance) >= 2.0**-149) == significant
    top, error = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 2), 1e-6, dtype=torch.float64)
    found = significant_keys(exponent, exponent, top, error)
    assert (True if found is None else bool(found[0, 1])) == significant


def test_fp8_outputs_beyond_the_range_are_the_largest_number(by_hand: Builder) -> None:
    output = torch.zeros(1, 1, 1).to(torch.float8_e5m2)
    tensors = by_hand([[0.0]], [[1.0]] * 2, [[1e6]] * 2, output=output)
    reference = attend(tensors)
    assert float(reference.expected) == torch.finfo(torch.float8_e5m2).max
    assert float(reference.bound) < 0.25 * float(reference.expected)
