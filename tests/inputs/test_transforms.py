"""Transforms change a problem only as documented: the exact output of one follows from that of the other."""

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.inputs.storage import GUARD_BYTES, bits_of, storage_bytes, with_rows
from fuzz_attn.inputs.tensors import AttentionTensors, materialise
from fuzz_attn.inputs.transforms import (
    Shift,
    arranged,
    coarse,
    constant,
    grid,
    keys_changed,
    values_changed,
    with_heads_reversed,
    with_own_pages,
    with_pages_reversed,
)
from fuzz_attn.oracle.reference import Reference, attend
from fuzz_attn.properties.comparisons import reordered
from fuzz_attn.properties.relation_launches import CANCELLED
from fuzz_attn.properties.relations import RELATIONS
from fuzz_attn.strategies.cases import cases

NAMES: tuple[Family, ...] = tuple(FAMILIES)
ANY_CASE = st.sampled_from(NAMES).flatmap(lambda family: cases(Domain(family=family)))
OWN_VALUES = st.sampled_from([name for name in NAMES if not FAMILIES[name].cache.is_latent]).flatmap(
    lambda family: cases(Domain(family=family))
)
"""Cases whose values can be changed alone: those of a latent cache are parts of its keys, and change the scores too."""
OF_SLOTS = st.sampled_from([name for name in NAMES if FAMILIES[name].cache.in_one_row]).flatmap(
    lambda family: cases(Domain(family=family))
)
"""Cases whose keys are named by their slots."""
TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
CLOSE = 2.0**-10
"""How close two float64 answers to one problem must be, as a share of the error bound."""

drawn = settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))


def both(case: AttentionCase) -> tuple[AttentionTensors, AttentionTensors]:
    """Return the tensors of a case twice, one to be changed."""
    return materialise(case), materialise(case)


def agree(
    answer: Reference,
    expected: torch.Tensor,
    known: Reference,
    tensors: AttentionTensors,
    slack: torch.Tensor | float = 0.0,
    name: str = "out",
) -> bool:
    """Return whether an answer is the expected one, where both are known and the rows are answered."""
    certain = answer[name].bound.isfinite() & known[name].bound.isfinite()
    live = tensors.outputs[name].live
    if live is not None:
        certain &= live
    certain &= answer[name].value != expected  # infinities have no difference
    apart = ((answer[name].value - expected).abs() - slack) / (answer[name].bound + expected.abs() * 2.0**-30)
    return bool((apart[certain] <= CLOSE).all())


def lse_agrees(answer: Reference, known: Reference, tensors: AttentionTensors) -> bool:
    """Return whether the log-sum-exp of an answer is the known one, or neither has any."""
    if tensors.lse is None:
        return "lse" not in answer and "lse" not in known
    return agree(answer, known["lse"].value, known, tensors, name="lse")


@drawn
@given(case=ANY_CASE)
def test_reversed_pages_give_the_same_answers(case: AttentionCase) -> None:
    tensors, changed = both(case)
    moved = attend(with_pages_reversed(changed))
    known = attend(tensors)
    assert moved.keys() == known.keys()
    assert all(moved[name].value.equal(known[name].value) for name in known)


@drawn
@given(case=ANY_CASE, data=st.data())
def test_arranged_batch_has_the_rows_of_the_old_one(case: AttentionCase, data: st.DataObject) -> None:
    tensors, changed = both(case)
    kept = data.draw(
        st.lists(st.sampled_from(range(len(case.sequences))), unique=True) if case.sequences else st.just([])
    )
    changed, tokens = arranged(changed, [None, *kept, None] if data.draw(st.booleans()) else kept)
    known = reordered(attend(tensors), tensors, "token", tokens)
    answer = attend(changed)
    assert agree(answer, known["out"].value, known, changed)
    assert lse_agrees(answer, known, changed)
    assert (bits_of(changed.output).flatten() == bits_of(tensors.output).flatten()[:1]).all()
    assert changed.query.shape[0] - len(tokens) == case.padded_tokens


@drawn
@given(case=ANY_CASE)
def test_reversed_heads_reverse_the_answers(case: AttentionCase) -> None:
    tensors, changed = both(case)
    backwards = torch.arange(case.heads.num_query_heads).flip(0)
    known = reordered(attend(tensors), tensors, "head", backwards)
    answer = attend(with_heads_reversed(changed))
    assert agree(answer, known["out"].value, known, changed)
    assert lse_agrees(answer, known, changed)


