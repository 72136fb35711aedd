"""Exact weights and exact sums: recognised by the numbers, so that a lost key shows at any length and in any type."""

from __future__ import annotations

import math
from dataclasses import replace as replaced
from typing import Any, Final

import numpy as np
import pytest
import torch

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import DTypes, HeadLayout, PageLayout, Scales, Sequence
from fuzz_attn.case.recipes import (
    AlibiRecipe,
    HeavyScores,
    IntegerValues,
    NormalScores,
    NormalValues,
    ScoreRecipe,
    SinkRecipe,
    UniformScores,
)
from fuzz_attn.inputs.tensors import AttentionTensors, materialise
from fuzz_attn.oracle.logits import exact_columns, logits_of, lowest_bit
from fuzz_attn.oracle.reference import Reference, attend
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.oracle.row_blocks import RowBlock, row_blocks

E4M3: Final = "float8_e4m3fn"
MODEL = RoundingModel(normalises_last=True)
MERGING = RoundingModel(normalises_last=True, merges_logarithms=True)
TENSOR_CORES = RoundingModel(normalises_last=True, tensor_core_slack=2.0)
TYPES = {
    "float32": DTypes(),
    "float16": DTypes("float16", "float16", "float16"),
    "bfloat16": DTypes("bfloat16", "bfloat16", "bfloat16"),
    "e4m3 cache": DTypes("bfloat16", E4M3, "bfloat16"),
    "e4m3": DTypes(E4M3, E4M3, "bfloat16"),
}
SCORES: dict[str, ScoreRecipe] = {
    "uniform": UniformScores(),
    **{f"heavy {place}": HeavyScores(place) for place in ("tiles", "pages", "random", "one")},
}


def case_of(scores: ScoreRecipe, num_keys: int, **changes: Any) -> AttentionCase:
    case = AttentionCase(
        (Sequence(1, num_keys - 1),),
        heads=HeadLayout(1, 2, 16),
        pages=PageLayout(block_size=16),
        softmax_scale=0.25,
        scores=scores,
        values=IntegerValues(),
        key_marks=True,
        seed=5,
    )
    return replace(case, **changes)


def stored(tensors: AttentionTensors, weights: Any, values: Any) -> torch.Tensor:
    """Return what a kernel stores that sums ``weights * values`` in float32, one key after the other."""
    total = np.cumsum(weights.astype(np.float32)[:, None] * values.astype(np.float32), axis=0, dtype=np.float32)[-1]
    return torch.from_numpy(total / np.float32(weights.sum())).to(tensors.output.dtype).double()


def ratio(reference: Reference, output: torch.Tensor) -> float:
    return float(((output - reference["out"].value[0, 0]).abs() / reference["out"].bound[0, 0]).max())


LENGTHS = (131072, 128, 4096, 32768)


@pytest.mark.parametrize(
    ("scores", "types", "num_keys"),
    [  # every pair of two of the three
        (scores, types, LENGTHS[(row + column) % len(LENGTHS)])
        for row, scores in enumerate(SCORES)
        for column, types in enumerate(TYPES)
    ],
)
def test_a_lost_or_doubled_key_shows_at_any_length(scores: str, types: str, num_keys: int) -> None:
    tensors = materialise(case_of(SCORES[scores], num_keys, dtypes=TYPES[types]))
    (block,) = row_blocks(tensors)
    logits = logits_of(block, tensors, MODEL)
    heavy = (logits.exact[0, 0, 0, 0] == 0.0).numpy()
    values, random = block.values[0, 0].numpy(), np.random.default_rng(3)
    kept, reference = heavy.astype(np.float32), attend(tensors, TENSOR_CORES)
    assert ratio(reference, stored(tensors, kept[heavy], values[heavy])) <= 1.0
    found, tried = 0, random.permutation(np.flatnonzero(heavy))[:12]
    for key in tried:
        for weight in (0.0, 2.0):
            wrong = kept.copy()
            wrong[key] = weight
            if wrong.sum():
                found += ratio(reference, stored(tensors, wrong[heavy], values[heavy])) > 1.0
    assert found >= 0.95 * (2 * len(tried) - (heavy.sum() == 1))


