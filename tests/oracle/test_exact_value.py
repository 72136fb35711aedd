"""The oracle's value agrees with a computation in 50 digits, for each feature."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import mpmath
import pytest
import torch

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import DTypes, HeadLayout, PageLayout, Scales, Sequence
from fuzz_attn.case.recipes import (
    AlibiRecipe,
    ConstantValues,
    DenormalScores,
    DenormalValues,
    LevelScores,
    NormalScores,
    OutlierValues,
    QQBiasRecipe,
    RampScores,
    SinkRecipe,
)
from fuzz_attn.inputs.tensors import AttentionTensors, materialise
from fuzz_attn.oracle.reference import attend

BASE = AttentionCase(
    sequences=(Sequence(2, 7), Sequence(0, 3), Sequence(4, 0), Sequence(1, 20)),
    heads=HeadLayout(2, 3, 5),
    pages=PageLayout(block_size=3, permuted=True, spare_blocks=2),
    softmax_scale=0.4,
    seed=11,
)
EVERYTHING = {
    "window": 5,
    "softcap": 3.0,
    "alibi": AlibiRecipe("arbitrary"),
    "qq_bias": QQBiasRecipe("dense", extra_columns=-1),
    "sinks": SinkRecipe(),
}
E4M3: Final = "float8_e4m3fn"
E5M2: Final = "float8_e5m2"
SCALES = Scales(k=0.3, v=1.7)
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 4},
    "window of one": {"window": 1},
    "soft cap": {"softcap": 2.0},
    "soft cap saturated": {"softcap": 0.5, "scores": NormalScores(spread=64.0)},
    "soft cap hardly bends": {"softcap": 1000.0},
    "alibi": {"alibi": AlibiRecipe("standard", 4.0)},
    "alibi with sink": {"alibi": AlibiRecipe("negative"), "sinks": SinkRecipe()},
    "dense bias": {"qq_bias": QQBiasRecipe("dense", extra_rows=1, extra_columns=2, row_padding=3)},
    "tree bias": {"qq_bias": QQBiasRecipe("tree")},
    "narrow tree": {"qq_bias": QQBiasRecipe("tree", extra_columns=-2)},
    "sinks": {"sinks": SinkRecipe(dtype="bfloat16")},
    "sinks far above": {"sinks": SinkRecipe(level=300.0)},
    "sinks far below": {"sinks": SinkRecipe(level=-1e4)},
    "logits far below": {"scores": LevelScores(level=-110.0)},
    "logits far above": {"scores": LevelScores(level=110.0), "sinks": SinkRecipe(level=100.0)},
    "ramp": {"scores": RampScores(step=4.0)},
    "denormals": {"scores": DenormalScores(), "values": DenormalValues()},
    "outlier values": {"values": OutlierValues(factor=1e20)},
    "everything": EVERYTHING,
    "half": {"dtypes": DTypes("float16", "float16", "float16"), **EVERYTHING},
    "bfloat16": {"dtypes": DTypes("bfloat16", "bfloat16", "float32"), **EVERYTHING},
    "e4m3 cache": {"dtypes": DTypes("bfloat16", E4M3, "bfloat16"), "scales": SCALES, **EVERYTHING},
    "e5m2 cache": {"dtypes": DTypes("float32", E5M2, "float32"), "scales": SCALES},
    "e5m2 cache, half": {"dtypes": DTypes("float16", E5M2, "float16"), "scales": SCALES},
    "fp8 queries": {"dtypes": DTypes(E4M3, E4M3, "bfloat16"), "scales": Scales(q=0.7, k=0.3, v=5.0), **EVERYTHING},
    "mixed fp8": {"dtypes": DTypes(E5M2, E4M3, E5M2), "scales": Scales(q=2.0, k=0.5, v=3.0, out=0.3)},
    "fp8 output": {"dtypes": DTypes("float32", "float32", E4M3), "scales": Scales(out=0.01)},
    "fp8 output clamped": {"dtypes": DTypes("float32", "float32", E4M3), "scales": Scales(out=0.001)},
}


def exact(row: Any, tensors: AttentionTensors) -> list[mpmath.mpf]:
    """Return one row in 50 digits."""
    scores = []
    for key, bias in zip(row.keys, row.bias, strict=True):
        score = mpmath.fdot(map(mpmath.mpf, row.query), map(mpmath.mpf, key)) * mpmath.mpf(row.scale)
        if tensors.softcap:
            score = tensors.softcap * mpmath.tanh(score / tensors.softcap)
        scores.append(score + mpmath.mpf(float(bias)))
    weights = [mpmath.exp(score) for score in scores]
    total = mpmath.fsum(weights) + mpmath.exp(mpmath.mpf(row.sink))
    output = [mpmath.fdot(weights, map(mpmath.mpf, column)) / total * mpmath.mpf(row.factor) for column in row.values.T]
    if tensors.output.dtype.itemsize == 1:
        limit = mpmath.mpf(torch.finfo(tensors.output.dtype).max)
        output = [max(-limit, min(limit, value)) for value in output]
    return output


@pytest.mark.sampled(3)
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_error_of_the_oracle_is_below_one_percent_of_the_bound(
    changes: dict[str, Any], row_views: Callable[[AttentionTensors], Iterator[Any]]
) -> None:
    tensors = materialise(replace(BASE, **changes))
    reference = attend(tensors)
    assert bool((reference["out"].bound > 0).all())
    assert bool(reference["out"].bound.isfinite().all())
    with mpmath.workdps(50):
        for row in row_views(tensors):
            for column, value in enumerate(exact(row, tensors)):
                error = abs(mpmath.mpf(float(reference["out"].value[row.token, row.head, column])) - value)
                assert error <= 0.01 * float(reference["out"].bound[row.token, row.head, column])


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_oracle_agrees_with_attention_row_by_row(
    changes: dict[str, Any], plainly: Callable[[AttentionTensors], torch.Tensor]
) -> None:
    tensors = materialise(replace(BASE, **changes))
    reference = attend(tensors)
    assert bool(((plainly(tensors) - reference["out"].value).abs() <= 0.01 * reference["out"].bound).all())


@pytest.mark.parametrize("level", [-20000.0, -110.0, 110.0, 20000.0])
def test_weights_sum_to_one_however_large_the_logits(level: float) -> None:
    """The relation value_shift found sums with an error of 1e-12, beyond the bound of a value of exactly 0."""
    case = replace(BASE, scores=LevelScores(level=level), values=ConstantValues(1.0))
    expected = attend(materialise(case))["out"].value
    torch.testing.assert_close(expected, torch.ones_like(expected), rtol=0.0, atol=2.0**-50)
