"""Split caches and packed new tokens: every element is where the layout puts it, and everything else is poison."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz_attn.case.aspects import ALL_FEATURES
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import DTypes, HeadLayout, PageLayout, Scales, Sequence, Strides, is_fp8
from fuzz_attn.inputs.batch_rows import page_map
from fuzz_attn.inputs.numbers import numbers_of
from fuzz_attn.inputs.storage import TORCH_DTYPES, UNSIGNED, rounded, slot_poison, storage_bytes
from fuzz_attn.inputs.tensors import AttentionTensors, materialise
from fuzz_attn.strategies.cases import cases

QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
SPLIT: tuple[Family, ...] = ("paged", "context", "chunked")
DENSE: tuple[Family, ...] = ("context", "chunked")
# Caches with large offsets have gigabytes of addresses and tests of their own.
NEAR = ALL_FEATURES - {"large_offsets", "far_axes"}
split_cases = st.sampled_from(SPLIT).flatmap(lambda family: cases(Domain(family=family, features=NEAR)))
dense_cases = st.sampled_from(DENSE).flatmap(lambda family: cases(Domain(family=family, features=NEAR)))


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    size = tensor.element_size()
    return tensor.contiguous().flatten().view(torch.uint8).numpy().view(UNSIGNED[size]).reshape(tensor.shape)


def expected_slots(case: AttentionCase) -> dict[int, int]:
    """Return the key that each slot ``block * block_size + offset`` holds; of several, the last."""
    pages = page_map(case)
    return {int(slot): key for key, slot in enumerate(pages.slots) if pages.held[key]}


@QUIET
@given(split_cases)
def test_each_element_is_where_the_layout_puts_it(case: AttentionCase) -> None:
    tensors, numbers, usual = materialise(case), numbers_of(case), FAMILIES[case.family].cache.piece(case.dtypes.kv)
    piece = case.strides.key_piece or usual
    heads, slots = case.heads.num_kv_heads, case.pages.block_size
    size, value_size = case.heads.head_size, case.heads.value_size or case.heads.head_size
    blocks = page_map(case).num_blocks
    assert tensors.key_cache.shape == (blocks, heads, size // piece, slots, piece)
    assert tensors.value_cache.shape == (blocks, heads, value_size, slots)
    assert usual * TORCH_DTYPES[case.dtypes.kv].itemsize == 16
    keys = np.full(tensors.key_cache.shape, slot_poison(case.dtypes.kv, case.poison.keys))
    values = np.full(tensors.value_cache.shape, slot_poison(case.dtypes.kv, case.poison.values))
    stored_keys = rounded(numbers.keys, case.dtypes.kv, case.scales.k)
    stored_values = rounded(numbers.values, case.dtypes.kv, case.scales.v)
    for place, key in expected_slots(case).items():
        block, slot = divmod(place, slots)
        for column in range(size):
            keys[block, :, column // piece, slot, column % piece] = stored_keys[key, :, column]
        for column in range(value_size):
            values[block, :, column, slot] = stored_values[key, :, column]
    np.testing.assert_array_equal(bits_of(tensors.key_cache), keys)
    np.testing.assert_array_equal(bits_of(tensors.value_cache), values)


@QUIET
@given(split_cases)
def test_memory_around_the_pages_is_poison(case: AttentionCase) -> None:
    tensors = materialise(case)
    poisons = {slot_poison(case.dtypes.kv, case.poison.keys), slot_poison(case.dtypes.kv, case.poison.values)}
    memory = storage_bytes(tensors.key_cache).numpy().view(UNSIGNED[tensors.key_cache.element_size()]).copy()
    caches = [tensors.key_cache]
    if tensors.value_cache.untyped_storage().data_ptr() == tensors.key_cache.untyped_storage().data_ptr():
        caches.append(tensors.value_cache)
    used = torch.from_numpy(np.zeros(len(memory), dtype=np.bool_))
    for cache in caches:
        used.as_strided(cache.shape, cache.stride(), cache.storage_offset()).fill_(True)
    assert set(memory[~used.numpy()].tolist()) <= poisons
    assert int(used.sum()) == sum(cache.numel() for cache in caches), "K and V overlap"


@QUIET
@given(split_cases)
def test_keys_and_values_are_found_by_slot(case: AttentionCase) -> None:
    tensors, numbers = materialise(case), numbers_of(case)
    slots = expected_slots(case)
    block, offset = (torch.tensor([f(place, case.pages.block_size) for place in slots], dtype=torch.int64) for f in OPS)
    keys, order = tensors.keys_at(block, offset), list(slots.values())
    assert keys.dtype == TORCH_DTYPES[case.dtypes.kv]
    assert keys.shape == (len(slots), case.heads.num_kv_heads, case.heads.head_size)
    np.testing.assert_array_equal(bits_of(keys), rounded(numbers.keys[order], case.dtypes.kv, case.scales.k))
    values = tensors.values_at(block, offset)
    np.testing.assert_array_equal(bits_of(values), rounded(numbers.values[order], case.dtypes.kv, case.scales.v))


OPS = (int.__floordiv__, int.__mod__)


def new_rows(case: AttentionCase) -> list[int]:
    """Return the flat key of each new token."""
    rows: list[int] = []
    start = 0
    for sequence in case.sequences:
        rows += range(start + sequence.context_len, start + sequence.seq_len)
        start += sequence.seq_len
    return rows


@QUIET
@given(dense_cases)
def test_new_keys_and_values_are_packed_in_the_type_of_q(case: AttentionCase) -> None:
    tensors, numbers = materialise(case), numbers_of(case)
    sizes = case.heads.head_size, case.heads.value_size or case.heads.head_size
    arrays, new = (numbers.keys, numbers.values), (tensors.new_keys, tensors.new_values)
    for packed, array, size in zip(new, arrays, sizes, strict=True):
        assert packed is not None
        assert packed.dtype == TORCH_DTYPES[case.dtypes.q]
        rows = case.num_tokens + case.padded_tokens + case.form.extra_new_rows
        assert packed.shape == (rows, case.heads.num_kv_heads, size)
        np.testing.assert_array_equal(bits_of(packed[: case.num_tokens]), rounded(array[new_rows(case)], case.dtypes.q))
        assert bool(packed[case.num_tokens :].isnan().all())
        assert packed.stride()[-1] == 1


def held(family: Family, sequence: Sequence, **changes: object) -> str:
    base = AttentionCase((Sequence(1),), family=family, heads=HeadLayout(head_size=16), pages=PageLayout(2))
    return "".join(str(int(one)) for one in page_map(replace(base, sequences=(sequence,), **changes)).held)


@pytest.mark.parametrize(
    ("family", "sequence", "changes", "expected"),
    [
        ("context", Sequence(2, 3), {}, "11111"),
        ("context", Sequence(2, 3), {"stale_cache": True}, "11100"),
        ("context", Sequence(2, 3), {"stale_cache": True, "window": 2}, "00100"),
        ("context", Sequence(1, 3), {"stale_cache": True}, "1110"),
        ("context", Sequence(1, 3), {"filter_by_query_len": True}, "0000"),
        ("context", Sequence(2, 2), {"filter_by_query_len": True}, "1111"),
        ("chunked", Sequence(2, 3), {"stale_cache": True}, "11100"),
        ("chunked", Sequence(1, 3), {"stale_cache": True}, "1111"),
        ("paged", Sequence(1, 3), {}, "1111"),
        ("paged", Sequence(1, 3), {"filter_by_query_len": True, "window": 1}, "0001"),
        ("paged", Sequence(2, 3), {"filter_by_query_len": True}, "00000"),
        ("paged", Sequence(0, 3), {"filter_by_query_len": True}, "000"),
    ],
)
def test_the_cache_holds_only_readable_keys(
    family: Family, sequence: Sequence, changes: dict[str, object], expected: str
) -> None:
    assert held(family, sequence, **changes) == expected


def test_uint8_caches_hold_the_same_bytes() -> None:
    case = AttentionCase(
        (Sequence(2, 3),),
        family="context",
        dtypes=DTypes(q="bfloat16", kv="float8_e5m2", out="bfloat16"),
        scales=Scales(k=0.5),
        uint8_cache=True,
    )
    bytes_, typed = materialise(case), materialise(replace(case, uint8_cache=False))
    assert bytes_.key_cache.dtype == bytes_.value_cache.dtype == torch.uint8
    assert bytes_.kv_dtype == typed.kv_dtype == torch.float8_e5m2
    assert torch.equal(bytes_.key_cache, typed.key_cache.view(torch.uint8))
    zero = torch.zeros(1, dtype=torch.int64)
    assert torch.equal(bytes_.keys_at(zero, zero).view(torch.uint8), typed.keys_at(zero, zero).view(torch.uint8))


@pytest.mark.parametrize("cache", ["separate", "kv_first", "blocks_first"])
def test_gaps_pad_the_pages(cache: str) -> None:
    strides = Strides(cache=cache, cache_slot=24)  # type: ignore[arg-type] # of the three words
    case = AttentionCase((Sequence(1, 40),), family="paged", heads=HeadLayout(2, 1, 16), strides=strides)
    tensors = materialise(case)
    page = 2 * 16 * 16 + 24
    assert tensors.key_cache.stride(0) == tensors.value_cache.stride(0) == page * (2 if cache == "blocks_first" else 1)
    assert tensors.key_cache.stride()[1:] == (16 * 16, 16 * 4, 4, 1)
    assert tensors.value_cache.stride()[1:] == (16 * 16, 16, 1)


def test_head_and_slot_counts_of_each_family() -> None:
    def sizes(tensors: AttentionTensors) -> tuple[int, int]:
        return tensors.num_kv_heads, tensors.block_size

    case = AttentionCase((Sequence(1, 4),), heads=HeadLayout(3, 1, 8), pages=PageLayout(5))
    assert sizes(materialise(case)) == sizes(materialise(replace(case, family="chunked"))) == (3, 5)


@QUIET
@given(split_cases)
def test_drawn_cases_have_only_features_of_their_family(case: AttentionCase) -> None:
    assert not any((case.softcap, case.qq_bias, is_fp8(case.dtypes.q)))
    assert case.heads.head_size % FAMILIES[case.family].cache.piece(case.dtypes.kv) == 0
    assert case.family != "paged" or case.filter_by_query_len or {s.query_len for s in case.sequences} <= {1}
