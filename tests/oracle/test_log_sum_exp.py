"""The log-sum-exp agrees with a computation in 50 digits, and its bound with arithmetic that always errs in one way."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any, Final

import mpmath
import numpy as np
import pytest

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import DTypes, HeadLayout, PageLayout, Scales, Sequence, Strides
from fuzz_attn.case.recipes import (
    AlibiRecipe,
    DenormalScores,
    LevelScores,
    LogSumExp,
    NormalScores,
    QQBiasRecipe,
    RampScores,
    SinkRecipe,
    UniformScores,
)
from fuzz_attn.inputs.tensors import AttentionTensors, materialise
from fuzz_attn.oracle import reference
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.reference import attend
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.strategies.cases import cases
from fuzz_attn.strategies.draws import Sample

COUNT: Final = int(os.environ.get("FUZZ_ATTN_ORACLE_CASES", "40"))
RowViews = Callable[[AttentionTensors], Iterator[Any]]
BASE: Final = AttentionCase(
    sequences=(Sequence(2, 7), Sequence(0, 3), Sequence(4, 0), Sequence(1, 60)),
    heads=HeadLayout(2, 3, 5),
    pages=PageLayout(block_size=3, permuted=True, spare_blocks=2),
    softmax_scale=0.4,
    seed=11,
    lse=LogSumExp(),
)
E4M3: Final = "float8_e4m3fn"
EVERYTHING: Final[dict[str, Any]] = {
    "window": 5,
    "softcap": 3.0,
    "alibi": AlibiRecipe("arbitrary"),
    "qq_bias": QQBiasRecipe("dense", extra_columns=-1),
    "sinks": SinkRecipe(),
}
FEATURES: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "window": {"window": 4},
    "soft cap": {"softcap": 2.0},
    "soft cap at 0": {"softcap": 2.0, "scores": UniformScores()},
    "alibi": {"alibi": AlibiRecipe("standard", 4.0)},
    "tree bias": {"qq_bias": QQBiasRecipe("tree")},
    "sinks": {"sinks": SinkRecipe()},
    "sinks far above": {"sinks": SinkRecipe(level=40.0)},
    "logits far below": {"scores": LevelScores(level=-110.0)},
    "logits far above": {"scores": LevelScores(level=20000.0), "sinks": SinkRecipe(level=100.0)},
    "wide": {"scores": NormalScores(spread=40.0)},
    "ramp": {"scores": RampScores(step=4.0)},
    "denormals": {"scores": DenormalScores()},
    "uniform": {"scores": UniformScores()},
    "half": {"dtypes": DTypes("float16", "float16", "float16"), **EVERYTHING},
    "e4m3 cache": {"dtypes": DTypes("bfloat16", E4M3, "bfloat16"), "scales": Scales(k=0.3, v=1.7), **EVERYTHING},
    "fp8 queries": {"dtypes": DTypes(E4M3, E4M3, "bfloat16"), "scales": Scales(q=0.7, k=0.3, v=5.0)},
}
FORMS: Final = (
    LogSumExp(),
    LogSumExp("2", "heads"),
    LogSumExp("e", "heads", with_sinks=False),
    LogSumExp("2", with_sinks=False),
)


def exact(row: Any, tensors: AttentionTensors) -> mpmath.mpf:
    """Return one row's log-sum-exp in 50 digits."""
    assert tensors.lse is not None
    total = mpmath.exp(mpmath.mpf(row.sink)) if tensors.lse.with_sinks else mpmath.mpf(0)
    for key, bias in zip(row.keys, row.bias, strict=True):
        score = mpmath.fdot(map(mpmath.mpf, row.query), map(mpmath.mpf, key)) * mpmath.mpf(row.scale)
        if tensors.softcap:
            score = tensors.softcap * mpmath.tanh(score / tensors.softcap)
        total += mpmath.exp(score + mpmath.mpf(float(bias)))
    return mpmath.log(total, 2) if tensors.lse.base == "2" else mpmath.log(total)


def place_of(row: Any, form: LogSumExp) -> tuple[int, int]:
    return (row.token, row.head) if form.order == "tokens" else (row.head, row.token)