def merged(tensors: AttentionTensors, weights: Any, values: Any, splits: int, side: int) -> torch.Tensor:
    """Return what a kernel stores that merges splits by their logarithms, with the worst roundings towards ``side``."""
    average = weights @ values / weights.sum()
    unit, total, summed, top = 2.0**-24, np.zeros(len(average)), np.zeros(len(average)), -math.inf
    for part in np.array_split(np.arange(len(weights)), splits):
        count = weights[part].sum()
        if not count:
            continue
        output = weights[part] @ values[part] / count
        output = output + side * np.abs(output) * 4 * unit
        push = side * np.sign(output - average)
        logarithm = math.log(count) + push * unit * (6 * max(1.0, math.log(count)) + 1)
        new = max(top, math.log(count))
        alpha, weight = math.exp(top - new) if math.isfinite(top) else 0.0, np.exp(logarithm - new)
        weight = weight * (1 + push * unit * (4 + 2 * (new - math.log(count))))
        total = (total * alpha + weight) * (1 - side * np.sign(average) * unit)
        summed = summed * alpha + weight * output * (1 + side * np.sign(output) * unit)
        summed, top = summed + side * np.abs(summed) * 2 * unit, new
    result = summed / total
    return torch.from_numpy(result + side * np.abs(result) * 2 * unit).to(tensors.output.dtype).double()


@pytest.mark.parametrize("splits", [1, 5, 100])
@pytest.mark.parametrize(("types", "num_keys"), [("float32", 5), ("float16", 128), ("bfloat16", 4096), ("e4m3", 8192)])
def test_a_lost_key_shows_behind_a_merge_by_logarithms(types: str, num_keys: int, splits: int) -> None:
    """What the merge rounds grows with the tiles of 16 keys that may be splits; sums within a split are exact."""
    tensors = materialise(case_of(HeavyScores("random"), num_keys, dtypes=TYPES[types]))
    (block,) = row_blocks(tensors)
    kept = (logits_of(block, tensors, MERGING).exact[0, 0, 0, 0] == 0.0).double().numpy()
    values, reference = block.values[0, 0].numpy(), attend(tensors, MERGING)
    for side in (1, -1):
        assert ratio(reference, merged(tensors, kept, values, splits, side)) <= 1.0
        few = RoundingModel(normalises_last=True, merges_logarithms=True, most_segments=splits)
        assert ratio(attend(tensors, few), merged(tensors, kept, values, splits, side)) <= 1.0
    found, tried = 0, np.random.default_rng(3).permutation(np.flatnonzero(kept))[:24]
    for key in tried:
        wrong = kept.copy()
        wrong[key] = 0.0
        found += ratio(reference, merged(tensors, wrong, values, splits, 1)) > 1.0
    assert found >= 0.95 * len(tried)


def test_a_split_of_negligible_keys_has_weights_of_its_own() -> None:
    """Hundreds of thousands of keys at -110 have no weight one by one, and a little where a merge counts them."""
    case = case_of(HeavyScores("one", depth=115.0), 100)
    (block,) = row_blocks(tensors := materialise(case))
    assert logits_of(block, tensors, MODEL).equal_rows is not None
    assert logits_of(block, tensors, MERGING).equal_rows is None


@pytest.mark.parametrize("changes", [{"alibi": AlibiRecipe()}, {"sinks": SinkRecipe()}], ids=["alibi", "sinks"])
def test_rows_with_other_weights_are_not_exact(changes: dict[str, Any]) -> None:
    tensors = materialise(case_of(UniformScores(), 100, **changes))
    (block,) = row_blocks(tensors)
    assert logits_of(block, tensors, MODEL).equal_rows is None


@pytest.mark.parametrize("level", [0.0, -1000.0])
def test_sinks_of_zero_or_far_below_leave_weights_exact(level: float) -> None:
    tensors = materialise(case_of(UniformScores(), 100, sinks=SinkRecipe(level=level, spread=0.0)))
    (block,) = row_blocks(tensors)
    rows = logits_of(block, tensors, MODEL).equal_rows
    assert rows is not None
    assert bool(rows.all())


