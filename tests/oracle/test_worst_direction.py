"""An online softmax in which every rounding has the worst allowed error stays within the bound and comes close."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import DTypeName, DTypes, HeadLayout, Sequence
from fuzz_attn.case.recipes import AlibiRecipe, NormalScores, QQBiasRecipe, RampScores, ScoreRecipe, SinkRecipe
from fuzz_attn.inputs.tensors import AttentionTensors, materialise
from fuzz_attn.oracle import error_bound, logits, roundings
from fuzz_attn.oracle.reference import attend
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.oracle.row_blocks import row_blocks

RowViews = Callable[[AttentionTensors], Iterator[Any]]
Builder = Callable[..., AttentionTensors]

U = 2.0**-24
TF32 = 2.0**-10
"""The largest relative error of a tf32 operand: a tensor core ignores the low 13 of 23 bits, so it only shrinks."""
EXP = 4.0
"""Units that the exponential of this emulation loses, like CUDA's ``ex2.approx``."""


@dataclass(frozen=True)
class Adversary:
    """Computes one column of one row with roundings in the direction that makes it largest (1) or smallest (-1)."""

    tensors: AttentionTensors
    row: Any
    column: int
    average: float
    side: int
    tf32: bool = False
    tile_size: int = 16

    def output(self) -> float:
        """Return the column as a kernel stores it."""
        values = self.row.values[:, self.column]
        scores = self.scores(self.side * np.sign(values - self.average))
        top, total = (self.row.sink, 1.0) if self.row.sink > -np.inf else (-np.inf, 0.0)
        summed = 0.0
        for first in range(0, len(scores), self.tile_size):
            tile = slice(first, first + self.tile_size)
            new = max(top, scores[tile].max())
            alpha = np.exp(top - new) if top > -np.inf else 0.0
            # Both sums share alpha, so its error matters only where the scaled part differs from the average.
            alpha *= 1 + self.side * np.sign(summed - self.average * total) * U * (
                EXP + 2 * (new - top if alpha else 0)
            )
            push = self.side * np.sign(values[tile] - self.average)
            exponents = scores[tile] - new
            weights = np.exp(exponents) * (1 + push * U * (EXP + 2 * np.abs(exponents)))
            total *= alpha * (1 - self.side * np.sign(self.average) * U)
            for weight in weights:
                total = (total + weight) * (1 - self.side * np.sign(self.average) * U)
            summed *= alpha
            summed += U * self.side * abs(summed)
            for weight, value in zip(weights, values[tile], strict=True):
                product = self.cast(weight, np.sign(value)) * value
                summed += product + U * self.side * abs(product)
                summed += U * self.side * abs(summed)
            top = new
        result = summed / total * self.row.factor
        result += 2 * U * self.side * abs(result)
        return self.stored(result)

    def scores(self, push: Any) -> Any:
        """Return the logits, each with its largest error in the direction of its key."""
        total = np.zeros(len(push))
        for query, keys in zip(self.row.query, self.row.keys.T, strict=True):
            product = query * keys
            product = product * self.truncation(-push * np.sign(product))
            product = product + push * np.abs(product) * U
            total = total + product
            total = total + push * U * np.abs(total)
        total = total * self.row.scale
        total = total + push * U * np.abs(total)
        cap = self.tensors.softcap
        if cap:
            total = cap * np.tanh(total / cap) + push * 4 * U * cap
        total = total + self.row.bias
        return total + push * U * (np.abs(total) + np.abs(self.row.bias))

    def cast(self, weight: float, sign: float) -> float:
        """Return P in its type."""
        dtype = self.tensors.query.dtype
        if dtype == torch.float32:
            return float(weight * self.truncation(-self.side * sign))
        return weight + self.side * sign * max(true_unit(dtype) * weight, true_denormal(dtype))

    def truncation(self, wanted: Any) -> Any:
        """Return the factor of a product whose operands are cut towards 0, where a smaller product is wanted."""
        return np.where(wanted > 0, (1 - TF32 * self.tf32) ** 2, 1.0)

    def stored(self, result: float) -> float:
        """Return the output in its type."""
        dtype = self.tensors.output.dtype
        if dtype == torch.float32:
            return result
        return result + self.side * max(true_unit(dtype) * binade(result), true_denormal(dtype))


