"""Tensors: numbers where kernels may read, poison in every other byte, and the strides of the case."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz_attn.case.aspects import ALL_FEATURES
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import DTypeName, DTypes, HeadLayout, PageLayout, Scales, Sequence, Strides
from fuzz_attn.case.recipes import (
    AlibiRecipe,
    NeedleScores,
    Override,
    PoisonRecipe,
    PositionValues,
    QQBiasRecipe,
    SinkRecipe,
)
from fuzz_attn.inputs.batch_rows import page_map
from fuzz_attn.inputs.numbers import numbers_of
from fuzz_attn.inputs.storage import (
    GUARD_BYTES,
    TORCH_DTYPES,
    UNSIGNED,
    output_poison,
    rounded,
    slot_poison,
    storage_bytes,
    table_poison,
)
from fuzz_attn.inputs.tensors import AttentionTensors, materialise
from fuzz_attn.strategies.cases import cases

QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
PADDING = st.sampled_from((0, 0, 1, 3, 8))
NEAR = Domain(features=ALL_FEATURES - {"large_offsets", "far_axes"})
"""Caches with large offsets have gigabytes of addresses and tests of their own."""
STRIDES = st.builds(
    Strides,
    q_token=PADDING,
    q_head=PADDING,
    out_token=PADDING,
    out_head=PADDING,
    cache=st.sampled_from(("separate", "kv_first", "blocks_first", "heads_first")),
    cache_slot=PADDING,
    block_table=PADDING,
    value_slot=PADDING,
)
Bits = npt.NDArray[np.int64]


@st.composite
def strided_cases(draw: st.DrawFn) -> AttentionCase:
    """Draw cases most of which are strided; those of ``cases`` are dense more often than not."""
    return replace(draw(cases(NEAR)), strides=draw(STRIDES))


def memory_of(tensor: torch.Tensor) -> Bits:
    """Return the bits of each element of the tensor's whole memory."""
    return storage_bytes(tensor).numpy().view(UNSIGNED[tensor.element_size()]).astype(np.int64)


def places(tensor: torch.Tensor) -> Bits:
    """Return where in the memory each element of the tensor lies, in its shape."""
    index = np.full(tensor.shape, tensor.storage_offset(), dtype=np.int64)
    for dimension, stride in enumerate(tensor.stride()):
        ramp = np.arange(tensor.shape[dimension]) * stride
        index += ramp.reshape([-1 if d == dimension else 1 for d in range(tensor.dim())])
    return index


def bits_of(tensor: torch.Tensor) -> Bits:
    return memory_of(tensor)[places(tensor)]


def live_slots(case: AttentionCase) -> dict[int, int]:
    """Return the key that each visible slot holds; of several that share a slot, the last."""
    pages = page_map(case)
    return {int(slot): key for key, slot in enumerate(pages.slots) if pages.held[key]}


def value_size(case: AttentionCase) -> int:
    """Return the size of a value, which is that of a key unless the case has its own."""
    return case.heads.value_size or case.heads.head_size


def arrangement(case: AttentionCase) -> str:
    """Return how the caches lie: pages of values with a size of their own are no neighbours of those of keys."""
    neighbours = case.strides.cache in ("kv_first", "blocks_first")
    return "separate" if neighbours and case.heads.value_size else case.strides.cache


def expected_cache(case: AttentionCase, name: str, poison: int) -> Bits:
    """Return the bits of a cache ``[num_blocks * block_size, num_kv_heads, size]``, the size of a key or of a value."""
    array, scale = getattr(numbers_of(case), name), {"keys": case.scales.k, "values": case.scales.v}[name]
    stored = rounded(array, case.dtypes.kv, scale)
    slots = page_map(case).num_blocks * case.pages.block_size
    size = case.heads.head_size if name == "keys" else value_size(case)
    expected = np.full((slots, case.heads.num_kv_heads, size), poison, dtype=np.int64)
    for slot, key in live_slots(case).items():
        expected[slot] = stored[key]
    return expected


def cache_poisons(case: AttentionCase) -> tuple[int, int]:
    return slot_poison(case.dtypes.kv, case.poison.keys), slot_poison(case.dtypes.kv, case.poison.values)


