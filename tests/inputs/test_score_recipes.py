"""Score recipes: the logits of a case, computed from its queries and keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import DTypeName, DTypes, HeadLayout, PageLayout, Scales, Sequence
from fuzz_attn.case.recipes import (
    DenormalScores,
    LevelScores,
    NeedleScores,
    NormalScores,
    OutlierScores,
    Place,
    RampScores,
    ScoreRecipe,
    UniformScores,
)
from fuzz_attn.inputs.numbers import LIMIT, NEAR_UNIFORM, numbers_of
from fuzz_attn.inputs.storage import TORCH_DTYPES, rounded
from fuzz_attn.inputs.tensors import materialise

Doubles = npt.NDArray[np.float64]

HEAD_SIZES = (1, 3, 16, 64, 256)
SOFTMAX_SCALES = (0.25, 1.0, -0.5, 0.0884)
BATCH = (Sequence(4, 30), Sequence(0, 6), Sequence(3), Sequence(1, 40))
ROUNDINGS = 2.0**-20
"""Relative error of a few float32 operations."""


@dataclass(frozen=True)
class RowLogits:
    """The logits ``[seq_len]`` of one (token, head), future keys included, and the range that the row sees."""

    logits: Doubles
    first: int
    position: int

    @property
    def visible(self) -> Doubles:
        return self.logits[self.first : self.position + 1]


def case_of(scores: ScoreRecipe, head_size: int = 16, scale: float = 0.25, **changes: object) -> AttentionCase:
    case = AttentionCase(BATCH, heads=HeadLayout(2, 3, head_size), softmax_scale=scale, scores=scores, seed=9)
    return replace(case, **changes)


def rows_of_logits(case: AttentionCase) -> Iterator[RowLogits]:
    numbers = numbers_of(case)
    queries, keys = numbers.queries.astype(np.float64), numbers.keys.astype(np.float64)
    token, start = 0, 0
    for sequence in case.sequences:
        own = keys[start : start + sequence.seq_len]
        for row in range(sequence.query_len):
            position = sequence.context_len + row
            first = max(0, position - case.window + 1) if case.window else 0
            for head in range(case.heads.num_query_heads):
                kv_head = head // case.heads.num_queries_per_kv
                logits = case.softmax_scale * (own[:, kv_head] @ queries[token, head])
                yield RowLogits(logits, first, position)
            token += 1
        start += sequence.seq_len


def needle_of(place: Place, row: RowLogits) -> int:
    wanted = {
        "own": row.position,
        "first": row.first,
        "outside_left": row.first - 1,
        "outside_right": row.position + 1,
    }[place]
    return min(max(wanted, 0), len(row.logits) - 1)


@pytest.mark.pairwise(head_size=HEAD_SIZES, scale=SOFTMAX_SCALES, window=(0, 1, 5))
def test_needle_has_the_largest_logit(head_size: int, scale: float, window: int) -> None:
    places: tuple[Place, ...] = ("own", "first", "outside_left", "outside_right")
    for place, strength in product(places, (8.0, 30.0)):
        case = case_of(NeedleScores(place, strength), head_size, scale, window=window)
        for row in rows_of_logits(case):
            peak = row.logits[needle_of(place, row)]
            assert abs(peak - strength) < strength * ROUNDINGS
            assert row.logits.max() < strength * (1 + ROUNDINGS)


@pytest.mark.parametrize("place", ["own", "first", "outside_left", "outside_right"])
def test_needle_of_a_large_head_has_no_rival(place: Place) -> None:
    # +-1 codes of 256 columns: another key within half of the peak would be eight standard deviations off.
    for row in rows_of_logits(case_of(NeedleScores(place), 256, 0.0625, window=5)):
        others = np.delete(row.logits, needle_of(place, row))
        assert others.max() < 4.0


@pytest.mark.parametrize("window", [0, 7])
def test_random_needle_is_visible_and_moves(window: int) -> None:
    places = set()
    for row in rows_of_logits(case_of(NeedleScores("random"), 256, 0.0625, window=window)):
        needle = int(row.logits.argmax())
        assert row.first <= needle <= row.position
        assert abs(row.logits[needle] - 8.0) < 8.0 * ROUNDINGS
        places.add(row.position - needle)
    assert len(places) > 4


@pytest.mark.parametrize(("window", "block_size"), [(0, 5), (0, 16), (12, 5)])
def test_boundary_needle_is_next_to_an_edge(window: int, block_size: int) -> None:
    case = case_of(NeedleScores("boundary"), 256, 0.0625, window=window, pages=PageLayout(block_size=block_size))
    sides = set()
    for row in rows_of_logits(case):
        needle = int(row.logits.argmax())
        assert row.first <= needle <= row.position
        before = {size for size in (block_size, 16) if needle % size == size - 1}
        after = {size for size in (block_size, 16) if needle % size == 0}
        assert before or after or needle == row.first
        sides |= {("before", size) for size in before} | {("after", size) for size in after}
    assert len(sides) == len({block_size, 16}) * 2


@pytest.mark.pairwise(head_size=HEAD_SIZES, scale=SOFTMAX_SCALES, level=(-20.0, -110.0, 80.0, -20000.0, 1.0, 0.25, 0.0))
def test_level_is_where_all_logits_are(head_size: int, scale: float, level: float) -> None:
    logits = np.concatenate([row.logits for row in rows_of_logits(case_of(LevelScores(level), head_size, scale))])
    # The jitter is 0.5 and its generator never leaves 3.47 standard deviations; keys keep 24 bits of the whole.
    spread = np.abs(logits - level)
    assert spread.max() < 0.5 * 3.47 + max(abs(level), 1.0) * ROUNDINGS
    assert 0.4 < np.sqrt(np.mean(spread**2)) < 0.6


def test_level_without_jitter_is_flat() -> None:
    for row in rows_of_logits(case_of(LevelScores(-60.0, jitter=0.0))):
        assert np.abs(row.logits + 60.0).max() < 60.0 * ROUNDINGS


@pytest.mark.pairwise(head_size=HEAD_SIZES, scale=SOFTMAX_SCALES, step=(0.25, 1.0, -0.25, 3.0))
def test_ramp_rises_by_its_step(head_size: int, scale: float, step: float) -> None:
    for row in rows_of_logits(case_of(RampScores(step), head_size, scale)):
        assert np.abs(np.diff(row.logits) - step).max(initial=0.0) < 120 * ROUNDINGS


def test_long_ramp_levels_off() -> None:
    case = replace(case_of(RampScores(1.0), 4), sequences=(Sequence(1, 1000),))
    (logits, *_) = (row.logits for row in rows_of_logits(case))
    assert np.abs(logits.min() + 200.0) < 200 * ROUNDINGS
    assert np.abs(np.diff(logits[-200:]) - 1.0).max() < 200 * ROUNDINGS


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_uniform_logits_are_equal_though_keys_are_not(head_size: int) -> None:
    case = case_of(UniformScores(), head_size)
    assert not any(row.logits.any() for row in rows_of_logits(case))
    assert len(np.unique(numbers_of(case).keys)) > 100


@pytest.mark.pairwise(head_size=HEAD_SIZES, scale=SOFTMAX_SCALES, spread=(0.1, 1.0, 16.0))
def test_normal_logits_have_their_spread(head_size: int, scale: float, spread: float) -> None:
    heads = HeadLayout(4, 2, head_size)
    case = case_of(NormalScores(spread), head_size, scale, sequences=(Sequence(60, 300),), heads=heads)
    logits = np.concatenate([row.logits for row in rows_of_logits(case)])
    assert abs(logits.std() / spread - 1.0) < 0.1
    assert abs(logits.mean()) < 0.1 * spread


@pytest.mark.parametrize("factor", [8.0, 64.0])
def test_outlier_keys_are_a_sixteenth(factor: float) -> None:
    sequences = (Sequence(1, 2000),)
    ordinary = numbers_of(case_of(NormalScores(), 4, sequences=sequences))
    unusual = numbers_of(case_of(OutlierScores(factor), 4, sequences=sequences))
    larger = (unusual.keys != ordinary.keys).all(axis=-1)
    np.testing.assert_array_equal(unusual.queries, ordinary.queries)
    np.testing.assert_array_equal(unusual.keys[~larger], ordinary.keys[~larger])
    np.testing.assert_array_equal(unusual.keys[larger], ordinary.keys[larger] * np.float32(factor))
    assert abs(larger.mean() - 1 / 16) < 0.02


SMALLEST = {"float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}
SMALLEST |= {"float8_e4m3fn": 2.0**-6, "float8_e5m2": 2.0**-14}


def sizes_of(numbers: npt.NDArray[np.float32], dtype: DTypeName, scale: float) -> Doubles:
    """Return the magnitudes of the stored numbers, in units of the type's smallest normal one."""
    bits = np.ascontiguousarray(rounded(numbers, dtype, scale)).reshape(-1)
    stored = torch_doubles(bits.view(np.uint8), dtype)
    return np.abs(stored) / SMALLEST[dtype]


