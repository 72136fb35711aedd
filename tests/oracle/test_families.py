"""The oracle gives the same answer to a problem in every family that can express it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replaced

from fuzz_attn.case.attention_case import AttentionCase, replace, translated
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import Family
from fuzz_attn.case.parts import DTypes, HeadLayout, PageLayout, Scales, Sequence, Strides
from fuzz_attn.case.recipes import NeedleScores
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.reference import attend
from fuzz_attn.strategies.cases import cases

QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
families: tuple[Family, ...] = ("unified", "paged", "context", "chunked")
any_cases = st.sampled_from((*families, "varlen")).flatmap(lambda family: cases(Domain(family=family)))


@QUIET
@given(any_cases, st.sampled_from(families))
def test_a_translated_case_has_the_same_answer(case: AttentionCase, family: Family) -> None:
    other = translated(case, family)
    if other is None:
        return
    assert other.family == family
    one, two = attend(materialise(case)), attend(materialise(other))
    assert torch.equal(one["out"].value, two["out"].value)
    torch.testing.assert_close(two["out"].bound, one["out"].bound, rtol=1e-9, atol=0.0)


@pytest.mark.parametrize(
    ("case", "family", "possible"),
    [
        (AttentionCase((Sequence(1, 4), Sequence(1)), heads=HeadLayout(head_size=8)), "paged", True),
        (AttentionCase((Sequence(2, 4), Sequence(1)), heads=HeadLayout(head_size=8)), "paged", False),
        (AttentionCase((Sequence(2, 4), Sequence(1)), heads=HeadLayout(head_size=8)), "context", True),
        (AttentionCase((Sequence(2, 4),), heads=HeadLayout(head_size=6)), "context", False),
        (AttentionCase((Sequence(2, 4),), softcap=2.0), "context", False),
        (AttentionCase((Sequence(2, 4),), pages=PageLayout(shared_prefix=1)), "context", False),
        (AttentionCase((Sequence(1, 4),), pages=PageLayout(shared_prefix=1)), "chunked", True),
        (AttentionCase((Sequence(1, 4),), strides=Strides(cache="heads_first")), "paged", True),
        (AttentionCase((Sequence(2, 4),), family="context", stale_cache=True), "unified", True),
        (AttentionCase((Sequence(1, 4), Sequence(2)), family="paged", filter_by_query_len=True), "unified", False),
        (AttentionCase((Sequence(2, 4),), dtypes=DTypes(kv="float8_e5m2")), "chunked", False),
        (AttentionCase((Sequence(1, 4),), dtypes=DTypes(kv="float8_e5m2")), "chunked", True),
        (AttentionCase((Sequence(1, 4),), family="token_decode", ragged_splits=True), "paged", True),
        (AttentionCase((Sequence(1, 4), Sequence(1, -1)), family="token_decode"), "paged", False),
        (AttentionCase((Sequence(2, 4),), family="varlen"), "unified", True),
        (AttentionCase((Sequence(2, -1), Sequence(1, -1)), family="varlen"), "unified", False),
    ],
)
def test_translation_exists_only_where_the_family_can_express_the_case(
    case: AttentionCase, family: Family, possible: bool
) -> None:
    assert (translated(case, family) is not None) == possible


@pytest.mark.parametrize(("family", "rounds"), [("context", False), ("chunked", False), ("unified", True)])
def test_only_a_cache_rounds_new_tokens_to_fp8(family: Family, rounds: bool) -> None:
    """Each row sees only its own key, so the output is that key's value: unrounded if packed, else rounded to fp8."""
    case = AttentionCase(
        (Sequence(3),),
        family=family,
        dtypes=DTypes(kv="float8_e5m2"),
        scales=Scales(v=0.3),
        scores=NeedleScores(strength=400.0),
        window=1,
    )
    tensors = materialise(case)
    packed = materialise(replace(case, family="context")).new_values
    assert packed is not None
    expected = attend(tensors)["out"].value[:, 0]
    assert torch.equal(expected, packed[:, 0].double()) != rounds


def test_fp8_context_is_dequantised_and_packed_tokens_are_not() -> None:
    case = AttentionCase(
        (Sequence(1, 1),),
        family="context",
        dtypes=DTypes("bfloat16", "float8_e4m3fn", "bfloat16"),
        scales=Scales(v=1.7),
    )
    tensors = materialise(case)
    assert tensors.new_values is not None
    tensors.query.zero_()
    zero = torch.zeros(1, dtype=torch.int64)
    cached = (tensors.values_at(zero, zero)[0, 0].float() * 1.7).bfloat16().double()
    both = (cached + tensors.new_values[0, 0].double()) / 2
    torch.testing.assert_close(attend(tensors)["out"].value[0, 0], both, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("case", [
    AttentionCase((Sequence(1, 4), Sequence(3, 2), Sequence(1)), family="paged", filter_by_query_len=True),
    AttentionCase((Sequence(2, 4), Sequence(1, 2), Sequence(3)), family="context", filter_by_query_len=True),
])  # fmt: skip
def test_only_answered_rows_are_judged(case: AttentionCase) -> None:
    tensors = materialise(case)
    reference = attend(tensors)
    live = tensors.outputs["out"].live
    assert live is not None
    answered = live.flatten()
    assert 0 < int(answered.sum()) < case.num_tokens
    assert bool(reference["out"].bound[~answered].isinf().all())
    tensors.output[: case.num_tokens][answered] = reference["out"].value[answered].to(tensors.output.dtype)
    assert judge(tensors, reference).passed
    first = int(answered.nonzero()[0])
    tensors.output[first] += 1.0
    verdict = judge(tensors, reference)
    assert (verdict.kind, verdict.wrong) == ("mismatch", tensors.output.shape[2])


def test_far_axes_that_need_too_much_memory_in_another_family_are_left_out() -> None:
    heads, halves = HeadLayout(head_size=8), DTypes("bfloat16", "bfloat16", "bfloat16")
    strides = Strides(cache_slot=16, value_slot=3, far=("q_token", "cache_slot"))
    sequences, pages = (Sequence(3, 4093), Sequence(1, 2047)), PageLayout(block_size=33)
    case = AttentionCase(sequences, family="chunked", heads=heads, dtypes=halves, pages=pages, strides=strides)
    other = translated(case, "unified")
    assert other is not None
    assert other.strides == replaced(strides, far=())
    shorter = replace(case, sequences=(Sequence(3, 93),))
    other = translated(shorter, "unified")
    assert other is not None
    assert other.strides == strides