@drawn
@given(case=OF_SLOTS)
def test_copies_of_shared_pages_change_no_answer(case: AttentionCase) -> None:
    assume(RELATIONS["own_slots"].holds(case, Domain(family=case.family)))
    tensors, changed = both(case)
    known, changed = attend(tensors), with_own_pages(changed)
    pages = [
        page
        for row, sequence in zip(changed.block_table, case.sequences, strict=False)
        for page in row[: -(-sequence.seq_len // case.pages.block_size)].tolist()
    ]
    assert len(set(pages)) == len(pages)
    answer = attend(changed)
    assert agree(answer, known["out"].value, known, changed)


@drawn
@given(case=ANY_CASE)
def test_a_vector_added_to_all_keys_changes_no_answer(case: AttentionCase) -> None:
    tensors = keys_changed(materialise(case), coarse)
    known = attend(tensors)
    if RELATIONS["key_shift"].holds(case, Domain(family=case.family)):
        shift = Shift(torch.ones(tensors.num_kv_heads, tensors.query.shape[2], dtype=torch.float64))
        assert agree(attend(keys_changed(tensors, shift)), known["out"].value, known, tensors)


@drawn
@given(case=ANY_CASE)
def test_a_vector_added_to_all_values_is_added_to_every_answer(case: AttentionCase) -> None:
    tensors = values_changed(materialise(case), coarse)
    known = attend(tensors)
    if RELATIONS["value_shift"].holds(case, Domain(family=case.family)):
        shift = Shift(torch.ones(tensors.num_kv_heads, tensors.output.shape[2], dtype=torch.float64))
        answer = attend(values_changed(tensors, shift))
        scale = 1.0 if tensors.v_scale is None else float(tensors.v_scale)  # as kernels get it: in float32
        added = shift.vector.repeat_interleave(case.heads.num_queries_per_kv, 0) * scale
        assert agree(answer, known["out"].value + added, known, tensors, slack=CANCELLED * added.abs())
        assert lse_agrees(answer, known, tensors)


@drawn
@given(case=OWN_VALUES)
def test_doubled_values_double_every_answer(case: AttentionCase) -> None:
    tensors = values_changed(materialise(case), coarse)
    known = attend(tensors)
    answer = attend(values_changed(tensors, lambda numbers, _: numbers * 2))
    limit = torch.finfo(tensors.output.dtype).max
    expected = (
        (known["out"].value * 2).clamp(-limit, limit) if tensors.output.dtype.itemsize == 1 else known["out"].value * 2
    )
    assert agree(answer, expected, known, tensors)
    assert lse_agrees(answer, known, tensors)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@given(scale=st.floats(-60, 20), seed=st.integers(0, 1000))
def test_sums_of_coarse_numbers_are_exact(dtype: torch.dtype, scale: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    limit = min(4096.0, torch.finfo(dtype).max)  # beyond it a cast to fp8 saturates or is NaN, by torch's version
    numbers = (torch.randn(20, 2, 3, generator=generator, dtype=torch.float64) * 2.0**scale).clamp(-limit, limit)
    rough = coarse(numbers.to(dtype).double(), dtype)
    for changed in (rough, rough * 2, Shift(torch.tensor([[1.0, 0.0, -1.0]] * 2))(rough, dtype)):
        assert changed.to(dtype).double().equal(changed)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_coarse_numbers_stay_distinct(dtype: torch.dtype) -> None:
    numbers = torch.tensor([1.0, -0.75, 0.5, 0.0], dtype=torch.float64)
    step, half = grid(numbers, dtype)
    assert step * half == 1.0
    assert coarse(numbers, dtype)[0] == 1.0
    assert len(set(coarse(numbers, dtype).tolist())) >= 3


def guards_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory before and after a tensor, in its type."""
    memory = storage_bytes(tensor)
    return torch.cat([memory[:GUARD_BYTES], memory[-GUARD_BYTES:]]).view(tensor.dtype)


def test_with_rows_keeps_strides_and_guards(case: AttentionCase) -> None:
    like = materialise(case).query
    rows = with_rows(like, bits_of(like)[:2], 3)
    assert rows.stride() == like.stride()
    assert rows[:2].equal(like[:2])
    assert rows[2].isnan().all()
    assert guards_of(rows).isnan().all()


def test_constant_is_guarded(case: AttentionCase) -> None:
    made = constant(materialise(case), (2, 3), 0.5)
    assert made.equal(torch.full((2, 3), 0.5))
    assert guards_of(made).isnan().all()
