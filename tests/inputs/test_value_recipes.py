"""Value recipes and overrides: the cached values of a case."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import FP8_DTYPES, DTypeName, DTypes, HeadLayout, PageLayout, Scales, Sequence
from fuzz_attn.case.recipes import (
    ConstantValues,
    DenormalValues,
    IntegerValues,
    NormalValues,
    OneHotValues,
    OutlierValues,
    Override,
    PositionValues,
    ValueRecipe,
)
from fuzz_attn.inputs.numbers import LIMIT, MARK, numbers_of
from fuzz_attn.inputs.random_bits import Floats
from fuzz_attn.inputs.storage import TORCH_DTYPES, rounded
from fuzz_attn.strategies.features import FP8_SCALES, OTHER_SIGNS

QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
BATCH = (Sequence(4, 46), Sequence(0, 6), Sequence(3), Sequence(1, 130))


def case_of(values: ValueRecipe, **changes: object) -> AttentionCase:
    case = AttentionCase(BATCH, heads=HeadLayout(2, 3, 40), values=values, pages=PageLayout(block_size=5), seed=9)
    return replace(case, **changes)


def values_of(recipe: ValueRecipe, **changes: object) -> Floats:
    return numbers_of(case_of(recipe, **changes)).values


def stored(array: Floats, dtype: DTypeName, scale: float = 1.0) -> torch.Tensor:
    bits = np.ascontiguousarray(rounded(array, dtype, scale)).reshape(-1).view(np.uint8)
    return torch.from_numpy(bits).view(TORCH_DTYPES[dtype]).double()


def test_normal_values_differ_everywhere() -> None:
    values = values_of(NormalValues()).astype(np.float64)
    assert len(np.unique(values)) > 0.9 * values.size
    assert abs(values.mean()) < 0.05
    assert abs(values.std() - 1.0) < 0.05


@pytest.mark.parametrize("value", [1.0, -3.0, 0.0, 0.1])
def test_constant_values_are_constant(value: float) -> None:
    assert set(values_of(ConstantValues(value)).reshape(-1).tolist()) == {float(np.float32(value))}


def test_position_values_of_31_neighbours_differ_in_every_column() -> None:
    values = values_of(PositionValues())[59:]  # the last sequence
    for head in range(2):
        for column in range(40):
            for start in (0, 17, 100):
                assert len(np.unique(values[start : start + 31, head, column])) == 31


def test_position_values_differ_between_columns_heads_and_sequences() -> None:
    values = values_of(PositionValues())
    series = {values[59:, head, column].tobytes() for head in range(2) for column in range(40)}
    assert len(series) == 80
    assert values[0, 0, 0] != values[56, 0, 0]


@pytest.mark.parametrize(
    ("dtype", "apart"), [("float16", 31), ("bfloat16", 31), ("float8_e4m3fn", 31), ("float8_e5m2", 25)]
)
def test_rounded_position_values_stay_distinct(dtype: DTypeName, apart: int) -> None:
    # e5m2 has no eighths above 1, which leaves 12 of 15 sizes.
    assert len(set(stored(values_of(PositionValues())[59:90, 0, 0], dtype).tolist())) == apart


def test_one_hot_values_mark_the_edges() -> None:
    values = values_of(OneHotValues())
    expected = []
    for sequence in BATCH:
        for key in range(sequence.seq_len):
            edge = any(key % size in (0, size - 1) for size in (5, 16))
            expected.append(float(edge or key == sequence.seq_len - 1))
    np.testing.assert_array_equal(values, np.broadcast_to(np.array(expected)[:, None, None], values.shape))
    assert 0.2 < np.mean(expected) < 0.6


@pytest.mark.parametrize("dtype", [*TORCH_DTYPES])
def test_integer_values_are_exact_in_every_type(dtype: DTypeName) -> None:
    values = values_of(IntegerValues())
    assert set(np.unique(values).tolist()) == set(range(-8, 9))
    assert stored(values, dtype).tolist() == values.reshape(-1).astype(np.float64).tolist()


@pytest.mark.parametrize("factor", [64.0, 1000.0])
def test_outlier_values_are_a_sixteenth(factor: float) -> None:
    ordinary, unusual = values_of(NormalValues()), values_of(OutlierValues(factor))
    larger = unusual != ordinary
    np.testing.assert_array_equal(unusual[larger], ordinary[larger] * np.float32(factor))
    assert abs(larger.mean() - 1 / 16) < 0.01


@pytest.mark.parametrize(
    ("kv", "smallest", "scale"),
    [
        ("float32", 2.0**-126, 1.0),
        ("float16", 2.0**-14, 1.0),
        ("bfloat16", 2.0**-126, 1.0),
        ("float8_e4m3fn", 2.0**-6, 0.3),
        ("float8_e5m2", 2.0**-14, 11.0),
    ],
)
def test_denormal_values_are_on_both_sides_of_the_smallest_normal(kv: DTypeName, smallest: float, scale: float) -> None:
    q: DTypeName = "float16" if kv.startswith("float8") else kv
    values = values_of(DenormalValues(), dtypes=DTypes(q=q, kv=kv), scales=Scales(v=scale))
    sizes = stored(values, kv, scale).abs() / smallest
    assert sizes.max() <= 8.5
    assert ((sizes > 0) & (sizes < 1)).double().mean() > 0.1
    assert (sizes >= 1).double().mean() > 0.4


RECIPES: tuple[ValueRecipe, ...] = (
    NormalValues(),
    ConstantValues(1e30),
    ConstantValues(-1e30),
    PositionValues(),
    OneHotValues(),
    IntegerValues(),
    OutlierValues(1e30),
    DenormalValues(),
)


@pytest.mark.pairwise(recipe=RECIPES, kv=FP8_DTYPES, scale=(2.0**126, 1e6, 11.0, 0.3, 2.0**-8, 1e-9, 2.0**-126))
def test_dequantised_values_are_finite_in_float16(recipe: ValueRecipe, kv: DTypeName, scale: float) -> None:
    values = values_of(recipe, dtypes=DTypes("float16", kv), scales=Scales(v=scale))
    assert (np.abs(values) <= LIMIT).all()
    numbers = stored(values, kv, scale)
    assert bool(numbers.isfinite().all())
    assert float((numbers * scale).abs().max()) <= 65504.0


@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
@pytest.mark.parametrize("sequences", [(), (Sequence(0, 5),), (Sequence(0, 0), Sequence(1))])
def test_empty_and_tiny_batches(recipe: ValueRecipe, sequences: tuple[Sequence, ...]) -> None:
    case = case_of(recipe, sequences=sequences)
    assert numbers_of(case).values.shape == (case.total_keys, 2, 40)


TENSORS: dict[Literal["q", "k", "v"], str] = {"q": "queries", "k": "keys", "v": "values"}
OVERRIDES = st.builds(
    Override,
    tensor=st.sampled_from(tuple(TENSORS)),
    sequence=st.integers(0, 5),
    position=st.integers(0, 140) | st.integers(0, 3),
    head=st.integers(0, 7),
    column=st.integers(0, 42),
    value=st.sampled_from((99.0, -1000.0, 1e30, -1e30)),
)


def place_of(override: Override) -> tuple[int, int, int] | None:
    """Return where the override's element lies in its array, None if there is no such element."""
    queries = override.tensor == "q"
    if override.sequence >= len(BATCH):
        return None
    lengths = [sequence.query_len if queries else sequence.seq_len for sequence in BATCH]
    inside = override.position < lengths[override.sequence] and override.head < (6 if queries else 2)
    if not inside or override.column >= 40:
        return None
    return sum(lengths[: override.sequence]) + override.position, override.head, override.column


