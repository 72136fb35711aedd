"""The oracle gives the known answer of cases that need no computation of attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import DTypes, HeadLayout, Sequence
from fuzz_attn.case.recipes import ConstantValues, IntegerValues, NormalScores, SinkRecipe, UniformScores
from fuzz_attn.inputs.tensors import AttentionTensors, materialise
from fuzz_attn.oracle.reference import attend

Builder = Callable[..., AttentionTensors]

OWN_SHARE = 2.0**-24
"""Share of the bound that the oracle's own roundings may use here, where it makes fewer than 16: of 2^-53 each, so that
they move a number by 2^-49 of it. The bound contains half a spacing of float32, which is 2^-25 of it or more."""


def gives(tensors: AttentionTensors, wanted: list[float]) -> bool:
    """Return whether the oracle gives these numbers, up to its own roundings, which differ between machines."""
    reference = attend(tensors)
    exact = torch.tensor(wanted, dtype=torch.float64).view_as(reference["out"].value)
    return bool(((reference["out"].value - exact).abs() <= OWN_SHARE * reference["out"].bound).all())


def test_uniform_logits_average_the_values(by_hand: Builder) -> None:
    tensors = by_hand([[0.0]], [[1.0], [2.0], [3.0]], [[3.0], [6.0], [-3.0]])
    assert gives(tensors, [2.0])


def test_each_row_averages_up_to_its_own_key(by_hand: Builder) -> None:
    tensors = by_hand([[0.0], [0.0], [0.0]], [[1.0]] * 4, [[8.0], [4.0], [0.0], [-4.0]])
    assert gives(tensors, [6.0, 4.0, 2.0])


def test_one_key_is_copied(by_hand: Builder) -> None:
    tensors = by_hand([[5.0, 1.0]], [[-3.0, 2.0]], [[0.1, -7.0]])
    assert torch.equal(attend(tensors)["out"].value[0], tensors.value_cache[0, 0].double())


def test_window_of_one_copies_the_own_key() -> None:
    tensors = materialise(AttentionCase((Sequence(3, 2),), window=1, scores=NormalScores(4.0), values=IntegerValues()))
    own = tensors.value_cache[0, 2:5, 0].double()
    assert torch.equal(attend(tensors)["out"].value[:, 0], own)


def test_window_of_two_averages_two(by_hand: Builder) -> None:
    tensors = by_hand([[0.0], [0.0]], [[1.0]] * 3, [[9.0], [4.0], [2.0]], window=2)
    assert gives(tensors, [6.5, 3.0])


def test_constant_values_are_the_output() -> None:
    tensors = materialise(AttentionCase((Sequence(5, 30),), values=ConstantValues(-3.0), scores=NormalScores(4.0)))
    assert gives(tensors, [-3.0] * tensors.output.numel())


def test_a_sink_at_the_logits_is_one_more_key_of_value_zero() -> None:
    case = AttentionCase(
        (Sequence(1, 3),), values=ConstantValues(1.0), scores=UniformScores(), sinks=SinkRecipe(spread=0.0)
    )
    assert gives(materialise(case), [0.8] * 16)


def test_two_logits_weigh_as_the_logistic_function(by_hand: Builder) -> None:
    tensors = by_hand([[2.0]], [[0.0], [1.5]], [[0.0], [1.0]], softmax_scale=0.5)
    assert gives(tensors, [1 / (1 + math.exp(-1.5))])


def test_soft_cap_limits_the_logit(by_hand: Builder) -> None:
    tensors = by_hand([[2.0]], [[0.0], [3.0]], [[0.0], [1.0]], softcap=4.0)
    assert gives(tensors, [1 / (1 + math.exp(-4 * math.tanh(1.5)))])


def test_alibi_counts_from_the_context_length(by_hand: Builder) -> None:
    slopes, sinks = torch.tensor([0.5]), torch.tensor([0.0])
    tensors = by_hand([[0.0], [0.0]], [[1.0]] * 3, [[1.0]] * 3, alibi_slopes=slopes, sinks=sinks)
    weights = [math.exp(-0.5), 1.0, math.exp(0.5)]
    expected = [sum(weights[:2]) / (sum(weights[:2]) + 1), sum(weights) / (sum(weights) + 1)]
    assert gives(tensors, expected)


def test_query_bias_counts_rows_and_columns_from_the_first_new_token(by_hand: Builder) -> None:
    bias = torch.tensor([[0.0, 9.0], [-torch.inf, 0.0]])
    tensors = by_hand([[0.0], [0.0]], [[1.0]] * 3, [[3.0], [6.0], [9.0]], qq_bias=bias)
    assert gives(tensors, [4.5, 6.0])


def test_dominant_sink_gives_nearly_zero_with_a_positive_bound(by_hand: Builder) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        tensors = by_hand([[0.0]], [[1.0]] * 3, [[1.0]] * 3, dtype, sinks=torch.tensor([200.0]))
        reference = attend(tensors)
        assert 0.0 < float(reference["out"].value) < 1e-80
        assert 0.0 < float(reference["out"].bound) < 1e-6
        assert bool(reference["out"].judged.all())


def test_sink_of_minus_infinity_is_no_sink(by_hand: Builder) -> None:
    rows = [[1.0]], [[1.0], [2.0]], [[1.0], [5.0]]
    without, with_it = attend(by_hand(*rows)), attend(by_hand(*rows, sinks=torch.tensor([-torch.inf])))
    assert torch.equal(without["out"].value, with_it["out"].value)
    assert torch.equal(without["out"].bound, with_it["out"].bound)


@pytest.mark.parametrize("sequences", [(), (Sequence(0, 0),), (Sequence(0, 9), Sequence(0, 0))])
def test_batch_without_tokens_gives_an_empty_reference(sequences: tuple[Sequence, ...]) -> None:
    reference = attend(materialise(AttentionCase(sequences, heads=HeadLayout(2, 2, 4), padded_tokens=2)))
    assert reference["out"].value.shape == reference["out"].bound.shape == (0, 4, 4)
    assert reference["out"].judged.shape == (0, 4, 1)


def test_values_beyond_the_output_type_have_no_bound(by_hand: Builder) -> None:
    tensors = by_hand([[0.0, 0.0]], [[1.0, 1.0]], [[1e5, 1.0]], output=torch.zeros(1, 1, 2, dtype=torch.float16))
    assert attend(tensors)["out"].bound.isfinite().flatten().tolist() == [False, True]


def test_rows_with_scores_beyond_float32_have_no_bound(by_hand: Builder) -> None:
    tensors = by_hand([[1e30], [1.0]], [[1e30], [1.0], [1.0]], [[1.0]] * 3, window=2)
    reference = attend(tensors)
    assert reference["out"].bound.isfinite().flatten().tolist() == [False, True]
    assert bool(reference["out"].value.isfinite().all())


def test_columns_whose_sum_overflows_have_no_bound(by_hand: Builder) -> None:
    tensors = by_hand([[0.0, 0.0]], [[1.0, 1.0]] * 2, [[3e38, 1.0]] * 2)
    assert attend(tensors)["out"].bound.isfinite().flatten().tolist() == [False, True]


def test_keys_that_overflow_when_dequantised_have_no_bound() -> None:
    tensors = materialise(AttentionCase((Sequence(1, 5),), dtypes=DTypes("float16", "float8_e5m2", "float16")))
    tensors.key_cache.fill_(57344.0)
    reference = attend(replace(tensors, k_scale=torch.tensor([11.0])))
    assert bool(reference["out"].bound.isinf().all())
    assert bool(reference["out"].value.isfinite().all())


def test_huge_logits_close_together_are_ill_conditioned(by_hand: Builder) -> None:
    tensors = by_hand([[1e4], [1e-2]], [[1e4], [10000.001], [1e4]], [[1.0], [2.0], [3.0]])
    reference = attend(tensors)
    assert reference["out"].judged.flatten().tolist() == [False, True]
    assert bool(reference["out"].bound.isfinite().all())


def test_dominant_sink_is_well_conditioned(by_hand: Builder) -> None:
    tensors = by_hand([[1.0]], [[1.0], [2.0]], [[2.0], [5.0]], sinks=torch.tensor([1e8]))
    reference = attend(tensors)
    assert float(reference["out"].value) == 0.0
    assert 0.0 < float(reference["out"].bound) < 1e-30
    assert bool(reference["out"].judged)


def test_only_visible_key_is_well_conditioned(by_hand: Builder) -> None:
    tensors = by_hand([[1e4]], [[1.0], [1e4]], [[1.0], [2.0]], window=1)
    reference = attend(tensors)
    assert float(reference["out"].value) == 2.0
    assert float(reference["out"].bound) < 1e-5
    assert bool(reference["out"].judged)


def test_dominant_key_is_well_conditioned(by_hand: Builder) -> None:
    tensors = by_hand([[1e4]], [[1e4], [-1e4], [-2e4]], [[2.0], [5.0], [-7.0]])
    reference = attend(tensors)
    assert float(reference["out"].bound) < 1e-5
    assert bool(reference["out"].judged)
