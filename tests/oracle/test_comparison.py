"""Verdicts on outputs that are right, or wrong in a known way."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import DTypeName, DTypes, HeadLayout, Sequence
from fuzz_attn.case.recipes import PoisonRecipe
from fuzz_attn.inputs.tensors import AttentionTensors, materialise
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.reference import Reference, attend
from fuzz_attn.oracle.row_blocks import every, has_zero, places_of, some, some_between
from fuzz_attn.oracle.verdict import Verdict, Where
from fuzz_attn.properties.comparisons import reordered

CASE = AttentionCase((Sequence(3, 4), Sequence(0, 2), Sequence(2, 7)), heads=HeadLayout(2, 2, 12), padded_tokens=2)
DTYPES: tuple[DTypeName, ...] = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def solved(case: AttentionCase = CASE) -> tuple[AttentionTensors, Reference]:
    """Return tensors whose output is right, and their reference as tensors that a test may change."""
    tensors = materialise(case)
    reference = reordered(attend(tensors), tensors, "token", torch.arange(case.num_tokens))
    tensors.output[: case.num_tokens] = reference["out"].value.to(tensors.output.dtype)
    return tensors, reference


def judged(place: Any, value: float, case: AttentionCase = CASE) -> Verdict:
    """Return the verdict on a right output that was set to ``expected + value * bound`` at a place."""
    tensors, reference = solved(case)
    tensors.output[: case.num_tokens][place] = (reference["out"].value + value * reference["out"].bound)[place].to(
        tensors.output.dtype
    )
    return judge(tensors, reference)


@pytest.mark.parametrize("dtype", DTYPES)
def test_right_output_passes(dtype: DTypeName) -> None:
    tensors, reference = solved(replace(CASE, dtypes=DTypes(out=dtype)))
    verdict = judge(tensors, reference)
    assert verdict.passed
    assert verdict.elements == CASE.num_tokens * 4 * 12
    assert verdict.ratio is not None
    assert verdict.ratio <= 1.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", [0, 1])
def test_output_that_was_never_written(dtype: DTypeName, variant: int) -> None:
    tensors = materialise(replace(CASE, dtypes=DTypes(out=dtype), poison=PoisonRecipe(out=1 if variant else 0)))
    verdict = judge(tensors, attend(tensors))
    assert (verdict.kind, verdict.where, verdict.ratio) == ("unwritten", "everywhere", None)
    assert verdict.wrong == verdict.elements
    assert verdict.message == "240 of 240 elements wrong, 240 never written"


def test_one_unwritten_element() -> None:
    tensors, reference = solved()
    poisoned = materialise(CASE)
    tensors.output[1, 2, 5] = poisoned.output[1, 2, 5]
    verdict = judge(tensors, reference)
    assert (verdict.kind, verdict.wrong) == ("unwritten", 1)
    assert verdict.worst[0].actual == "nan"


@pytest.mark.parametrize(
    ("value", "kind"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "inf"), (1.5, "mismatch")]
)
def test_kind_of_a_wrong_element(value: float, kind: str) -> None:
    verdict = judged((4, 1, 3), value)
    assert verdict.kind == kind
    (worst,) = verdict.worst
    assert (worst.token, worst.head, worst.column, worst.sequence, worst.query_index) == (4, 1, 3, 2, 1)


def test_error_passes_below_the_bound_and_fails_above() -> None:
    assert judged((0, 0, 0), 0.99).passed
    assert not judged((0, 0, 0), 1.01).passed


def test_ratio_is_the_largest_error_over_bound() -> None:
    assert judged((2, 1, 3), -34.2).ratio == pytest.approx(34.2, rel=1e-2)


def test_message_has_the_count_and_the_worst_ratio() -> None:
    assert judged((slice(0, 3), 1, slice(4)), 34.2).message == "12 of 240 elements wrong, worst 34.2 times the bound"


def test_worst_elements_start_with_non_finite_ones() -> None:
    tensors, reference = solved()
    output, bound = tensors.output, reference["out"].bound
    for column in range(10):
        output[0, 0, column] += float(bound[0, 0, column]) * (10 + column)
    output[3, 3, 3] = math.inf
    output[4, 0, 0] = math.nan
    verdict = judge(tensors, reference)
    places = [(element.token, element.head, element.column) for element in verdict.worst]
    assert sorted(places[:2]) == [(3, 3, 3), (4, 0, 0)]
    assert places[2:] == [(0, 0, column) for column in range(9, 3, -1)]
    assert verdict.message.startswith("12 of 240 elements wrong, 1 NaN, 1 infinite, worst 19")


PLACES: list[tuple[Any, Where]] = [
    (slice(None), "everywhere"),
    ((slice(None), slice(None), slice(8, None)), "padded_head"),
    (([2, 4],), "tail_rows"),
    (([2],), "tail_rows"),
    (([3, 4],), "one_sequence"),
    (([0, 1],), "one_sequence"),
    ((slice(None), 1), "some_heads"),
    ((slice(None), slice(None), [0, 5]), "some_columns"),
    (([1, 3],), "scattered"),
]


@pytest.mark.parametrize(("place", "where"), PLACES)
def test_place_of_the_wrong_elements(place: Any, where: Where) -> None:
    assert judged(place, 3.0).where == where


def test_place_of_rows_that_the_window_cuts() -> None:
    assert judged(([2, 3],), 3.0, replace(CASE, window=6)).where == "window_rows"


@pytest.mark.parametrize("size", [8, 16])
def test_power_of_two_has_no_padded_columns(size: int) -> None:
    verdict = judged((0, 0, size - 1), 3.0, replace(CASE, heads=HeadLayout(2, 2, size)))
    assert verdict.where != "padded_head"


def test_ill_conditioned_rows_must_be_written_and_not_nan() -> None:
    tensors, reference = solved()
    reference["out"].judged[1, 2] = False
    tensors.output[1, 2] += 100.0
    assert judge(tensors, reference).passed
    tensors.output[1, 2, 0] = math.nan
    assert judge(tensors, reference).kind == "nan"
    tensors.output[1, 2, 0] = materialise(CASE).output[1, 2, 0]
    assert judge(tensors, reference).kind == "unwritten"


def test_elements_without_a_bound_must_only_be_written() -> None:
    tensors, reference = solved()
    reference["out"].bound[1, 2] = math.inf
    for value in (math.inf, math.nan, 1e30):
        tensors.output[1, 2, 0] = value
        assert judge(tensors, reference).passed
    tensors.output[1, 2, 0] = materialise(CASE).output[1, 2, 0]
    assert judge(tensors, reference).kind == "unwritten"


def test_padded_rows_do_not_count() -> None:
    tensors, reference = solved()
    tensors.output[CASE.num_tokens :] = 1e9
    assert judge(tensors, reference).passed


def test_empty_batch_passes_without_a_ratio() -> None:
    tensors = materialise(replace(CASE, sequences=(Sequence(0, 3),)))
    verdict = judge(tensors, attend(tensors))
    assert verdict.passed
    assert (verdict.ratio, verdict.elements) == (None, 0)


def test_strided_output_is_read_through_its_strides() -> None:
    strides = replace(CASE).strides
    tensors, reference = solved(replace(CASE, strides=type(strides)(out_token=5, out_head=3)))
    assert judge(tensors, reference).passed
    assert not tensors.output.is_contiguous()


def test_output_of_zeros_is_wrong() -> None:
    tensors, reference = solved()
    tensors.output.zero_()
    verdict = judge(tensors, reference)
    assert verdict.kind == "mismatch"
    assert verdict.where == "everywhere"
    assert verdict.wrong == int((reference["out"].value.abs() > reference["out"].bound).sum())
    assert torch.equal(tensors.output, torch.zeros_like(tensors.output))


MASKS = [torch.tensor(mask) for mask in ([False], [True], [[False, True], [False, False]], [True, True])]
NUMBERS = [[0.0, 2.0], [0.5], [1.0], [math.nan, 0.5], [math.nan], [math.inf, -1.0], [[0.0, 0.0], [0.1, 3.0]]]


@pytest.mark.parametrize("mask", [*MASKS, MASKS[2].T, torch.zeros(0, dtype=torch.bool)])
def test_masks_are_answered_as_by_torch(mask: torch.Tensor) -> None:
    assert (some(mask), every(mask)) == (bool(mask.any()), bool(mask.all()))


@pytest.mark.parametrize(
    "mask", [MASKS[2], MASKS[2].T, torch.eye(3).bool()[:2], torch.zeros(2, 2, 3, dtype=torch.bool)]
)
def test_places_with_an_element_that_holds(mask: torch.Tensor) -> None:
    places = places_of(mask)
    assert places.tolist() == [place for place in range(mask.shape[-1]) if mask[..., place].any()]


@pytest.mark.parametrize(
    ("numbers", "answer"), [([1.0, 0.0], True), ([1.0, -0.0], True), ([torch.nan, -5e-324], False)]
)
def test_a_number_that_is_0(numbers: list[float], answer: bool) -> None:
    assert has_zero(torch.tensor(numbers, dtype=torch.float64)) == answer


@pytest.mark.parametrize("numbers", NUMBERS)
def test_numbers_between_two_others(numbers: list[float]) -> None:
    tensor = torch.tensor(numbers, dtype=torch.float64)
    assert some_between(tensor, 0.0, 1.0) == bool(((tensor > 0.0) & (tensor < 1.0)).any())