@pytest.mark.sampled(9)
@pytest.mark.pairwise(form=FORMS, changes=FEATURES)
def test_the_oracle_is_right_to_a_hundred_millionth_of_the_bound(
    form: LogSumExp, changes: dict[str, Any], row_views: RowViews
) -> None:
    tensors = materialise(replace(BASE, **changes, lse=form))
    expected = attend(tensors)["lse"]
    assert expected.value.shape == tensors.outputs["lse"].elements.shape
    with mpmath.workdps(50):
        for row in row_views(tensors):
            place = place_of(row, form)
            error = abs(mpmath.mpf(float(expected.value[place])) - exact(row, tensors))
            assert error <= 1e-8 * float(expected.bound[place])


U: Final = 2.0**-24
UNITS: Final = 4.0
"""Units that an exponential and a logarithm lose, like CUDA's ``ex2.approx`` and ``lg2.approx``."""


class Adversary:
    """Computes one row with all roundings upwards (``side`` 1) or downwards (-1), in some segments of tiles."""

    def __init__(self, tensors: AttentionTensors, row: Any, side: int, segments: int, tile: int = 16) -> None:
        self.tensors, self.row, self.side, self.segments, self.tile = tensors, row, side, segments, tile

    def up(self, number: Any, units: float = 1.0) -> Any:
        """Return a number that lost some units in the direction."""
        return number + self.side * U * units * np.abs(number)

    def result(self) -> float:
        """Return the log-sum-exp before its last rounding."""
        assert self.tensors.lse is not None
        scores = self.scores()
        parts = [self.summed(part) for part in np.array_split(scores, self.segments) if len(part)]
        if self.tensors.lse.with_sinks and self.row.sink > -math.inf:
            parts.append(self.row.sink)
        found = self.summed(np.array(parts)) if len(parts) > 1 else parts[0]
        if self.tensors.lse.base == "2":
            found = self.up(found / math.log(2.0))
        return float(found + self.side * U * 2.0 ** math.floor(math.log2(abs(found))) if found else found)

    def scores(self) -> Any:
        """Return the logits."""
        total = np.zeros(len(self.row.keys))
        for query, keys in zip(self.row.query, self.row.keys.T, strict=True):
            total = self.up(total + self.up(query * keys))
        total = self.up(total * self.row.scale, 2.0)
        cap = self.tensors.softcap
        if cap:
            total = cap * np.tanh(total / cap) + self.side * 4 * U * cap
        seen = self.row.bias > -math.inf
        total, bias = total[seen] + self.row.bias[seen], self.row.bias[seen]
        return total + self.side * U * (np.abs(total) + np.abs(bias))

    def summed(self, logits: Any) -> Any:
        """Return the log-sum-exp of some logits, tile by tile."""
        top, total = -math.inf, 0.0
        for first in range(0, len(logits), self.tile):
            tile = logits[first : first + self.tile]
            new = max(top, tile.max())
            if new > top:
                total = self.up(total * self.exponential(top - new)) if total else 0.0
            for weight in self.exponential(tile - new):
                # The sum without the weight is a number of the type, so that the nearest one is no farther away.
                total += weight + self.side * min(weight, U * (total + weight))
            top = new
        logarithm = np.log(total)
        return self.up(top + logarithm + self.side * U * UNITS * max(1.0, abs(logarithm)))

    def exponential(self, number: Any) -> Any:
        """Return an exponential of an argument that was rounded too; that of 0 is 1."""
        return np.exp(number) * (1 + self.side * U * (UNITS * (number != 0.0) + 2 * np.abs(number)))


def ratios_of(tensors: AttentionTensors, row_views: RowViews, model: RoundingModel | None = None) -> list[float]:
    """Return ``|error| / bound`` of the worst arithmetic in each row."""
    assert tensors.lse is not None
    expected = attend(tensors, model or RoundingModel())["lse"]
    found = []
    for row in row_views(tensors):
        place = place_of(row, tensors.lse)
        for side, segments in ((1, 1), (-1, 1), (1, 3), (-1, 3)):
            error = Adversary(tensors, row, side, segments).result() - float(expected.value[place])
            found.append(abs(error) / float(expected.bound[place]))
    return found


@pytest.mark.sampled(3)
@pytest.mark.pairwise(form=FORMS, changes={name: FEATURES[name] for name in FEATURES if "fp8" not in name})
def test_worst_roundings_stay_within_the_bound_and_come_close(
    form: LogSumExp, changes: dict[str, Any], row_views: RowViews
) -> None:
    ratios = ratios_of(materialise(replace(BASE, **changes, lse=form)), row_views)
    assert max(ratios) <= 1.0
    assert max(ratios) >= 0.1


