"""Native layouts: the caches of a case lie in the layout that the target takes, with the case's strides and offsets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.binding.binding import LAYOUTS, Binding, Layout, format_of
from fuzz_attn.binding.promises import domain_of
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.cache_layout import HEADS, ROWS, SLOTS, SPLIT, CacheFormat
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import HeadLayout, PageLayout, Sequence, Strides
from fuzz_attn.inputs.storage import storage_bytes
from fuzz_attn.inputs.tensors import AttentionTensors, Store, materialise
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.strategies.cases import cases
from fuzz_attn.targets.target import Target

CASE = AttentionCase(
    (Sequence(2, 5), Sequence(1, 2)),
    heads=HeadLayout(num_kv_heads=2, num_queries_per_kv=1, head_size=64),
    pages=PageLayout(block_size=4, permuted=True, spare_blocks=1),
    strides=Strides(cache_slot=16, value_slot=3),
)
STATED: dict[str, Any] = {"window": "keys", "scales": "tensor", "scale_direction": "multiply", "fp8": "typed"}


def answered(tensors: AttentionTensors) -> list[torch.Tensor]:
    """Return the keys and values of each sequence that has rows to answer."""
    store = Store(tensors)
    found: list[torch.Tensor] = []
    for sequence, new in enumerate(tensors.query_lens):
        if new and (not tensors.answers or tensors.answers[sequence]):
            found += store.gather(np.array([[sequence]]), np.flatnonzero(tensors.needed_keys(sequence))[None])
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("stored_as", [ROWS, HEADS, SLOTS, SPLIT], ids=["rows", "heads", "slots", "split"])
@settings(max_examples=25)
@given(case=st.sampled_from(sorted(FAMILIES)).flatmap(lambda family: cases(Domain(family=family))))
def test_every_format_has_the_same_keys_and_values(stored_as: CacheFormat, case: AttentionCase) -> None:
    own, other = materialise(case), materialise(case, stored_as=stored_as)
    for one, two in zip(answered(own), answered(other), strict=True):
        assert one.equal(two)
    shapes = [
        (each.num_kv_heads, each.block_size, each.key_slots.shape[:3], each.value_slots.shape) for each in (own, other)
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("stored_as", [ROWS, HEADS, SLOTS], ids=["rows", "heads", "slots"])
def test_all_but_the_keys_is_poison(stored_as: CacheFormat) -> None:
    tensors = materialise(CASE, stored_as=stored_as)
    for cache in (tensors.key_cache, tensors.value_cache):
        numbers = storage_bytes(cache).view(torch.float32)
        assert int((~numbers.isnan()).sum()) == CASE.total_keys * CASE.heads.num_kv_heads * CASE.heads.head_size
        assert cache.stride(-1) == 1


def attention(q: Any, k_cache: Any, v_cache: Any, out: Any, seq_lens: Any, scale: Any, pages: Any, starts: Any) -> None:
    """Do nothing."""


def target_of(layout: str | Layout, family: Family = "unified") -> Target:
    slots = layout == "slots"
    roles = {"pages": "slot_table" if slots else "block_table", "starts": "query_start_loc"}
    stated = {**STATED, "layout": layout, "roles": roles}
    return Target("mine", attention, Domain(family=family), binding=stated)


@pytest.mark.parametrize(
    ("layout", "shape", "strides"),
    [
        ("rows", (4, 4, 2, 64), (640, 160, 80, 1)),
        ("heads_first", (4, 2, 4, 64), (640, 320, 80, 1)),
        ("slots", (16, 2, 64), (160, 80, 1)),
        (Layout("block head slot dim", "block head slot dim", "my own"), (4, 2, 4, 64), (640, 320, 80, 1)),
    ],
)
def test_no_copy_is_made_of_a_native_layout(
    layout: str | Layout, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    target = target_of(layout)
    tensors = Experiment(CASE, target, SimulatorBackend()).fresh()
    call = target.call_on(tensors)
    assert not {copy.name for copy in call.problem.copies} & {"key_cache", "value_cache"}
    given = call.arguments["k_cache"]
    assert given.data_ptr() == tensors.key_cache.data_ptr()
    assert (tuple(given.shape), given.stride()) == (shape, strides)


def test_pages_far_into_a_cache_are_native_too() -> None:
    far = replace(CASE, pages=PageLayout(block_size=4, first_block=2**22))
    close = replace(CASE, pages=PageLayout(block_size=4))
    target = target_of("heads_first")
    tensors = Experiment(far, target, SimulatorBackend()).fresh()
    given = target.call_on(tensors).arguments["k_cache"]
    assert given.shape[0] > 2**22
    assert tensors.void_before(given.view(torch.uint8)) == tensors.void_before(tensors.key_cache) > 2**31
    near = Experiment(close, target, SimulatorBackend()).fresh()
    assert all(one.equal(two) for one, two in zip(answered(tensors), answered(near), strict=True))


def test_heads_may_come_first_or_last_in_memory() -> None:
    other, plain = replace(CASE, strides=Strides(cache="heads_first")), replace(CASE, strides=Strides())
    dense = materialise(plain, stored_as=HEADS).key_cache
    assert dense.is_contiguous()
    assert not materialise(other, stored_as=HEADS).key_cache.is_contiguous()
    assert materialise(other).key_cache.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize(
    ("layout", "family", "native"),
    [
        ("rows", "unified", ROWS),
        ("heads_first", "unified", HEADS),
        ("slots", "unified", SLOTS),
        ("split", "unified", SPLIT),
        ("rows", "context", ROWS),
        ("split", "context", SPLIT),
    ],
)
def test_pages_far_into_a_cache_are_promised_in_native_layouts(
    layout: str, family: Family, native: CacheFormat
) -> None:
    assert format_of(LAYOUTS[layout], family) is native
    assert domain_of(Binding(family=family, roles={"q": "query"}, layout=layout)).allows("large_offsets")


def test_a_pattern_of_ones_own_is_a_copy_without_far_pages() -> None:
    mine = Layout("head block dim slot", "head block dim slot")
    assert format_of(mine, "unified") is None
    assert not domain_of(Binding(family="unified", roles={"q": "query"}, layout=mine)).allows("large_offsets")