def torch_doubles(memory: npt.NDArray[np.uint8], dtype: DTypeName) -> Doubles:
    import torch  # noqa: PLC0415 - the only place of this module that needs it

    doubles: Doubles = torch.from_numpy(memory).view(TORCH_DTYPES[dtype]).double().numpy()
    return doubles


@pytest.mark.parametrize(
    ("dtypes", "scales"),
    [
        (DTypes("float32", "float32"), Scales()),
        (DTypes("float16", "float16"), Scales()),
        (DTypes("bfloat16", "bfloat16"), Scales()),
        (DTypes("float32", "float8_e4m3fn"), Scales(k=0.3)),
        (DTypes("bfloat16", "float8_e5m2"), Scales(k=11.0)),
        (DTypes("float8_e4m3fn", "float8_e4m3fn"), Scales(q=2.0, k=2.0**-8)),
    ],
)
def test_denormals_are_on_both_sides_of_the_smallest_normal(dtypes: DTypes, scales: Scales) -> None:
    numbers = numbers_of(case_of(DenormalScores(), dtypes=dtypes, scales=scales))
    for array, dtype, scale in ((numbers.queries, dtypes.q, scales.q), (numbers.keys, dtypes.kv, scales.k)):
        sizes = sizes_of(array, dtype, scale)
        assert sizes.max() <= 8.5
        assert ((sizes > 0) & (sizes < 1)).mean() > 0.1
        assert (sizes >= 1).mean() > 0.4