@cache
def drawn() -> tuple[AttentionCase, ...]:
    """Return small cases as a campaign draws them, in turn with each form of a log-sum-exp."""
    sample, domain = Sample(Random(7)), Domain().in_memory()
    cases_of = (sample.draw(cases(domain=domain, variants=1)) for _ in iter(int, 1))
    small = (case for case in cases_of if 0 < case.num_tokens * case.total_keys < 1500)
    return tuple(replace(case, lse=FORMS[index % len(FORMS)]) for index, case in zip(range(COUNT), small, strict=False))


def bounded_rows(tensors: AttentionTensors, row_views: RowViews, random: Random) -> Iterator[tuple[Any, float, float]]:
    """Yield three rows whose logarithm cannot overflow, each with the expected value and its bound."""
    assert tensors.lse is not None
    expected, rows = attend(tensors)["lse"], list(row_views(tensors))
    for row in random.sample(rows, min(3, len(rows))):
        value, bound = (float(part[place_of(row, tensors.lse)]) for part in (expected.value, expected.bound))
        if math.isfinite(bound) and math.isfinite(value):
            yield row, value, bound


def test_drawn_cases_are_right_in_50_digits(row_views: RowViews) -> None:
    random, rows = Random(1), 0
    with mpmath.workdps(50):
        for case in drawn():
            tensors = in_rows(case)
            for row, value, bound in bounded_rows(tensors, row_views, random):
                rows += 1
                assert abs(mpmath.mpf(value) - exact(row, tensors)) <= 1e-8 * bound, case
    assert rows > 2 * COUNT


def test_worst_roundings_of_drawn_cases_stay_within_the_bound_and_come_close(row_views: RowViews) -> None:
    random, largest = Random(2), 0.0
    for case in drawn():
        if case.dtypes.q == E4M3 or "8" in case.dtypes.kv + case.dtypes.q:
            continue
        tensors = in_rows(case)
        for row, value, bound in bounded_rows(tensors, row_views, random):
            for side, segments in ((1, 1), (-1, 1), (1, 3), (-1, 3)):
                ratio = abs(Adversary(tensors, row, side, segments).result() - value) / bound
                assert ratio <= 1.0, case
                largest = max(largest, ratio)
    print(f"largest error of {COUNT} log-sum-exps in the worst direction: {largest:.3f} times the bound")
    assert largest >= 0.1


def in_rows(case: AttentionCase) -> AttentionTensors:
    """Return tensors without pages that have no memory."""
    return materialise(case).near()


@pytest.mark.parametrize(("name", "changes"), [("LAST_UNITS", "wide"), ("UNIT", "ramp")])
def test_units_are_necessary(name: str, changes: str, row_views: RowViews, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = materialise(replace(BASE, **FEATURES[changes], lse=LogSumExp("2")))
    assert max(ratios_of(tensors, row_views)) <= 1.0
    monkeypatch.setattr(reference, name, getattr(reference, name) / 4)
    assert max(ratios_of(tensors, row_views)) > 1.0


def test_an_error_that_all_keys_share_counts(row_views: RowViews) -> None:
    """The logits of one key have an error that the softmax does not see."""
    case = replace(BASE, sequences=(Sequence(1, 0),), scores=LevelScores(level=1000.0))
    bounds = attend(materialise(case))
    assert float(bounds["out"].bound.max()) < 1e-5
    assert float(bounds["lse"].bound.min()) > 4 * U * 1000.0


def test_padded_rows_and_gaps_surround_the_output() -> None:
    case = replace(BASE, padded_tokens=3, strides=Strides(out_head=2))
    for form, shape, strides in ((FORMS[0], (10, 6), (8, 1)), (FORMS[1], (6, 10), (12, 1))):
        output = materialise(replace(case, lse=form)).outputs["lse"]
        assert (tuple(output.tensor.shape), output.tensor.stride()) == (shape, strides)
        assert output.elements.numel() == 7 * 6
        assert bool(output.unwritten.all())


@pytest.mark.parametrize("found", [-math.inf, math.inf, 0.0, math.nan])
def test_an_infinite_value_must_be_met(found: float) -> None:
    tensors = materialise(replace(BASE, sequences=(Sequence(1, 4),)))
    reference = attend(tensors)
    value = reference["lse"].value.clone()
    value[0, 1] = -math.inf
    reference["lse"] = dataclasses.replace(reference["lse"], value=value)
    tensors.output[:1] = reference["out"].value.float()
    tensors.outputs["lse"].tensor[:1] = value.float()
    tensors.outputs["lse"].tensor[0, 1] = found
    assert judge(tensors, reference).passed == (found == -math.inf)
