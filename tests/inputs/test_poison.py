"""Poison: every pattern has the value that its name says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fuzz_attn.case.parts import DTypeName
from fuzz_attn.case.recipes import SlotPoison, TablePoison
from fuzz_attn.inputs.storage import TORCH_DTYPES, UNSIGNED, output_poison, slot_poison, table_poison

DTYPES = tuple(TORCH_DTYPES)


def element(dtype: DTypeName, bits: int) -> torch.Tensor:
    size = TORCH_DTYPES[dtype].itemsize
    memory = np.array([bits], dtype=UNSIGNED[size]).view(np.uint8)
    return torch.from_numpy(memory).view(TORCH_DTYPES[dtype]).float()


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_is_nan(dtype: DTypeName) -> None:
    assert element(dtype, slot_poison(dtype, "nan")).isnan()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kind", "value"), [("inf", float("inf")), ("negative_inf", float("-inf"))])
def test_infinity_is_infinite_or_nan_where_there_is_none(dtype: DTypeName, kind: SlotPoison, value: float) -> None:
    poison = element(dtype, slot_poison(dtype, kind))
    assert poison.isnan() if dtype == "float8_e4m3fn" else poison.item() == value


@pytest.mark.parametrize("dtype", DTYPES)
def test_huge_is_the_largest_finite_number(dtype: DTypeName) -> None:
    assert element(dtype, slot_poison(dtype, "huge")).item() == torch.finfo(TORCH_DTYPES[dtype]).max


@pytest.mark.parametrize("dtype", DTYPES)
def test_output_patterns_are_two_nans(dtype: DTypeName) -> None:
    patterns = [output_poison(dtype, variant) for variant in (0, 1)]
    assert all(element(dtype, bits).isnan() for bits in patterns)
    assert patterns[0] != patterns[1]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_output_patterns_are_no_nan_that_arithmetic_makes(dtype: DTypeName) -> None:
    size = TORCH_DTYPES[dtype].itemsize
    infinity = torch.full((1,), torch.inf, dtype=TORCH_DTYPES[dtype])
    made = {(infinity - infinity), -(infinity - infinity), (infinity * 0), torch.full_like(infinity, torch.nan)}
    bits = {int(nan.view(torch.uint8).numpy().view(UNSIGNED[size])[0]) for nan in made}
    bits |= {slot_poison(dtype, "nan")}
    assert not bits & {output_poison(dtype, variant) for variant in (0, 1)}


@pytest.mark.parametrize(("kind", "entry"), [("zero", 0), ("negative", -1), ("one_past", 7), ("huge", 2147483647)])
def test_table_poison(kind: TablePoison, entry: int) -> None:
    assert table_poison(kind, 7) == entry