@QUIET
@given(strided_cases())
def test_live_slots_hold_the_numbers_and_all_others_poison(case: AttentionCase) -> None:
    tensors, poisons = materialise(case), cache_poisons(case)
    caches = (("keys", tensors.key_cache), ("values", tensors.value_cache))
    for (name, cache), poison in zip(caches, poisons, strict=True):
        expected = expected_cache(case, name, poison)
        np.testing.assert_array_equal(bits_of(cache).reshape(expected.shape), expected)


@QUIET
@given(strided_cases())
def test_padding_of_the_caches_is_poison(case: AttentionCase) -> None:
    tensors, poisons = materialise(case), cache_poisons(case)
    one_memory = tensors.key_cache.untyped_storage().data_ptr() == tensors.value_cache.untyped_storage().data_ptr()
    assert one_memory == (arrangement(case) in ("kv_first", "blocks_first"))
    for cache, poison in zip((tensors.key_cache, tensors.value_cache), poisons, strict=True):
        unused = np.ones(len(memory_of(cache)), dtype=np.bool_)
        for view in (tensors.key_cache, tensors.value_cache) if one_memory else (cache,):
            unused[places(view)] = False
        assert set(memory_of(cache)[unused].tolist()) <= {poisons[0] if one_memory else poison}


@QUIET
@given(strided_cases())
def test_queries_are_surrounded_by_nan(case: AttentionCase) -> None:
    query = materialise(case).query
    rows = places(query)[: case.num_tokens]
    expected = rounded(numbers_of(case).queries, case.dtypes.q, case.scales.q)
    np.testing.assert_array_equal(memory_of(query)[rows], expected)
    others = np.ones(len(memory_of(query)), dtype=np.bool_)
    others[rows] = False
    assert set(memory_of(query)[others].tolist()) <= {slot_poison(case.dtypes.q, "nan")}


@QUIET
@given(strided_cases())
def test_output_is_all_poison(case: AttentionCase) -> None:
    tensors = materialise(case)
    poison = output_poison(case.dtypes.out, case.poison.out)
    assert tensors.outputs["out"].poison == poison
    assert set(memory_of(tensors.output).tolist()) <= {poison}


