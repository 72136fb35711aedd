"""Each field of a rounding model changes the bound where it applies, and only there."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import DTypeName, DTypes, HeadLayout, Sequence
from fuzz_attn.case.recipes import NormalScores
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.oracle.error_bound import probability_dtype
from fuzz_attn.oracle.logits import logits_of
from fuzz_attn.oracle.reference import attend
from fuzz_attn.oracle.rounding_model import TANH_OF_EXPONENTIALS, RoundingModel
from fuzz_attn.oracle.row_blocks import row_blocks
from fuzz_attn.targets.target import Target

SEQUENCES = (Sequence(2, 40), Sequence(1, 9))


def case_of(q: DTypeName, kv: DTypeName) -> AttentionCase:
    return AttentionCase(
        SEQUENCES, heads=HeadLayout(1, 2, 8), dtypes=DTypes(q, kv, "float32"), scores=NormalScores(2.0)
    )


COARSER: list[tuple[str, DTypeName, DTypeName, RoundingModel]] = [
    ("tf32", "float32", "float32", RoundingModel(input_precision="tf32")),
    ("P in bfloat16", "float32", "float32", RoundingModel(probability="bfloat16")),
    ("P in fp8", "bfloat16", "bfloat16", RoundingModel(probability="float8_e4m3fn")),
    ("sums in half", "float16", "float16", RoundingModel(accumulate="float16")),
    ("truncating dots", "float32", "float32", RoundingModel(accumulate_slack=2.0)),
    ("tensor cores", "bfloat16", "bfloat16", RoundingModel(tensor_core_slack=2.0)),
    ("tensor cores on widened fp8", "float8_e4m3fn", "float8_e4m3fn", RoundingModel(tensor_core_slack=2.0)),
    ("imprecise fp8 dots", "float8_e4m3fn", "float8_e4m3fn", RoundingModel(fp8_dot_slack=2.0**11)),
    ("smaller tiles", "float32", "float32", RoundingModel(tile_size=1)),
    ("unrounded K and V", "bfloat16", "float8_e5m2", RoundingModel(rounds_dequantised=False)),
]


@pytest.mark.parametrize(("q", "kv", "model"), [part[1:] for part in COARSER], ids=[part[0] for part in COARSER])
def test_coarser_model_gives_a_larger_bound_and_the_same_value(
    q: DTypeName, kv: DTypeName, model: RoundingModel
) -> None:
    tensors = materialise(case_of(q, kv))
    plain, coarse = attend(tensors), attend(tensors, model)
    assert bool((coarse["out"].bound > plain["out"].bound).all())
    assert bool((coarse["out"].value == plain["out"].value).all())


def test_tanh_with_a_relative_error_gives_a_smaller_bound() -> None:
    case = msgspec.structs.replace(case_of("float32", "float32"), softcap=50.0)
    tensors = materialise(case)
    absolute, relative = attend(tensors), attend(tensors, RoundingModel(tanh_units=20.0))
    assert bool((relative["out"].bound < absolute["out"].bound).all())
    assert bool((relative["out"].value == absolute["out"].value).all())


@pytest.mark.parametrize("side", [1, -1])
def test_a_soft_cap_by_an_approximate_sigmoid_is_within_the_default_bound(side: int) -> None:
    """``2 sigmoid(2x) - 1``: ``ex2.approx`` may lose 6 units, an approximate division 4, each sum half a spacing."""
    unit, arguments = 2.0**-24, np.linspace(-9.0, 9.0, 100_001)
    exponents = -2 * arguments
    powers = np.exp(exponents - side * 2 * unit * np.abs(exponents)) * (1 - side * 6 * unit)
    below = 1 + powers
    below -= side * unit * 2.0 ** np.floor(np.log2(below))
    doubled = 2 / below * (1 + side * 4 * unit)
    error = np.abs(doubled - 1 + side * unit / 2 - np.tanh(arguments))
    assert 0.9 * TANH_OF_EXPONENTIALS < error.max() < TANH_OF_EXPONENTIALS


def test_products_of_more_parts_are_more_exact() -> None:
    """Six products of parts in bfloat16 are nearly as exact as float32, three are not."""
    tensors = materialise(case_of("float32", "float32"))
    models = (RoundingModel(input_precision=each) for each in ("ieee", "bf16x6", "bf16x3"))
    ieee, six, three = (float(attend(tensors, model)["out"].bound.median()) for model in models)
    assert ieee < six < three / 4


@pytest.mark.parametrize(
    ("num_keys", "window"), [(1, 0), (2, 0), (16, 0), (17, 0), (18, 0), (40, 16), (40, 17), (40, 18)]
)
def test_each_tile_with_a_visible_key_may_be_a_segment_that_is_rescaled(num_keys: int, window: int) -> None:
    """A tile starts at any key: the first visible key may be the last one of its tile."""
    case = AttentionCase((Sequence(1, num_keys - 1),), window=window, heads=HeadLayout(1, 1, 8))
    tensors = materialise(case)
    (block,) = row_blocks(tensors)
    first = num_keys - min(window or num_keys, num_keys)
    tiles = max(len({(key + start) // 16 for key in range(first, num_keys)}) for start in range(16))
    assert float(logits_of(block, tensors, RoundingModel()).rescales.max()) == tiles


INDIFFERENT: list[tuple[str, DTypeName, DTypeName, RoundingModel]] = [
    ("tf32 of half operands", "bfloat16", "bfloat16", RoundingModel(input_precision="tf32")),
    ("tensor cores without tf32", "float32", "float32", RoundingModel(tensor_core_slack=2.0)),
    ("fp8 dots of wide operands", "float32", "float32", RoundingModel(fp8_dot_slack=2.0**11)),
    ("unrounded K and V of a wide cache", "float16", "float16", RoundingModel(rounds_dequantised=False)),
    ("a finer P than the type of q", "float16", "float16", RoundingModel(probability="float16")),
]


@pytest.mark.parametrize(
    ("q", "kv", "model"), [part[1:] for part in INDIFFERENT], ids=[part[0] for part in INDIFFERENT]
)
def test_field_of_another_type_changes_nothing(q: DTypeName, kv: DTypeName, model: RoundingModel) -> None:
    tensors = materialise(case_of(q, kv))
    assert bool((attend(tensors, model)["out"].bound == attend(tensors)["out"].bound).all())


@pytest.mark.parametrize(
    ("q", "kv", "expected"),
    [
        ("float16", "float8_e5m2", "float16"),
        ("float32", "float32", "float32"),
        ("float8_e5m2", "float8_e5m2", "bfloat16"),
    ],
)
def test_p_has_the_type_of_q_or_bfloat16_for_fp8(q: DTypeName, kv: DTypeName, expected: str) -> None:
    assert str(probability_dtype(materialise(case_of(q, kv)), RoundingModel())) == f"torch.{expected}"


def test_tensor_cores_sum_tf32_operands() -> None:
    tensors = materialise(case_of("float32", "float32"))
    plain, truncating = (
        attend(tensors, RoundingModel(input_precision="tf32", tensor_core_slack=slack)) for slack in (1.0, 2.0)
    )
    assert bool((truncating["out"].bound > plain["out"].bound).all())


def test_device_never_makes_a_model_finer() -> None:
    target = Target("made here", print, rounding=RoundingModel(input_precision="tf32", tensor_core_slack=1.5))
    assert target.on_device(2.0).rounding_model == RoundingModel(input_precision="tf32", tensor_core_slack=2.0)
    assert target.on_device(1.0).rounding_model == target.rounding_model


def test_models_survive_json() -> None:
    model = RoundingModel(probability="float16", input_precision="tf32")
    text = msgspec.json.encode(model)
    assert msgspec.json.decode(text, type=RoundingModel) == model
    assert msgspec.json.encode(RoundingModel()) == b"{}"


@pytest.mark.parametrize("fields", [{"tf32": True}, {"rounded_denominator": 2}, {"probability": "float12"}])
def test_unknown_fields_and_types_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match=next(iter(fields))):
        msgspec.convert(fields, type=RoundingModel)