RECIPES: tuple[ScoreRecipe, ...] = (
    NormalScores(),
    UniformScores(),
    NeedleScores(),
    LevelScores(),
    RampScores(),
    OutlierScores(),
    DenormalScores(),
)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: type(recipe).__name__)
def test_scale_of_zero_makes_all_logits_zero(recipe: ScoreRecipe) -> None:
    assert not any(row.logits.any() for row in rows_of_logits(case_of(recipe, scale=0.0)))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: type(recipe).__name__)
@pytest.mark.parametrize("sequences", [(), (Sequence(0, 5),), (Sequence(0, 0), Sequence(1))])
def test_empty_and_tiny_batches(recipe: ScoreRecipe, sequences: tuple[Sequence, ...]) -> None:
    case = case_of(recipe, sequences=sequences)
    numbers = numbers_of(case)
    assert numbers.queries.shape == (case.num_tokens, 6, 16)
    assert numbers.keys.shape == numbers.values.shape == (case.total_keys, 2, 16)


EXTREMES: tuple[ScoreRecipe, ...] = (
    NormalScores(1e30),
    NeedleScores(strength=-1e30),
    LevelScores(1e30, 1e30),
    LevelScores(-1e30, 0.0),
    LevelScores(0.0, 1e30),
    RampScores(-1e30),
    OutlierScores(1e30),
    *RECIPES,
)


@pytest.mark.pairwise(
    recipe=EXTREMES, scale=(2.0**126, -(2.0**126), 2.0**-126, -(2.0**-126), 0.0, 1.0), head_size=(1, 64)
)
def test_everything_is_finite_and_within_the_limit(recipe: ScoreRecipe, scale: float, head_size: int) -> None:
    # Warnings are errors, so nothing on the way may overflow either.
    case = case_of(recipe, head_size, scale)
    numbers = numbers_of(case)
    for array in (numbers.queries, numbers.keys, numbers.values):
        assert array.dtype == np.float32
        assert (np.abs(array) <= LIMIT).all()


ONE_BYTE: tuple[DTypeName, ...] = ("float8_e4m3fn", "float8_e5m2")


@pytest.mark.pairwise(recipe=EXTREMES, kv=ONE_BYTE, scale=(2.0**126, 1e6, 11.0, 0.3, 2.0**-8, 1e-9, 2.0**-126))
def test_dequantised_keys_are_finite_in_float16(recipe: ScoreRecipe, kv: DTypeName, scale: float) -> None:
    case = case_of(recipe, dtypes=DTypes("float16", kv), scales=Scales(k=scale, v=scale))
    tensors = materialise(case)
    assert bool(tensors.query.isfinite()[: case.num_tokens].all())
    stored = torch_doubles(rounded(numbers_of(case).keys, kv, scale).reshape(-1).view(np.uint8), kv)
    assert np.isfinite(stored).all()
    assert (np.abs(stored * scale) <= 65504.0).all()


@pytest.mark.parametrize("recipe", [*RECIPES, NormalScores(64.0)], ids=repr)
def test_near_uniform_divides_only_the_queries_of_most_rows(recipe: ScoreRecipe) -> None:
    plain, uniform = (
        numbers_of(case_of(recipe, 16, sequences=(Sequence(90, 3),), near_uniform=on)) for on in (False, True)
    )
    divided = (uniform.queries == plain.queries * NEAR_UNIFORM).all(-1)
    kept = (uniform.queries == plain.queries).all(-1)
    assert (divided | kept).all()
    assert np.array_equal(uniform.keys, plain.keys)
    assert np.array_equal(uniform.values, plain.values)
    if plain.queries.any():
        assert 0.8 < divided.mean() < 0.95
