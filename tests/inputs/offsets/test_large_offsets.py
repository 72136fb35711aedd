"""Large offsets: caches that span many gigabytes of addresses, of which only kilobytes have memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from fuzz_attn.backends.interpreter import InterpreterBackend
from fuzz_attn.case.aspects import ASPECTS, features_of
from fuzz_attn.case.attention_case import MAX_OFFSET_ELEMENTS, AttentionCase, translated
from fuzz_attn.case.description import describe
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import DTypes, HeadLayout, PageLayout, Sequence, Strides
from fuzz_attn.errors import CaseError
from fuzz_attn.inputs.tensors import AttentionTensors, digest_of, materialise
from fuzz_attn.inputs.transforms import with_pages_reversed
from fuzz_attn.properties.check import check
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.relations import relations_of, with_other_strides
from fuzz_attn.targets.built_in import built_in
from fuzz_attn.targets.target import Target

FIRST = 130_000_000
LAYOUTS = [
    (family, cache, dtype)
    for family in ("unified", "paged", "context", "chunked")
    for cache in ("separate", "blocks_first", "heads_first")
    for dtype in ("float32", "bfloat16", "float8_e4m3fn")
    if cache in FAMILIES[family].cache.arrangements
]


def case_of(
    first_block: int, family: Family = "unified", cache: Any = "separate", dtype: Any = "float32"
) -> AttentionCase:
    return AttentionCase(
        sequences=(Sequence(1, 9), Sequence(1, 2)),
        family=family,
        heads=HeadLayout(head_size=16),
        dtypes=DTypes(kv=dtype, q="bfloat16" if dtype != "float32" else dtype, out="float32"),
        pages=PageLayout(block_size=1, permuted=True, spare_blocks=2, first_block=first_block),
        strides=Strides(cache=cache, cache_slot=3, value_slot=2),
        seed=5,
    )


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def held_keys(tensors: AttentionTensors) -> torch.Tensor:
    """Return the keys of the first sequence as floats."""
    pages = tensors.block_table[0, :10].long()
    return tensors.keys_at(pages, torch.zeros_like(pages)).float()


@pytest.mark.parametrize(("family", "cache", "dtype"), LAYOUTS)
def test_large_offsets_keep_the_keys_and_cost_no_memory(family: Family, cache: str, dtype: str) -> None:
    near, before = materialise(case_of(0, family, cache, dtype)), resident_bytes()
    case = case_of(FIRST, family, cache, dtype)
    tensors = materialise(case)
    assert torch.equal(held_keys(near), held_keys(tensors))
    assert not held_keys(tensors).eq(0).all()
    assert tensors.block_table[0, :10].min() >= FIRST
    page_strides = case.cache_layout.page_strides
    pairs = ((near.key_cache, tensors.key_cache), (near.value_cache, tensors.value_cache))
    for (near_cache, far_cache), page in zip(pairs, page_strides, strict=True):
        assert far_cache.shape == (FIRST + near_cache.shape[0], *near_cache.shape[1:])
        assert far_cache.stride() == near_cache.stride()
        assert far_cache.stride(0) == page
        assert far_cache.data_ptr() % 16 == near_cache.data_ptr() % 16
        assert far_cache.untyped_storage().nbytes() > 2**31
        assert torch.equal(tensors.memory_of(far_cache), near.memory_of(near_cache))
    assert resident_bytes() - before < 2**26


def test_digest_depends_on_offset_and_numbers() -> None:
    cases = case_of(FIRST), case_of(FIRST + 1), msgspec.structs.replace(case_of(FIRST), seed=6), case_of(0)
    digests = [digest_of(materialise(case)) for case in cases]
    assert len(set(digests)) == len(cases)
    assert digests[0] == digest_of(materialise(cases[0]))


def test_description_and_features_name_large_offsets() -> None:
    assert f"numbered from {FIRST}" in dict(describe(case_of(FIRST)))["pages"]
    assert "large_offsets" in features_of(case_of(FIRST))
    assert "large_offsets" not in features_of(case_of(0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strides": Strides(cache="kv_first")}, r"pages.first_block=130000000 must be 0 for strides.cache='kv_first'"),
        ({"pages": PageLayout(first_block=2**31 - 2)}, "must leave page numbers below 2\\*\\*31"),
        ({"pages": PageLayout(first_block=2**30)}, "would stretch a cache over"),
    ],
)
def test_impossible_offsets_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CaseError, match=message):
        msgspec.structs.replace(case_of(FIRST), **changes)


def test_slots_that_a_list_names_have_numbers_of_32_bits() -> None:
    pages = PageLayout(block_size=16, first_block=2**27 - 4)
    with pytest.raises(CaseError, match="must leave slot numbers below"):
        AttentionCase((Sequence(1, 40),), family="token_decode", heads=HeadLayout(head_size=2), pages=pages)


def test_largest_offset_is_allowed() -> None:
    page = AttentionCase(sequences=(Sequence(1),)).cache_layout.page_strides[1]
    pages = PageLayout(first_block=MAX_OFFSET_ELEMENTS // page - 10)
    assert materialise(AttentionCase(sequences=(Sequence(1),), pages=pages)).key_cache.numel() > 2**32


def test_reversing_pages_keeps_pages_without_memory() -> None:
    tensors = materialise(case_of(FIRST))
    before, table = held_keys(tensors), tensors.block_table.clone()
    moved = with_pages_reversed(tensors)
    assert torch.equal(held_keys(moved), before)
    assert moved.block_table[0, :10].min() >= FIRST
    assert not torch.equal(moved.block_table, table)


@pytest.mark.parametrize("place", [-1, 0, 5000])
def test_changed_cache_with_large_offsets_is_found(place: int) -> None:
    def changes(k: torch.Tensor, out: torch.Tensor, **_: Any) -> None:
        torch.empty(0, dtype=torch.uint8).set_(k.untyped_storage())[FIRST * k.stride(0) * 4 :][place] ^= 1

    verdict = check(Experiment(case_of(FIRST), Target("changes", changes), InterpreterBackend()))
    assert (verdict.property_name, verdict.kind) == ("inputs_unchanged", "input_changed")


@pytest.mark.parametrize("slot", [0, 3, 16, 19])
@pytest.mark.parametrize("first_block", [2**27, 2**31 - 2**22])
def test_other_strides_keep_large_offsets(slot: int, first_block: int) -> None:
    case = AttentionCase(
        sequences=(Sequence(1, 2),),
        heads=HeadLayout(head_size=1),
        pages=PageLayout(block_size=1, first_block=first_block // (1 + slot)),
        strides=Strides(cache_slot=slot),
    )
    changed = with_other_strides(case)
    assert changed.strides.cache_slot != slot
    before, after = (each.pages.first_block * each.cache_layout.page_strides[1] for each in (case, changed))
    assert before <= after < before + 2 * (1 + 35)


@pytest.mark.parametrize("words", ["several KV heads", "large heads", "large pages", "head size no power of two"])
def test_smaller_pages_keep_large_offsets(words: str) -> None:
    case = AttentionCase(
        sequences=(Sequence(1, 2),), heads=HeadLayout(2, 1, 96), pages=PageLayout(block_size=32, first_block=2**20)
    )
    smaller = next(aspect for aspect in ASPECTS if aspect.words == words).without(case)
    before, after = (each.pages.first_block * each.cache_layout.page_strides[1] for each in (case, smaller))
    assert smaller.cache_layout.page_strides != case.cache_layout.page_strides
    assert before <= after < before + smaller.cache_layout.page_strides[1]
    assert next(aspect for aspect in ASPECTS if aspect.words == FAR).without(case).pages.first_block == 0


FAR = "pages far into the caches"


@pytest.mark.parametrize("family", ["paged", "context", "chunked"])
def test_translation_keeps_large_offsets(family: Family) -> None:
    case = case_of(FIRST, family)
    there = translated(case, "unified")
    assert there is not None
    assert there.pages.first_block * there.cache_layout.page_strides[1] >= 2**31
    assert translated(there, family) == case


@pytest.mark.sampled(4)
@pytest.mark.parametrize("family", ["unified", "paged", "context", "chunked"])
def test_relations_never_touch_pages_without_memory(family: Family) -> None:
    target, before = built_in(family), resident_bytes()
    assert target is not None
    experiment = Experiment(case_of(FIRST, family), target, InterpreterBackend())
    held = relations_of(experiment.case, target.domain)
    assert "page_permutation" in held
    for relation in held:
        assert check(experiment, relation).passed, relation
    assert resident_bytes() - before < 2**28