@QUIET
@given(OVERRIDES)
def test_override_sets_its_element_or_nothing(override: Override) -> None:
    before = numbers_of(case_of(NormalValues()))
    after = numbers_of(case_of(NormalValues(), overrides=(override,)))
    place = place_of(override)
    for tensor, name in TENSORS.items():
        changed = np.argwhere(getattr(after, name) != getattr(before, name)).tolist()
        assert changed == ([list(place)] if place is not None and tensor == override.tensor else []), name
    if place is not None:
        assert getattr(after, TENSORS[override.tensor])[place] == np.clip(override.value, -4096.0, 4096.0)


def test_later_override_wins() -> None:
    overrides = tuple(Override("v", value=value) for value in (3.0, 5.0))
    assert values_of(NormalValues(), overrides=overrides)[0, 0, 0] == 5.0


@pytest.mark.parametrize("out", [1.0, 0.3, 32.0])
def test_each_key_has_one_mark_and_other_columns_keep_the_recipe(out: float) -> None:
    changes = {"dtypes": DTypes(out="float8_e4m3fn"), "scales": Scales(out=out)}
    unmarked, marked = (values_of(NormalValues(), key_marks=marks, **changes) for marks in (False, True))
    assert np.array_equal(marked[..., 0::2], unmarked[..., 0::2])
    marks = marked[..., 1::2]
    assert set(np.abs(marks[marks != 0]).tolist()) == {float(MARK * np.float32(out))}
    assert (np.count_nonzero(marks, axis=-1) == 1).all()


@pytest.mark.parametrize("head_size", [2, 3, 16, 40])
def test_marks_in_one_column_cancel_over_any_range_of_keys(head_size: int) -> None:
    values = values_of(NormalValues(), key_marks=True, heads=HeadLayout(2, 3, head_size))[-131:, :, 1::2]
    sums = np.concatenate([np.zeros_like(values[:1]), np.cumsum(values, axis=0)])
    assert np.ptp(sums, axis=0).max() == MARK


def test_heads_of_one_column_have_no_marks() -> None:
    changes = {"heads": HeadLayout(2, 3, 1)}
    assert np.array_equal(values_of(NormalValues(), key_marks=True, **changes), values_of(NormalValues(), **changes))


def test_the_only_column_of_equal_heads_has_marks_that_cancel_in_pairs() -> None:
    changes = {"heads": HeadLayout(2, 3, 1), "equal_heads": True, "key_marks": True}
    values = values_of(NormalValues(), **changes)[-131:, :, 0]
    sums = np.concatenate([np.zeros_like(values[:1]), np.cumsum(values, axis=0)])
    assert np.ptp(sums, axis=0).max() <= 2 * MARK
    assert set(np.abs(values).flat) == {MARK}
    assert {tuple(pair) for pair in values[:130].reshape(65, 2, 2)[..., 0]} == {(MARK, -MARK), (-MARK, MARK)}


@pytest.mark.pairwise(q=("float32", "float16", "bfloat16"), kv=FP8_DTYPES, scale=(*FP8_SCALES, *OTHER_SIGNS))
def test_marks_of_equal_heads_have_few_bits_once_dequantised(scale: float, kv: DTypeName, q: DTypeName) -> None:
    changes = {"dtypes": DTypes(q=q, kv=kv, out=q), "scales": Scales(v=scale), "equal_heads": True}
    values = values_of(NormalValues(), key_marks=True, **changes)[..., 1::2]
    dequantised = (stored(values, kv, scale).float() * scale).to(TORCH_DTYPES[q]).double()
    if scale:
        zero, size = sorted(set(dequantised.abs().tolist()))
        fraction, _ = math.frexp(size)
        assert (zero, fraction * 2**6 % 1) == (0.0, 0.0)
        assert size >= MARK / 64