def true_unit(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps) / 2


def binade(number: float) -> float:
    """Return the largest power of two that is at most a number's magnitude; it determines the spacing around it."""
    return math.ldexp(0.5, math.frexp(number)[1]) if number else 0.0


def true_denormal(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).smallest_normal) * true_unit(dtype)


def worst_ratio(tensors: AttentionTensors, row_views: RowViews, model: RoundingModel | None = None) -> float:
    """Return the largest ``|error| / bound`` over all elements and both directions."""
    model = model or RoundingModel()
    reference = attend(tensors, model)
    assert bool(reference["out"].judged.all())
    worst = 0.0
    for row in row_views(tensors):
        for column in range(tensors.output.shape[2]):
            place = (row.token, row.head, column)
            expected = float(reference["out"].value[place])
            for side in (1, -1):
                output = Adversary(
                    tensors, row, column, expected / row.factor, side, tf32=model.input_precision == "tf32"
                ).output()
                worst = max(worst, abs(output - expected) / float(reference["out"].bound[place]))
    return worst


FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 19},
    "soft cap": {"softcap": 5.0},
    "alibi": {"alibi": AlibiRecipe("arbitrary")},
    "bias": {"qq_bias": QQBiasRecipe("tree")},
    "sinks": {"sinks": SinkRecipe()},
    "sinks above": {"sinks": SinkRecipe(12.0)},
}
SCORES: tuple[ScoreRecipe, ...] = (NormalScores(), NormalScores(6.0), RampScores(0.5))
PLAIN_DTYPES: tuple[DTypeName, ...] = ("float32", "float16", "bfloat16")


@pytest.mark.parametrize("dtype", PLAIN_DTYPES)
@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES.keys())
def test_worst_roundings_stay_within_the_bound_and_come_close(
    features: dict[str, Any], dtype: DTypeName, row_views: RowViews
) -> None:
    ratios = []
    for scores in SCORES:
        case = AttentionCase(
            (Sequence(2, 40),),
            heads=HeadLayout(1, 1, 3),
            dtypes=DTypes(dtype, dtype, dtype),
            scores=scores,
            softmax_scale=0.7,
            seed=3,
            **features,
        )
        ratios.append(worst_ratio(materialise(case), row_views))
    assert max(ratios) <= 1.0
    assert max(ratios) >= 0.3


def dot_dominates(by_hand: Builder) -> AttentionTensors:
    """Return keys with large logits whose first product dominates the other 63: every partial sum loses a full unit."""
    query = [[1.0] + [1e-3] * 63]
    keys = [[30.0] + [1e-3] * 63, [-30.0] + [1e-3] * 63, [30.0] + [1e-3] * 63]
    return by_hand(query, keys, [[1.0] * 64, [0.0] * 64, [-1.0] * 64], output=torch.zeros(1, 1, 64))


def sum_dominates(by_hand: Builder) -> AttentionTensors:
    """Return a first key that dominates the other 499: every partial sum loses a full unit."""
    return by_hand([[1.0]], [[0.0]] + [[-12.0]] * 499, [[1.0]] + [[1e-3]] * 499)


def cast_dominates(by_hand: Builder, dtype: torch.dtype) -> AttentionTensors:
    """Return uniform weights and values of both signs: nearly the whole error is the cast of P."""
    output = torch.zeros(1, 1, 1, dtype=torch.float32)
    return by_hand([[0.0]], [[1.0]] * 8, [[1.0], [-1.0]] * 4, dtype, output=output)


def truncated_score_dominates(by_hand: Builder) -> AttentionTensors:
    """Return one key beside an equal sink: only the key's score has an error."""
    tensors = by_hand([[1.0]], [[30.0]], [[1.0]], output=torch.zeros(1, 1, 1))
    return replace(tensors, sinks=torch.tensor([30.0]))


def truncated_weights_dominate(by_hand: Builder) -> AttentionTensors:
    """Return uniform weights and values of one sign: every product of P and V is cut, the sum of P is not."""
    return by_hand([[0.0]], [[1.0]] * 8, [[1.0]] * 8, output=torch.zeros(1, 1, 1))