@QUIET
@given(strided_cases())
def test_block_table_is_surrounded_by_garbage(case: AttentionCase) -> None:
    table, pages = materialise(case).block_table, page_map(case)
    np.testing.assert_array_equal(table[: len(case.sequences)].numpy(), pages.block_table)
    garbage = table_poison(case.poison.table, pages.num_blocks)
    assert set(table[len(case.sequences) :].flatten().tolist()) <= {garbage}
    others = np.ones(table.untyped_storage().nbytes() // 4, dtype=np.bool_)
    others[places(table)] = False
    entries = storage_bytes(table).numpy().view(np.int32)[others]
    assert set(entries.tolist()) <= {garbage}
    assert len(table) == len(case.sequences) + case.form.extra_table_rows
    assert int(others.sum()) == len(table) * case.strides.block_table + 2 * GUARD_BYTES // 4


def expected_strides(case: AttentionCase) -> dict[str, tuple[int, ...]]:
    heads, strides, size = case.heads, case.strides, case.heads.head_size
    slots, two, width = case.pages.block_size, arrangement(case) in ("separate", "heads_first"), value_size(case)
    table = -(-case.max_seq_len // slots) + case.pages.extra_columns
    return {
        "block_table": (table + strides.block_table, 1),
        "query": (heads.num_query_heads * (size + strides.q_head) + strides.q_token, size + strides.q_head, 1),
        "output": (heads.num_query_heads * (width + strides.out_head) + strides.out_token, width + strides.out_head, 1),
        "key_cache": cache_strides(case, size + strides.cache_slot),
        "value_cache": cache_strides(case, width + strides.cache_slot + (strides.value_slot if two else 0)),
    }


def cache_strides(case: AttentionCase, row: int) -> tuple[int, ...]:
    """Return the strides of a cache with so many elements from one row to the next."""
    slots, slot = case.pages.block_size, case.heads.num_kv_heads * row
    return {
        "separate": (slots * slot, slot, row, 1),
        "kv_first": (slots * slot, slot, row, 1),
        "blocks_first": (2 * slots * slot, slot, row, 1),
        "heads_first": (slots * slot, row, slots * row, 1),
    }[arrangement(case)]


def expected_offset(case: AttentionCase, num_blocks: int) -> int:
    """Return where the first value lies in the memory of ``value_cache``."""
    block = case.pages.block_size * case.heads.num_kv_heads * (case.heads.head_size + case.strides.cache_slot)
    return {"kv_first": num_blocks * block, "blocks_first": block}.get(arrangement(case), 0)


@QUIET
@given(strided_cases())
def test_strides_and_offsets_are_those_of_the_case(case: AttentionCase) -> None:
    tensors, num_blocks = materialise(case), page_map(case).num_blocks
    for name, strides in expected_strides(case).items():
        assert getattr(tensors, name).stride() == strides, name
    margin = GUARD_BYTES // tensors.value_cache.element_size()
    assert tensors.value_cache.storage_offset() == margin + expected_offset(case, num_blocks)
    for name, tensor in (*tensors.inputs(), ("output", tensors.output)):
        if name != "value_cache":
            assert tensor.storage_offset() == GUARD_BYTES // tensor.element_size(), name


@QUIET
@given(strided_cases())
def test_shapes_and_types(case: AttentionCase) -> None:
    tensors, heads = materialise(case), case.heads
    rows = case.num_tokens + case.padded_tokens
    slots = (page_map(case).num_blocks, case.pages.block_size, heads.num_kv_heads)
    assert tensors.query.shape == (rows, heads.num_query_heads, heads.head_size)
    assert tensors.output.shape == (rows + case.form.extra_output_rows, heads.num_query_heads, value_size(case))
    assert tensors.key_cache.shape == (*slots, heads.head_size)
    assert tensors.value_cache.shape == (*slots, value_size(case))
    assert tensors.query.dtype == TORCH_DTYPES[case.dtypes.q]
    assert tensors.output.dtype == TORCH_DTYPES[case.dtypes.out]
    assert tensors.key_cache.dtype == tensors.value_cache.dtype == TORCH_DTYPES[case.dtypes.kv]
    for name in ("query_start_loc", "seq_lens", "block_table"):
        assert getattr(tensors, name).dtype == torch.int32, name
    for name, tensor in tensors.inputs():
        assert name == "qq_bias" or tensor.stride(-1) == 1, name


@QUIET
@given(cases(Domain()))
def test_lengths_on_device_and_host_agree(case: AttentionCase) -> None:
    tensors = materialise(case)
    starts = tensors.query_start_loc.tolist()
    assert starts[0] == 0
    assert [end - start for start, end in pairwise(starts)] == list(tensors.query_lens)
    assert tensors.seq_lens.tolist() == [s.query_len + s.context_len for s in case.sequences]
    assert tensors.context_lens == tuple(s.context_len for s in case.sequences)
    assert (tensors.max_query_len, tensors.max_seq_len) == (case.max_query_len, case.max_seq_len)


@QUIET
@given(cases(Domain()))
def test_only_one_byte_types_have_scales(case: AttentionCase) -> None:
    tensors = materialise(case)
    for name, dtype in (("q", case.dtypes.q), ("k", case.dtypes.kv), ("v", case.dtypes.kv), ("out", case.dtypes.out)):
        scale = getattr(tensors, f"{name}_scale")
        if TORCH_DTYPES[dtype].itemsize > 1:
            assert scale is None
        else:
            assert (scale.shape, scale.dtype) == ((1,), torch.float32)
            assert scale.item() == np.float32(getattr(case.scales, name))


def test_numbers_on_the_host_are_float32_values() -> None:
    tensors = materialise(AttentionCase(sequences=(Sequence(1),), softmax_scale=0.1, softcap=0.3, window=4))
    assert tensors.softmax_scale == float(np.float32(0.1))
    assert tensors.softcap == float(np.float32(0.3))
    assert tensors.window == 4


RICH = AttentionCase(
    sequences=(Sequence(2, 3), Sequence(0, 4), Sequence(1, 6)),
    heads=HeadLayout(2, 2, 3),
    dtypes=DTypes(q="float16", kv="float8_e5m2", out="float8_e5m2"),
    scales=Scales(k=0.5, v=2.0, out=0.25),
    pages=PageLayout(block_size=4, permuted=True, spare_blocks=1),
    alibi=AlibiRecipe(),
    qq_bias=QQBiasRecipe(extra_columns=1, extra_rows=1, row_padding=2),
    sinks=SinkRecipe(dtype="bfloat16"),
    strides=Strides(cache="heads_first", cache_slot=1),
    padded_tokens=1,
)
OPTIONAL = ("k_scale", "v_scale", "out_scale", "alibi_slopes", "qq_bias", "sinks")
ALWAYS = ("query", "key_cache", "value_cache", "query_start_loc", "seq_lens", "block_table")


def test_inputs_are_all_tensors_but_the_output() -> None:
    assert {name for name, _ in materialise(RICH).inputs()} == {*ALWAYS, *OPTIONAL}
    plain = AttentionCase(sequences=(Sequence(1),))
    assert {name for name, _ in materialise(plain).inputs()} == set(ALWAYS)


def test_biases_have_the_shapes_that_kernels_expect() -> None:
    tensors = materialise(RICH)
    assert tensors.alibi_slopes is not None
    assert tensors.qq_bias is not None
    assert tensors.sinks is not None
    assert (tensors.alibi_slopes.shape, tensors.alibi_slopes.dtype) == ((4,), torch.float32)
    assert (tensors.sinks.shape, tensors.sinks.dtype) == ((4,), torch.bfloat16)
    assert (tensors.qq_bias.shape, tensors.qq_bias.stride(), tensors.qq_bias.dtype) == ((3, 3), (5, 1), torch.float32)
    assert bool(torch.isnan(torch.as_strided(tensors.qq_bias, (3, 2), (5, 1), 3)).all())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("level", [1e30, -1e30])
def test_sinks_beyond_their_type_are_its_largest_number(dtype: DTypeName, level: float) -> None:
    case = replace(RICH, sinks=SinkRecipe(level=level, dtype=dtype))  # type: ignore[arg-type]  # no fp8 among them
    sinks = materialise(case).sinks
    assert sinks is not None
    largest = min(1e30, torch.finfo(TORCH_DTYPES[dtype]).max)
    assert torch.equal(sinks, torch.full((4,), math.copysign(largest, level), dtype=TORCH_DTYPES[dtype]))


def differing(left: AttentionTensors, right: AttentionTensors) -> set[str]:
    pairs = zip(left.inputs(), right.inputs(), strict=True)
    return {name for (name, one), (_, other) in pairs if not torch.equal(storage_bytes(one), storage_bytes(other))}


def test_seed_changes_numbers_and_pages() -> None:
    changed = differing(materialise(RICH), materialise(replace(RICH, seed=1)))
    assert changed == {"query", "key_cache", "value_cache", "block_table", "qq_bias", "sinks"}


@pytest.mark.parametrize(
    ("changes", "changed"),
    [
        ({"scores": NeedleScores()}, {"query", "key_cache"}),
        ({"values": PositionValues()}, {"value_cache"}),
        ({"poison": PoisonRecipe(keys="huge")}, {"key_cache"}),
        ({"poison": PoisonRecipe(values="huge")}, {"value_cache"}),
        ({"poison": PoisonRecipe(table="zero")}, {"block_table"}),
        ({"poison": PoisonRecipe(out=1)}, set()),
        ({"overrides": (Override("q", value=9.0),)}, {"query"}),
        ({"softmax_scale": 2.0}, {"query"}),
        ({"alibi": AlibiRecipe("negative")}, {"alibi_slopes"}),
        ({"sinks": SinkRecipe(level=3.0, dtype="bfloat16")}, {"sinks"}),
        ({"window": 2}, {"key_cache", "value_cache"}),
        ({"softcap": 3.0}, set()),
    ],
)
def test_each_field_changes_its_own_tensors(changes: dict[str, object], changed: set[str]) -> None:
    assert differing(materialise(RICH), materialise(replace(RICH, **changes))) == changed


@QUIET
@given(strided_cases())
def test_every_tensor_lies_between_guards_of_poison(case: AttentionCase) -> None:
    tensors = materialise(case)
    for name, tensor in (*tensors.inputs(), ("output", tensors.output)):
        elements, margin = memory_of(tensor), GUARD_BYTES // tensor.element_size()
        guards = np.concatenate((elements[:margin], elements[-margin:]))
        assert len(set(guards.tolist())) == 1, name
        poison = storage_bytes(tensor)[: tensor.element_size()].view(tensor.dtype)
        if tensor.dtype == torch.int32:
            assert int(poison) in (2**31 - 1, table_poison(case.poison.table, tensors.key_cache.shape[0])), name
        elif name not in ("key_cache", "value_cache"):
            assert bool(poison.float().isnan()), name