@pytest.mark.parametrize(
    ("model", "level", "exact"),
    [
        (RoundingModel(normalises_last=True, tanh_error=2.0**-10), 0.0, False),
        (RoundingModel(normalises_last=True), 0.0, False),
        (RoundingModel(normalises_last=True, tanh_units=24.0), 0.0, True),
        (RoundingModel(normalises_last=True, tanh_error=0.0), 0.0, True),
        (RoundingModel(normalises_last=True, tanh_error=2.0**-10), -1000.0, True),
        (RoundingModel(normalises_last=True, tanh_error=1.0), -111.0, False),
    ],
)
def test_a_tanh_that_is_not_0_at_0_moves_all_keys_but_not_the_sink(
    model: RoundingModel, level: float, exact: bool
) -> None:
    """A correct kernel whose tanh errs by as much as it may at 0 stays within the bound."""
    case = case_of(UniformScores(), 9, softcap=30.0, sinks=SinkRecipe(level=level, spread=0.0))
    tensors = materialise(case)
    (block,) = row_blocks(tensors)
    assert (logits_of(block, tensors, model).equal_rows is not None) == exact
    values, error = block.values[0, 0], model.tanh_error if model.tanh_units is None else 0.0
    weight = math.exp(30.0 * error - max(level, 0.0))
    output = values.sum(0) * weight / (len(values) * weight + math.exp(level))
    assert ratio(attend(tensors, model), output) <= 1.0


def test_a_sink_of_zero_counts_as_a_key_of_exact_rows() -> None:
    tensors = materialise(case_of(UniformScores(), 7, sinks=SinkRecipe(level=0.0, spread=0.0)))
    (block,) = row_blocks(tensors)
    assert torch.equal(attend(tensors, MODEL)["out"].value[0, 0], block.values[0, 0].sum(0) / 8)


def test_only_targets_that_normalise_last_have_exact_weights() -> None:
    tensors = materialise(case_of(UniformScores(), 100))
    (block,) = row_blocks(tensors)
    assert logits_of(block, tensors, RoundingModel()).equal_rows is None
    assert bool((attend(tensors, RoundingModel())["out"].bound >= attend(tensors, MODEL)["out"].bound).all())


def test_values_that_are_no_multiples_of_a_grid_are_not_exact() -> None:
    tensors = materialise(case_of(UniformScores(), 3000, values=NormalValues(), key_marks=False))
    (block,) = row_blocks(tensors)
    assert not bool(exact_columns(block, block.magnitudes.sum(-2, keepdim=True), 2.0**-24).any())


def one_row(values: np.ndarray[Any, Any]) -> RowBlock:
    """Return a block of one row that sees one column of values."""
    (block,) = row_blocks(materialise(case_of(UniformScores(), 1)))
    columns = torch.from_numpy(values)[None, None, :, None]
    return replaced(block, values=columns, visible=torch.ones(1, 1, len(values), dtype=torch.bool))


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0.0, math.inf), (1.0, 1.0), (-6.0, 2.0), (0.75 * 2.0**-40, 2.0**-42), (2.0**120, 2.0**120)],
)
def test_the_lowest_bit_of_a_number(number: float, expected: float) -> None:
    assert float(lowest_bit(torch.tensor([number], dtype=torch.float64))) == expected


