"""The tables of dtypes, families and features: complete, and equal to what torch and numpy know."""

from __future__ import annotations

from typing import get_args

import ml_dtypes
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz_attn.case.aspects import FEATURES_OF, all_features_of
from fuzz_attn.case.attention_case import AttentionCase, inexpressible
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import DTYPES, FP8_DTYPES, WIDE_DTYPES, DType, DTypeName
from fuzz_attn.inputs.storage import NUMPY_DTYPES, TORCH_DTYPES
from fuzz_attn.strategies.cases import cases

QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)


def test_tables_have_every_name_once() -> None:
    assert tuple(DTYPES) == get_args(DTypeName)
    assert tuple(FAMILIES) == get_args(Family)
    assert {*FP8_DTYPES, *WIDE_DTYPES} == {*DTYPES}
    assert not {*FP8_DTYPES} & {*WIDE_DTYPES}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_limits_are_those_of_torch(dtype: DType) -> None:
    info = torch.finfo(TORCH_DTYPES[dtype.name])
    assert (dtype.bytes, dtype.largest, dtype.smallest_normal) == (info.bits // 8, info.max, info.smallest_normal)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_numpy_or_ml_dtypes_has_the_type_by_its_name(dtype: DType) -> None:
    known = NUMPY_DTYPES[dtype.name]
    assert known.itemsize == dtype.bytes
    assert float(ml_dtypes.finfo(known).max) == dtype.largest  # type: ignore[no-untyped-call]  # ml_dtypes has no types


@QUIET
@given(st.sampled_from(tuple(FAMILIES)).flatmap(lambda family: cases(Domain(family=family))), st.data())
def test_features_of_a_case_decide_which_families_can_express_it(case: AttentionCase, data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(tuple(FAMILIES)))
    present = all_features_of(case)
    assert present <= FEATURES_OF[case.family]
    if not present <= FEATURES_OF[family]:
        assert inexpressible(case, family).startswith(f"family='{family}' has no ")


@pytest.mark.parametrize(
    ("family", "query_len", "filtered", "answered", "packed"),
    [
        ("unified", 0, False, True, False),
        ("unified", 5, False, True, False),
        ("paged", 1, False, True, False),
        ("paged", 1, True, True, False),
        ("paged", 2, True, False, False),
        ("context", 1, False, True, True),
        ("context", 1, True, False, True),
        ("context", 2, True, True, True),
        ("chunked", 1, False, True, False),
        ("chunked", 2, False, True, True),
    ],
)
def test_what_families_answer_and_read_packed(
    family: Family, query_len: int, filtered: bool, answered: bool, packed: bool
) -> None:
    interface = FAMILIES[family]
    assert interface.answers(query_len, filter_by_query_len=filtered) == answered
    assert interface.reads_packed(query_len) == packed
