"""The bound is sound and tight: emulated correct kernels stay within it and come close to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import DTypeName, DTypes, HeadLayout, PageLayout, Scales, Sequence
from fuzz_attn.case.recipes import (
    AlibiRecipe,
    DenormalScores,
    DenormalValues,
    LevelScores,
    NeedleScores,
    NormalScores,
    NormalValues,
    OneHotValues,
    OutlierScores,
    OutlierValues,
    PositionValues,
    QQBiasRecipe,
    RampScores,
    ScoreRecipe,
    SinkRecipe,
    ValueRecipe,
)
from fuzz_attn.inputs.tensors import AttentionTensors, materialise
from fuzz_attn.oracle import error_bound, roundings
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.reference import attend
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.oracle.roundings import cast_unit

RowViews = Callable[[AttentionTensors], Iterator[Any]]
Writing = Callable[[AttentionTensors, torch.Tensor], AttentionTensors]

E4M3: Final = "float8_e4m3fn"
E5M2: Final = "float8_e5m2"
MIXES: dict[str, DTypes] = {
    "float32": DTypes(),
    "float16": DTypes("float16", "float16", "float16"),
    "bfloat16": DTypes("bfloat16", "bfloat16", "bfloat16"),
    "e4m3 cache": DTypes("bfloat16", E4M3, "bfloat16"),
    "e5m2 cache": DTypes("float16", E5M2, E4M3),
    "e4m3 queries": DTypes(E4M3, E4M3, "float32"),
    "e5m2 queries": DTypes(E5M2, E5M2, E5M2),
}
SCORES: tuple[ScoreRecipe, ...] = (
    NormalScores(),
    NormalScores(4.0),
    NormalScores(32.0),
    NeedleScores("own", 12.0),
    NeedleScores("first", 30.0),
    RampScores(0.25),
    RampScores(-2.0),
    LevelScores(-110.0),
    LevelScores(80.0),
    OutlierScores(),
    DenormalScores(),
)
VALUES: tuple[ValueRecipe, ...] = (NormalValues(), PositionValues(), OutlierValues(), DenormalValues(), OneHotValues())


@dataclass(frozen=True)
class Formulation:
    """One of the ways in which a correct kernel may compute."""

    tile_size: int = 16
    segments: int = 1
    base2: bool = False
    backwards: bool = False
    normalise_first: bool = False
    """Whether P is divided by its sum before it is cast and multiplied with V, as in plain torch code."""
    sink_last: bool = False


def scalar(tensor: torch.Tensor | None) -> float:
    return 1.0 if tensor is None else float(tensor)


def capped32(scores: torch.Tensor, cap: float) -> torch.Tensor:
    """Return the least accurate soft cap that the bound allows, whose error is absolute near 0."""
    size = (scores / cap).abs()
    return torch.copysign(1 - 2 / ((2 * size).exp() + 1), scores) * cap


def rounded_row(row: Any, tensors: AttentionTensors, how: Formulation) -> torch.Tensor:
    """Return one output row computed in float32, P rounded to the type of q."""
    fp8 = tensors.query.dtype.itemsize == 1
    cast = torch.bfloat16 if fp8 else tensors.query.dtype
    unit = torch.tensor(np.log2(np.e) if how.base2 else 1.0, dtype=torch.float32)
    query, keys, values = (torch.from_numpy(x).float() for x in (row.query, row.keys, row.values))
    scale = torch.tensor(tensors.softmax_scale, dtype=torch.float32)
    if fp8:
        scale = scale * scalar(tensors.q_scale) * scalar(tensors.k_scale)
    scores = keys @ query * (scale if tensors.softcap else scale * unit)
    if tensors.softcap:
        scores = capped32(scores, tensors.softcap) * unit
    if tensors.alibi_slopes is not None:
        distance = torch.from_numpy(row.key_positions - row.context_len).float()
        scores = scores + tensors.alibi_slopes[row.head] * unit * distance
    if tensors.qq_bias is not None:
        alibi = np.zeros(len(row.bias))
        if tensors.alibi_slopes is not None:
            alibi = float(tensors.alibi_slopes[row.head]) * (row.key_positions - row.context_len)
        scores = scores + torch.from_numpy(row.bias - alibi).float() * unit
    sink = torch.tensor(row.sink, dtype=torch.float32) * unit
    exp = torch.exp2 if how.base2 else torch.exp
    if how.normalise_first:
        top = torch.maximum(scores.max(), sink)
        weights = exp(scores - top)
        weights = weights / (weights.sum() + exp(sink - top))
        return weights.to(cast).float() @ values
    order = range(0, len(scores), how.tile_size)
    tiles = [slice(first, first + how.tile_size) for first in (reversed(order) if how.backwards else order)]
    per_segment = -(-len(tiles) // how.segments)
    parts = []
    for first in range(0, len(tiles), per_segment):
        top = sink if first == 0 and not how.sink_last else torch.tensor(-torch.inf)
        total = torch.where(top > -torch.inf, 1.0, 0.0)
        sums = torch.zeros(values.shape[1])
        for tile in tiles[first : first + per_segment]:
            new = torch.maximum(top, scores[tile].max())
            shift = torch.where(new == -torch.inf, 0.0, new)
            weights, alpha = exp(scores[tile] - shift), exp(top - shift)
            total = total * alpha + weights.sum()
            sums = sums * alpha + weights.to(cast).float() @ values[tile]
            top = new
        parts.append((top, total, sums))
    top = torch.stack([part[0] for part in parts]).max()
    if how.sink_last:
        top = torch.maximum(top, sink)
    total = sum((part[1] * exp(part[0] - top) for part in parts), torch.zeros(()))
    sums = sum((part[2] * exp(part[0] - top) for part in parts), torch.zeros(values.shape[1]))
    if how.sink_last:
        total = total + exp(sink - top)
    return sums / total


def attend_rounded(tensors: AttentionTensors, rows: Iterator[Any], how: Formulation) -> torch.Tensor:
    """Return a float32 output that a correct kernel may produce, scaled and clamped for fp8 but not yet stored."""
    out = torch.empty(sum(tensors.query_lens), *tensors.output.shape[1:])
    for row in rows:
        result = rounded_row(row, tensors, how)
        if tensors.query.dtype.itemsize == 1:
            result = result * scalar(tensors.v_scale)
        if tensors.output.dtype.itemsize == 1:
            limit = torch.finfo(tensors.output.dtype).max
            result = (result * (1 / torch.tensor(scalar(tensors.out_scale)))).clamp(-limit, limit)
        out[row.token, row.head] = result
    return out


@st.composite
def small_cases(draw: st.DrawFn, dtypes: DTypes) -> AttentionCase:
    one_byte = {name: getattr(dtypes, "out" if name == "out" else "q" if name == "q" else "kv") for name in "qkv"}
    scale = st.sampled_from((1.0, 0.5, 0.3, 1.7, 11.0))
    scales = {name: draw(scale) for name, dtype in one_byte.items() if dtype in (E4M3, E5M2)}
    if dtypes.out in (E4M3, E5M2):
        scales["out"] = draw(scale)
    lengths = st.tuples(st.integers(1, 4), st.integers(0, 60))
    return AttentionCase(
        sequences=tuple(Sequence(*pair) for pair in draw(st.lists(lengths, min_size=1, max_size=2))),
        heads=HeadLayout(1, draw(st.integers(1, 2)), draw(st.sampled_from((1, 3, 16, 64)))),
        dtypes=dtypes,
        pages=PageLayout(draw(st.sampled_from((1, 5, 16)))),
        softmax_scale=draw(st.sampled_from((1.0, 0.3, 0.125))),
        window=draw(st.sampled_from((0, 0, 1, 7, 33))),
        softcap=draw(st.sampled_from((0.0, 0.0, 1.0, 30.0))),
        alibi=draw(st.sampled_from((None, AlibiRecipe("arbitrary")))),
        qq_bias=draw(st.sampled_from((None, QQBiasRecipe("dense"), QQBiasRecipe("tree")))),
        sinks=draw(st.sampled_from((None, SinkRecipe(), SinkRecipe(20.0), SinkRecipe(120.0), SinkRecipe(-90.0)))),
        scales=Scales(**scales),
        scores=draw(st.sampled_from(SCORES)),
        values=draw(st.sampled_from(VALUES)),
        seed=draw(st.integers(0, 2**20)),
    )


FORMULATIONS = st.builds(
    Formulation,
    tile_size=st.sampled_from((16, 32)),
    segments=st.sampled_from((1, 3)),
    base2=st.booleans(),
    backwards=st.booleans(),
    normalise_first=st.booleans(),
    sink_last=st.booleans(),
)


def ratios_of(mix: str, row_views: RowViews, writing: Writing, examples: int) -> list[float]:
    """Return the largest ``|error| / bound`` of an emulated kernel for each case; NaN and Inf count as infinite."""
    ratios = []

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
    @given(case=small_cases(MIXES[mix]), how=FORMULATIONS)
    def compare(case: AttentionCase, how: Formulation) -> None:
        tensors = materialise(case)
        written = writing(tensors, attend_rounded(tensors, row_views(tensors), how))
        verdict = judge(written, attend(tensors, RoundingModel(normalises_last=not how.normalise_first)))
        ratios.append(verdict.ratio if verdict.kind in ("ok", "mismatch") and verdict.ratio is not None else torch.inf)

    compare()
    return ratios


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mix", MIXES)
def test_correct_kernels_stay_within_the_bound_and_come_close(mix: str, row_views: RowViews, writing: Writing) -> None:
    ratios = ratios_of(mix, row_views, writing, 60)
    assert max(ratios) <= 1.0
    assert max(ratios) >= 0.1


def unrounded(case: AttentionCase, small_keys: bool) -> AttentionTensors:
    """Return a case's tensors with an exact output that never rounds K and V, whose scores are as the case has them."""
    tensors = materialise(case)
    if small_keys:  # multiples of the smallest e5m2
        tensors.key_cache.copy_((tensors.key_cache.float() * 2).round_() * 2.0**-16)
        tensors.query.copy_(tensors.query.double() * case.softmax_scale)
    pages, count = tensors.block_table[0].long(), case.sequences[0].seq_len
    keys, values = (
        cache[pages].flatten(0, 1)[:count, 0].double() for cache in (tensors.key_cache, tensors.value_cache)
    )
    weights = torch.softmax(keys @ tensors.query[0, 0].double() * (case.softmax_scale * scalar(tensors.k_scale)), 0)
    tensors.output[0, 0] = weights @ values * scalar(tensors.v_scale)
    return tensors