def test_exact_rows_do_not_depend_on_later_keys() -> None:
    """The last key of a prompt is on no grid with the others: only the last row sees it."""
    tensors = materialise(case_of(UniformScores(), 40, sequences=(Sequence(40),), key_marks=False))
    tensors.value_cache[tensors.block_table[0, 39 // 16].long(), 39 % 16] = 2.0**-30 / 3
    bound = attend(tensors, MODEL)["out"].bound.amax((1, 2))
    assert float(bound[38]) < 8 * 2.0**-24 * 8 < float(bound[39])


@pytest.mark.parametrize("slack", [1.0, 2.0, 16.0])
def test_sums_on_the_grid_survive_an_adder_that_truncates(slack: float) -> None:
    """An adder that drops every bit below ``2 unit`` times its largest operand changes no sum of such columns."""
    unit, random = slack * 2.0**-24, np.random.default_rng(1)
    most = int(0.5 / unit)
    values = random.integers(-8, 9, size=most // 9).astype(np.float64)
    columns, total = one_row(values), torch.tensor([[[[float(np.abs(values).sum())]]]], dtype=torch.float64)
    assert bool(exact_columns(columns, total, unit).all())
    assert not bool(exact_columns(columns, 3 * total, unit).any())
    # Start from the largest sum that the column may reach, where most bits are dropped.
    total = start = values.clip(0).sum()
    for value in random.permutation(values)[:20000]:
        step = 2.0 ** np.floor(np.log2(2 * unit * max(abs(total), abs(value), 1.0)))
        total = np.trunc(total / step) * step + np.trunc(value / step) * step
        start += value
    assert total == start
    assert not bool(exact_columns(one_row(values + 0.25), torch.full((1, 1, 1, 1), 4.0 * total), unit).all())


@pytest.mark.parametrize("num_keys", [3, 7, 41])
def test_the_reference_of_exact_rows_has_no_rounding_of_weights(num_keys: int) -> None:
    """The weight 1/3 is inexact in float64, and a sum of it times values that cancel is not 0."""
    tensors = materialise(case_of(UniformScores(), num_keys))
    (block,) = row_blocks(tensors)
    total = block.values[0, 0].sum(0)
    assert torch.equal(attend(tensors, MODEL)["out"].value[0, 0], total / num_keys)


def test_weights_of_0_are_not_counted() -> None:
    """A row that one key dominates has the same bound at any length, in a model without exact weights too."""
    bounds = []
    for num_keys in (64, 8192):
        case = case_of(HeavyScores("one"), num_keys, values=NormalValues(), key_marks=False)
        bounds.append(attend(materialise(case), RoundingModel())["out"].bound[0, 0])
    assert float((bounds[1] / bounds[0]).median()) < 4.0


def test_weights_of_rows_whose_logits_are_all_low_are_counted() -> None:
    """With negative slopes the last rows of a long prompt see only low logits through a window."""
    case = case_of(NormalScores(), 400, values=NormalValues(), key_marks=False, window=4)
    case = replace(case, sequences=(Sequence(400),), alibi=AlibiRecipe(kind="negative", scale=16.0))
    tensors = materialise(case)
    seen = 0
    for block in row_blocks(tensors):
        logits = logits_of(block, tensors, RoundingModel())
        if logits.significant is None:
            continue
        relative = logits.exact - logits.top
        assert bool(logits.significant[relative > -100.0].all())
        seen += int((logits.significant.any(-1, keepdim=True) & (logits.top < -110.0)).sum())
    assert seen > 0


@pytest.mark.parametrize("scale", [1.7, -0.3, 0.5])
def test_partial_sums_may_be_scaled_before_they_are_added(scale: float) -> None:
    """Segments of fp8 queries may apply v's scale: it rounds sums that cancel later, unless it is a power of two."""
    dtypes, worst = DTypes(E4M3, E4M3, "float32"), 0.0
    for seed in range(20):
        case = case_of(UniformScores(), 34, dtypes=dtypes, scales=Scales(v=scale), key_marks=False, seed=seed)
        tensors = materialise(case)
        (block,) = row_blocks(tensors)
        assert tensors.v_scale is not None
        parts = [part.sum(0) * tensors.v_scale for part in torch.split(block.values[0, 0].float(), 9)]
        output = (parts[0] + parts[1] + parts[2] + parts[3]) / 34
        worst = max(worst, ratio(attend(tensors, MODEL), output.double()))
    assert worst <= 1.0


def test_a_scale_of_zero_has_a_finite_bound() -> None:
    reference = attend(materialise(case_of(HeavyScores(), 50, softmax_scale=0.0)), MODEL)
    assert bool(reference["out"].bound.isfinite().all())
    tensors = materialise(case_of(HeavyScores(), 50))
    tensors = replaced(tensors, softmax_scale=1e-38)
    assert bool(attend(tensors, MODEL)["out"].bound.isfinite().all())


@pytest.mark.parametrize("scale", [-0.5, -1.0])
def test_bounds_are_positive_with_a_negative_scale(scale: float) -> None:
    tensors = materialise(case_of(UniformScores(), 50, dtypes=DTypes(E4M3, E4M3, "float8_e5m2")))
    tensors = replaced(tensors, v_scale=torch.tensor([scale]))
    mirrored = attend(replaced(tensors, v_scale=torch.tensor([-scale])), MODEL)
    reference = attend(tensors, MODEL)
    assert bool((reference["out"].bound > 0).all())
    torch.testing.assert_close(reference["out"].value, -mirrored["out"].value, rtol=0.0, atol=0.0)
    torch.testing.assert_close(reference["out"].bound, mirrored["out"].bound, rtol=0.0, atol=0.0)
