"""Attention with the worst roundings that a field of a rounding model allows stays within the bound and comes close.

With the same roundings to a type with two bits less it leaves the bound, so a kernel that is coarser is still found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from fuzz_attn.inputs.output_tensors import OutputTensor
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.reference import attend
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.oracle.roundings import rounding_of_query

RowViews = Callable[[AttentionTensors], Iterator[Any]]
Builder = Callable[..., AttentionTensors]
Array = np.ndarray[Any, np.dtype[np.float64]]

U = 2.0**-24
COARSER = 4.0
SPLIT_UNITS = {"ieee": 0.0, "tf32": 2.0**-10, "bf16x3": 1.5 * 2.0**-16}


@dataclass(frozen=True)
class Adversary:
    """Computes one column of one row with roundings in the direction that makes it largest (1) or smallest (-1).

    ``coarser`` multiplies the errors of narrow types. All keys are one tile, each a segment of its own.
    """

    tensors: AttentionTensors
    row: Any
    column: int
    average: float
    side: int
    model: RoundingModel
    coarser: float = 1.0

    def unit(self, name: str) -> float:
        """Return the relative error of a rounding to the type of a field; 0 for float32."""
        kind = getattr(self.model, name)
        return 0.0 if kind == "float32" else self.coarser * float(torch.finfo(getattr(torch, kind)).eps) / 2

    @property
    def split(self) -> float:
        """The error of an operand of a dot."""
        return SPLIT_UNITS[self.model.input_precision] * self.coarser

    def output(self) -> float:
        """Return the column before it is stored as float32."""
        values = self.row.values[:, self.column]
        push = self.side * np.sign(values - self.average)
        scores = self.with_lse(self.scores(push), push)
        sink_push = self.side * np.sign(0.0 - self.average)
        sink = self.row.sink
        if sink > -np.inf:
            sink = self.with_lse(sink + sink_push * abs(sink) * ((1 + self.unit("scores")) ** 2 - 1), sink_push)
        top = max(scores.max(), sink)
        weights = self.exponential(scores - top, push)
        cast = weights * (1 + push * self.coarser * 2.0**-8 * self.model.rounded_denominator)
        total = (cast if self.model.rounded_denominator else weights).sum()
        total += float(self.exponential(np.array([sink - top]), sink_push)[0]) if sink > -np.inf else 0.0
        total *= 1 - self.side * np.sign(self.average) * ((1 + self.unit("softmax")) ** 3 - 1)
        products = cast * values
        worst = self.side * np.abs(products)
        products = products + worst * ((1 + self.split) ** 2 * (1 + self.unit("products")) - 1)
        summed = 0.0
        for product in products:
            summed += product
            summed += self.side * abs(summed) * self.unit("accumulate")
        summed += self.side * abs(summed) * self.unit("partials")
        result = float(summed / total * self.row.factor)
        return result + self.side * self.unit("output") * math.ldexp(0.5, math.frexp(result)[1])

    def scores(self, push: Array) -> Array:
        """Return the logits, each with its largest error in the direction of its key."""
        unit = self.unit("scores")
        total = np.zeros(len(push))
        for query, keys in zip(self.row.query, self.row.keys.T, strict=True):
            product = query * keys
            grows = (1 + self.unit("query")) * (1 + self.unit("scaled_query")) ** 2
            grows = grows * (1 + self.unit("products")) * (1 + self.split) ** 2 - 1
            total = total + product + push * np.abs(product) * grows
            total = total + push * np.abs(total) * self.unit("accumulate")
        total = total * self.row.scale
        total = total + push * np.abs(total) * ((1 + unit) ** 4 - 1)
        if self.tensors.softcap:
            total = self.capped(total, push)
            total = total + push * np.abs(total) * ((1 + unit) ** 4 - 1)
        bias = self.row.bias + push * np.abs(self.row.bias) * ((1 + unit) ** 4 - 1)
        total = total + bias
        worst: Array = total + push * np.abs(total) * unit * (bias != 0)
        return worst

    def capped(self, scores: Array, push: Array) -> Array:
        """Return the soft cap of scores."""
        exact, model = np.tanh(scores / self.tensors.softcap), self.model
        size = model.tanh_error if model.tanh_units is None else model.tanh_units * U * np.abs(exact)
        worst: Array = self.tensors.softcap * (exact + push * size * self.coarser)
        return worst

    def with_lse(self, logit: Any, push: Any) -> Any:
        """Return the logit of a segment of one key."""
        return logit + push * abs(logit) * self.unit("lse")

    def exponential(self, exponents: Array, push: Any) -> Array:
        """Return exponentials, each with its largest error."""
        unit = self.unit("softmax")
        exponents = exponents + push * np.abs(exponents) * ((1 + unit) ** 3 - 1)
        exact: Array = np.exp(exponents) * (1 + push * unit)
        units = self.model.exp_units * (self.coarser if self.model.exp_units > 6 else 1.0)
        worst: Array = exact * (1 + push * units * U)
        return worst


def worst_ratio(tensors: AttentionTensors, row_views: RowViews, model: RoundingModel, coarser: float = 1.0) -> float:
    """Return the largest ``|error| / bound`` over all elements and both directions."""
    reference = attend(tensors, model)
    assert bool(reference["out"].judged.all())
    worst = 0.0
    for row in row_views(tensors):
        for column in range(tensors.output.shape[2]):
            place = (row.token, row.head, column)
            expected = float(reference["out"].value[place])
            for side in (1, -1):
                output = Adversary(tensors, row, column, expected / row.factor, side, model, coarser).output()
                worst = max(worst, abs(output - expected) / float(reference["out"].bound[place]))
    return worst


def beside_sink(by_hand: Builder, logit: float = 2.0, **changes: Any) -> AttentionTensors:
    """Return one key beside a sink with the same logit: the error of the score is nearly the whole error."""
    tensors = by_hand([[1.0]], [[logit]], [[1.0]], output=torch.zeros(1, 1, 1))
    return replace(tensors, sinks=torch.tensor([logit]), **changes)


def long_dot(by_hand: Builder) -> AttentionTensors:
    """Return a key whose first product dominates the other 31: every partial sum loses a full unit."""
    tensors = by_hand([[1.0] + [1e-3] * 31], [[2.0] + [1e-3] * 31], [[1.0] * 32], output=torch.zeros(1, 1, 32))
    return replace(tensors, sinks=torch.tensor([2.0]))


def long_sum(by_hand: Builder) -> AttentionTensors:
    """Return a first key that dominates the other 99."""
    return by_hand([[1.0]], [[0.0]] + [[-9.0]] * 99, [[1.0]] + [[1e-3]] * 99)


def two_keys(by_hand: Builder, distance: float = 4.0) -> AttentionTensors:
    """Return two keys with opposite values, the second of them with a lower logit."""
    return by_hand([[1.0]], [[0.0], [-distance]], [[1.0], [-1.0]], output=torch.zeros(1, 1, 1))


def half_zero(by_hand: Builder) -> AttentionTensors:
    """Return two equal weights, one of them on a value of 0."""
    return by_hand([[0.0]], [[1.0], [1.0]], [[1.0], [0.0]], output=torch.zeros(1, 1, 1))


def one_key(by_hand: Builder) -> AttentionTensors:
    """Return one key with a weight of 1."""
    return by_hand([[0.0]], [[1.0]], [[1.0]], output=torch.zeros(1, 1, 1))


def with_bias(by_hand: Builder) -> AttentionTensors:
    """Return a key and its slope beside a sink."""
    tensors = by_hand([[1.0]], [[1e-3], [1e-3]], [[1.0], [0.9]], output=torch.zeros(1, 1, 1))
    return replace(tensors, alibi_slopes=torch.tensor([2.0]), sinks=torch.tensor([0.5]))


FIELDS: dict[str, tuple[Callable[[Builder], AttentionTensors], RoundingModel]] = {
    "query": (beside_sink, RoundingModel(query="bfloat16")),
    "scaled query": (beside_sink, RoundingModel(scaled_query="bfloat16")),
    "products of q and k": (beside_sink, RoundingModel(products="bfloat16")),
    "products of p and v": (one_key, RoundingModel(products="bfloat16")),
    "sums of a dot": (long_dot, RoundingModel(accumulate="float16")),
    "sums of values": (long_sum, RoundingModel(accumulate="float16")),
    "scores": (beside_sink, RoundingModel(scores="bfloat16")),
    "half scores": (beside_sink, RoundingModel(scores="float16")),
    "capped scores": (lambda build: beside_sink(build, softcap=30.0), RoundingModel(scores="bfloat16")),
    "scores with a bias": (with_bias, RoundingModel(scores="bfloat16")),
    "softmax": (two_keys, RoundingModel(softmax="bfloat16")),
    "partial outputs": (one_key, RoundingModel(partials="bfloat16")),
    "logarithms of sums": (beside_sink, RoundingModel(lse="bfloat16")),
    "output": (one_key, RoundingModel(output="bfloat16")),
    "rounded denominator": (half_zero, RoundingModel(probability="bfloat16", rounded_denominator=True)),
    "exponentials": (lambda build: two_keys(build, 0.0), RoundingModel(exp_units=2.0**12)),
    "tanh, relative": (lambda build: beside_sink(build, softcap=3.0), RoundingModel(tanh_units=2.0**13)),
    "tanh, absolute": (lambda build: beside_sink(build, softcap=3.0), RoundingModel(tanh_error=2.0**-11)),
    "scores in three products": (lambda build: beside_sink(build, 30.0), RoundingModel(input_precision="bf16x3")),
    "values in three products": (one_key, RoundingModel(input_precision="bf16x3")),
}


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS.keys())
def test_worst_roundings_stay_within_the_bound_and_coarser_ones_do_not(
    field: tuple[Callable[[Builder], AttentionTensors], RoundingModel], by_hand: Builder, row_views: RowViews
) -> None:
    build, model = field
    tensors = build(by_hand)
    assert 0.25 < worst_ratio(tensors, row_views, model) <= 1.0
    assert worst_ratio(tensors, row_views, model, COARSER) > 1.0
    assert worst_ratio(tensors, row_views, model) > worst_ratio(tensors, row_views, RoundingModel())


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS.keys())
def test_roundings_leave_the_bound_of_the_default_model(
    field: tuple[Callable[[Builder], AttentionTensors], RoundingModel], by_hand: Builder, row_views: RowViews
) -> None:
    build, model = field
    tensors = build(by_hand)
    reference, plain = attend(tensors, model), attend(tensors)
    assert bool((reference["out"].value == plain["out"].value).all())
    assert float((reference["out"].bound / plain["out"].bound).max()) * worst_ratio(tensors, row_views, model) > 1.0


def test_nan_of_an_overflow_in_a_narrow_type_is_not_unwritten_fp8(by_hand: Builder) -> None:
    written = torch.full((1, 1, 1), torch.nan).to(torch.float8_e5m2)
    output = OutputTensor(written, poison=int(written.view(torch.uint8)))
    tensors = by_hand([[200.0]], [[-1000.0]], [[1.0]], outputs={"out": output})
    assert judge(tensors, attend(tensors)).kind == "unwritten"
    assert judge(tensors, attend(tensors, RoundingModel(scores="float16"))).passed


NARROW_ROWS: dict[str, tuple[float, float, float, int, RoundingModel, bool]] = {
    "segments' logarithms": (1.0, 23_000.0, 0.0, 1, RoundingModel(lse="float16"), True),
    "segments' logarithms below 0": (1.0, -23_000.0, 0.0, 1, RoundingModel(lse="float16"), True),
    "segments' logarithms within the range": (1.0, 21_000.0, 0.0, 1, RoundingModel(lse="float16"), False),
    "segments' logarithms in bfloat16": (1.0, 23_000.0, 0.0, 1, RoundingModel(lse="bfloat16"), False),
    "a sink in a segment": (1.0, 1.0, 23_000.0, 1, RoundingModel(lse="float16"), True),
    "differences from the maximum": (1.0, 33_000.0, 0.0, 1, RoundingModel(softmax="float16"), True),
    "differences within the range": (1.0, 32_000.0, 0.0, 1, RoundingModel(softmax="float16"), False),
    "a denominator": (0.0, 1.0, 0.0, 40_000, RoundingModel(softmax="float16", tile_size=2**20), True),
    "a denominator within the range": (0.0, 1.0, 0.0, 30_000, RoundingModel(softmax="float16", tile_size=2**20), False),
}


@pytest.mark.parametrize("name", NARROW_ROWS)
def test_rows_whose_softmax_may_overflow_a_narrow_type_have_no_bound(name: str, by_hand: Builder) -> None:
    query, key, sink, num_keys, model, infinite = NARROW_ROWS[name]
    tensors = by_hand([[query]], [[key]] * num_keys, [[1.0]] * num_keys, output=torch.zeros(1, 1, 1))
    tensors = replace(tensors, sinks=torch.tensor([sink]))
    assert bool(attend(tensors)["out"].bound.isfinite().all())
    assert bool(attend(tensors, model)["out"].bound.isinf().all()) == infinite


HOLDS = {
    "float32": {"float32"},
    "float16": {"float32", "float16"},
    "float8_e4m3fn": {"float32", "float16", "bfloat16", "float8_e4m3fn"},
}


@pytest.mark.parametrize("query", HOLDS)
@pytest.mark.parametrize("cache", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_a_type_that_holds_every_query_rounds_none(query: str, cache: str, by_hand: Builder) -> None:
    tensors = beside_sink(by_hand)
    tensors = replace(tensors, query=tensors.query.to(getattr(torch, query)), kv_dtype=getattr(torch, cache))
    rounding = rounding_of_query(tensors, RoundingModel(query="cache"))
    assert (rounding.unit == 0.0) == (cache in HOLDS[query])


def test_queries_that_a_narrow_type_cannot_hold_have_no_bound(by_hand: Builder) -> None:
    # As many keys as rows: one that sees no key is 0, whatever its query becomes.
    tensors = by_hand([[500.0], [100.0]], [[1e-3]] * 2, [[1.0]] * 2, output=torch.zeros(2, 1, 1))
    bound = attend(tensors, RoundingModel(query="float8_e4m3fn"))["out"].bound
    assert bound.flatten().isinf().tolist() == [True, False]
