"""Copies of tensors have the same bits and layout in other memory, and share memory as the originals do."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.inputs.output_tensors import copied, with_outputs_of
from fuzz_attn.inputs.storage import storage_bytes
from fuzz_attn.inputs.tensors import AttentionTensors, materialise
from fuzz_attn.strategies.cases import cases


def near(case: AttentionCase) -> bool:
    return not case.strides.far and not case.pages.first_block


def memory(tensors: AttentionTensors) -> dict[str, torch.Tensor]:
    return {**dict(tensors.inputs()), "output": tensors.output}


@settings(max_examples=25)
@given(st.sampled_from(sorted(FAMILIES)).flatmap(lambda family: cases(Domain(family=family))).filter(near))
def test_a_copy_has_the_same_bits_and_layout_in_other_memory(case: AttentionCase) -> None:
    tensors = materialise(case)
    before, after = memory(tensors), memory(copied(tensors, "cpu"))
    assert before.keys() == after.keys()
    for name, old in before.items():
        new = after[name]
        assert (new.dtype, new.shape, new.stride()) == (old.dtype, old.shape, old.stride())
        assert new.storage_offset() == old.storage_offset()
        assert storage_bytes(new).equal(storage_bytes(old))
        assert new.untyped_storage().data_ptr() != old.untyped_storage().data_ptr()
    addresses = [{name: each.untyped_storage().data_ptr() for name, each in held.items()} for held in (before, after)]
    for name in before:
        shared = [{other for other in held if held[other] == held[name]} for held in addresses]
        assert shared[0] == shared[1]


def test_the_output_of_others_is_a_copy(case: AttentionCase) -> None:
    tensors, launched = materialise(case), materialise(case)
    launched.output.fill_(3.0)
    result = with_outputs_of(tensors, launched)
    launched.output.fill_(4.0)
    assert bool((result.output == 3.0).all())
    assert not bool((tensors.output == 3.0).any())
    assert result.query is tensors.query