@pytest.mark.parametrize("small_keys", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.3, 0.03])
def test_numbers_that_stay_unrounded_below_the_normal_range_are_within_the_bound(
    small_keys: bool, scale: float
) -> None:
    """The reference rounds K and V to float16, whose denormals lie 2^-24 apart; a kernel may scale its sums instead."""
    for seed in range(40):
        case = AttentionCase(
            (Sequence(1, seed % 8),),
            heads=HeadLayout(1, 1, 1),
            dtypes=DTypes("float16", E5M2, "float32"),
            softmax_scale=3e5 if small_keys else 0.25,
            scales=Scales(k=scale, v=scale),
            values=NormalValues() if small_keys else DenormalValues(),
            seed=seed,
        )
        tensors = unrounded(case, small_keys)
        assert judge(tensors, attend(tensors, RoundingModel(rounds_dequantised=False))).passed


HALVES: tuple[DTypeName, ...] = ("float16", "bfloat16")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mix", HALVES)
def test_halved_cast_unit_is_exceeded(
    mix: str, row_views: RowViews, writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (error_bound, roundings):
        monkeypatch.setattr(module, "cast_unit", lambda dtype: cast_unit(dtype) / 2)
    assert max(ratios_of(mix, row_views, writing, 120)) > 1.2