def store_dominates(by_hand: Builder, dtype: torch.dtype) -> AttentionTensors:
    """Return one key: P is exactly 1 in most kernels, and only the output is rounded."""
    return by_hand([[0.0]], [[1.0]], [[1.0]], output=torch.zeros(1, 1, 1, dtype=dtype))


def denormals_dominate(by_hand: Builder) -> AttentionTensors:
    """Return a weight of 1 and a thousand weights below the normal range of float16."""
    keys = [[0.0]] + [[-15.0]] * 1000
    return by_hand([[1.0]], keys, [[0.0]] + [[1.0]] * 1000, torch.float16, output=torch.zeros(1, 1, 1))


def divided_denormals_dominate(by_hand: Builder) -> AttentionTensors:
    """Return as many weights of 1, with values of 0, as there are weights below the normal range of float16."""
    keys = [[0.0]] * 1000 + [[-15.0]] * 1000
    return by_hand([[1.0]], keys, [[0.0]] * 1000 + [[1.0]] * 1000, torch.float16, output=torch.zeros(1, 1, 1))


def halve(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    """Halve a constant of the bound, or the result of a function."""
    right = getattr(module, name)
    monkeypatch.setattr(module, name, right / 2 if isinstance(right, float) else lambda *args: right(*args) / 2)


PLAIN, TF32_DOTS = RoundingModel(), RoundingModel(input_precision="tf32")
DIVIDES_LAST = RoundingModel(normalises_last=True)
Term = tuple[Callable[[Builder], AttentionTensors], RoundingModel, Any, str]
TERMS: dict[str, Term] = {
    "dot": (dot_dominates, PLAIN, logits, "unit_roundoff"),
    "cast to half": (partial(cast_dominates, dtype=torch.float16), PLAIN, error_bound, "cast_unit"),
    "cast to bfloat16": (partial(cast_dominates, dtype=torch.bfloat16), PLAIN, error_bound, "cast_unit"),
    "store in half": (partial(store_dominates, dtype=torch.float16), PLAIN, error_bound, "half_spacing"),
    "store in e4m3": (partial(store_dominates, dtype=torch.float8_e4m3fn), PLAIN, error_bound, "half_spacing"),
    "store in e5m2": (partial(store_dominates, dtype=torch.float8_e5m2), PLAIN, error_bound, "half_spacing"),
    "denormal weights": (denormals_dominate, PLAIN, error_bound, "half_denormal"),
    "denormal weights divided last": (divided_denormals_dominate, DIVIDES_LAST, error_bound, "half_denormal"),
    "tf32 scores": (truncated_score_dominates, TF32_DOTS, roundings, "operand_unit"),
    "tf32 weights": (truncated_weights_dominate, TF32_DOTS, roundings, "operand_unit"),
}


@pytest.mark.parametrize("term", TERMS.values(), ids=TERMS.keys())
def test_every_constant_is_necessary(
    term: Term, by_hand: Builder, row_views: RowViews, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, model, module, name = term
    tensors = build(by_hand)
    assert 0.5 < worst_ratio(tensors, row_views, model) <= 1.0
    halve(monkeypatch, module, name)
    assert worst_ratio(tensors, row_views, model) > 1.0


def test_units_of_both_sums_are_necessary(
    by_hand: Builder, row_views: RowViews, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = sum_dominates(by_hand)
    assert 0.5 < worst_ratio(tensors, row_views) <= 1.0
    halve(monkeypatch, error_bound, "UNIT")
    assert worst_ratio(tensors, row_views, RoundingModel(accumulate_slack=0.5)) > 1.0


def test_zero_output_has_a_positive_bound(by_hand: Builder) -> None:
    tensors = replace(by_hand([[0.0]], [[1.0]], [[0.0]]), sinks=torch.tensor([0.0]))
    assert float(attend(tensors)["out"].bound) > 0.0


def worst_sum(products: np.ndarray[Any, Any], side: int) -> float:
    """Return a sum in this order in which each addition loses a whole unit in one direction."""
    total = float(products[0])
    for product in products[1:]:
        total += product
        total += side * U * abs(total)
    return total


def test_tiles_do_not_shorten_the_way_of_a_key_through_a_sum(by_hand: Builder) -> None:
    """A GPU adds the products of a float32 dot to its accumulator one by one, so that a key meets all later ones.

    A bound for as many additions as a tile has keys, and one for each tile, would be a false alarm.
    """
    num_keys, tile = 4096, 64
    values = np.full(num_keys, 0.98 * U, np.float32)
    values[0] = 1.0
    chained = np.cumsum(values, dtype=np.float32)[-1]
    tensors = by_hand([[0.0]], [[0.0]] * num_keys, values[:, None].tolist(), output=torch.zeros(1, 1, 1))
    reference = attend(tensors, DIVIDES_LAST)
    error = abs(float(chained) / num_keys - float(reference["out"].value))
    assert 0.3 < error / float(reference["out"].bound) <= 1.0
    assert error > 30 * (tile + num_keys / tile) * U * float(reference["out"].value)


@pytest.mark.parametrize("positive", [0.5, 0.9, 0.0], ids=["both signs", "mostly positive", "negative"])
def test_additions_lose_units_of_the_larger_sum_of_one_sign(positive: float, by_hand: Builder) -> None:
    """Sums in any order stay within the bound; one that begins with its largest terms comes close."""
    random, size = np.random.default_rng(7), 200
    terms = (random.pareto(1.0, size) * np.where(random.random(size) < positive, 1.0, -1.0)).astype(np.float32)
    tensors = by_hand([[1.0] * size], [terms.tolist()], [[0.0] * size], output=torch.zeros(1, 1, size))
    (block,) = row_blocks(tensors)
    bound, terms = float(logits.logits_of(block, tensors, PLAIN).error), terms.astype(np.float64)
    orders = [terms[np.argsort(key, kind="stable")] for key in (terms, -terms, -np.abs(terms), random.random(size))]
    orders += [orders[2][np.argsort(sign * orders[2] < 0, kind="stable")] for sign in (1, -1)]
    errors = [abs(worst_sum(order, side) - terms.sum()) for order in orders for side in (1, -1)]
    assert max(errors) <= bound
    assert max(errors) >= 0.3 * bound
    # The products, their scale and the exponential have four units and twelve.
    assert bound <= U * ((size + 5) * np.abs(terms).sum() + 16)


@pytest.mark.parametrize("unit", [2.0**-21, 0.01])
def test_errors_of_rescalings_move_the_output_by_half_of_their_sum(unit: float) -> None:
    """Each rescaling changes the weights of a growing set of keys by a unit up or down."""
    random, count, largest = np.random.default_rng(2), 8, 0.0
    together = math.expm1(count * roundings.lost_by_one(unit) * logits.SECOND_ORDER)
    counted = together - float(logits.cancelling_error(torch.tensor([float(count)]).double(), unit / U))
    for size in (2, 30):
        weights, values = random.dirichlet(np.ones(size)), random.normal(size=size)
        away = values - weights @ values
        for order in (np.argsort(values), np.argsort(-values), random.permutation(size)):
            changed = weights.copy()
            for last in np.sort(random.integers(0, size - 1, count)):
                keys = order[: last + 1]
                changed[keys] *= 1 + unit * np.sign(changed[keys] @ away[keys])
            moved = abs((changed - weights) @ away)
            largest = max(largest, float(moved / (counted * (weights @ np.abs(away)))))
    assert 0.85 < largest <= 1.0


def test_sums_of_many_terms_lose_more_than_the_sum_of_their_units(by_hand: Builder) -> None:
    """With a slack of 2,048 and 256 terms, errors of errors are 1.6% of all."""
    tensors = by_hand([[1.0] * 256], [[1.0] * 256], [[1.0] * 256], torch.float8_e4m3fn)
    model, unit = RoundingModel(fp8_dot_slack=2.0**11), 2.0**-13
    found = float(logits.addition_units(torch.ones(1, 256).double(), tensors, model))
    assert found == pytest.approx((1 + unit) ** 256 - 1, rel=1e-12)
