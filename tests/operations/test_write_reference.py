"""The oracle of cache writes: equal to a loop over all elements, right in 50 digits, and its bound holds, closely."""

from __future__ import annotations

import os
from functools import cache
from random import Random
from typing import Any, Final, get_args

import mpmath
import numpy as np
import pytest
import torch
from msgspec.structs import replace

from fuzz_attn.errors import CaseError
from fuzz_attn.inputs.storage import NUMPY_DTYPES, REACH, bits_of, far_axis, storage_bytes
from fuzz_attn.operations.cache_write.write_case import StoredType, WriteAxis, WriteCase, WriteDomain, key_pool
from fuzz_attn.operations.cache_write.write_draws import write_cases
from fuzz_attn.operations.cache_write.write_experiment import WriteTensors, materialise, write
from fuzz_attn.oracle.roundings import UNIT
from fuzz_attn.strategies.draws import Sample

COUNT: Final = int(os.environ.get("FUZZ_ATTN_ORACLE_CASES", "200"))
DOMAIN: Final = WriteDomain()
PARTS: Final = {"key_cache": ("key", "k_scale"), "value_cache": ("value", "v_scale")}


@cache
def drawn() -> tuple[WriteCase, ...]:
    sample = Sample(Random(7))
    cases = (sample.draw(write_cases(DOMAIN, key_pool(DOMAIN))) for _ in range(COUNT))
    return tuple(replace(case, far=False) for case in cases)


def numbers(tensors: WriteTensors, name: str) -> tuple[np.ndarray[Any, Any], float]:
    """Return the new numbers of a cache's tokens in float64, and its scale."""
    new, scale = (getattr(tensors, each) for each in PARTS[name])
    return new[: len(tensors.slot_mapping)].double().numpy(), float(scale)


def kind_of(case: WriteCase) -> np.dtype[Any]:
    """Return the type of the caches in numpy."""
    return np.dtype(np.int8) if case.cache_dtype == "int8" else NUMPY_DTYPES[case.cache_dtype]


def finite(case: WriteCase) -> np.ndarray[Any, Any]:
    """Return all finite numbers of a one-byte type, sorted, in float64."""
    every = np.arange(256, dtype=np.uint8).view(kind_of(case)).astype(np.float64)
    return np.unique(every[np.isfinite(every)])


def test_a_cast_is_that_of_a_loop() -> None:
    seen = set()
    for case in drawn():
        if case.is_fp8 or case.per_token_head:
            continue
        seen.add((case.dtype, case.cache_dtype))
        tensors = materialise(case)
        for name, expected in write(tensors).items():
            new, _ = numbers(tensors, name)
            kind = kind_of(case)
            for token, slot in enumerate(tensors.slot_mapping.tolist()):
                with np.errstate(over="ignore"):
                    row = new[token].astype(np.float32).astype(kind).astype(np.float64)
                value, bound = expected.value[token].numpy(), expected.bound[token].numpy()
                if slot < 0:
                    assert not value.any()
                    assert np.isinf(bound).all()
                    continue
                judged = np.isfinite(row)
                assert np.array_equal(value[judged], row[judged])
                assert (bound > 0.0).all()
                for step in (-1, 1):
                    bits = row.astype(kind).view(f"i{kind.itemsize}") + step
                    with np.errstate(invalid="ignore"):
                        away = np.abs(bits.view(kind).astype(np.float64) - row)
                    assert (away > bound)[judged & (row != 0.0)].all()
                assert np.isinf(bound[~judged]).all()
    assert len(seen) == 7


def test_a_quotient_agrees_in_50_digits_and_has_one_or_two_neighbours() -> None:
    random, pairs = Random(1), 0
    with mpmath.workdps(50):
        for case in drawn():
            if not case.is_fp8 or case.per_token_head:
                continue
            tensors, every = materialise(case), finite(case)
            limit = float(every[-1])
            for name, expected in write(tensors).items():
                new, scale = numbers(tensors, name)
                live = [token for token, slot in enumerate(tensors.slot_mapping.tolist()) if slot >= 0]
                for _ in range(10 * bool(live)):
                    place = (random.choice(live), random.randrange(case.num_heads), random.randrange(case.head_size))
                    exact = mpmath.mpf(float(new[place])) / mpmath.mpf(scale)
                    clamped = min(max(exact, -limit), limit)
                    value, bound = float(expected.value[place]), float(expected.bound[place])
                    assert abs(mpmath.mpf(value) - clamped) <= 1e-8 * bound
                    accepted = every[np.abs(every - value) <= bound]
                    distances = [abs(mpmath.mpf(number) - clamped) for number in every.tolist()]
                    nearest = every[distances.index(min(distances))]
                    assert nearest in accepted
                    assert 1 <= len(accepted) <= 2
                    pairs += len(accepted) == 2
    assert pairs < COUNT / 10  # only near the middle of two


def test_quotients_in_the_worst_direction_stay_within_the_bound_and_come_close() -> None:
    largest = {"float8_e4m3fn": 0.0, "float8_e5m2": 0.0}
    for case in drawn():
        if not case.is_fp8 or case.per_token_head:
            continue
        tensors, every = materialise(case), finite(case)
        kind = kind_of(case)
        for name, expected in write(tensors).items():
            new, scale = numbers(tensors, name)
            live = (tensors.slot_mapping >= 0).numpy()
            for side in (-1, 1):
                # Three units, and a fourth at most when it is rounded to float32.
                quotient = np.clip(new / scale * (1 + side * 3 * UNIT), every[0], every[-1])
                stored = quotient.astype(np.float32).astype(kind).astype(np.float64)
                ratio = np.abs(stored - expected.value.numpy())[live] / expected.bound.numpy()[live]
                assert (ratio <= 1.0).all(), case
                largest[case.stored_as] = max(largest[case.stored_as], float(ratio.max(initial=0.0)))
    print(f"largest errors of quotients in the worst direction, in bounds: {largest}")
    assert min(largest.values()) > 0.99


def test_scales_of_tokens_and_heads_agree_in_50_digits() -> None:
    seen = set()
    with mpmath.workdps(50):
        for case in drawn():
            if not case.per_token_head:
                continue
            seen.add(case.cache_dtype)
            tensors = materialise(case)
            found = write(tensors)
            limit = 127.0 if case.cache_dtype == "int8" else 448.0
            for name, scales in (("key_cache", "k_scale_cache"), ("value_cache", "v_scale_cache")):
                new, _ = numbers(tensors, name)
                for token, slot in enumerate(tensors.slot_mapping.tolist()):
                    row = [mpmath.mpf(number) for number in new[token, -1].tolist()]
                    scale = max(map(abs, row)) / limit
                    if slot < 0 or scale < 1e-5:
                        continue
                    bound = float(found[scales].bound[token, -1])
                    assert abs(mpmath.mpf(float(found[scales].value[token, -1])) - scale) <= 1e-8 * bound
                    bounds = found[name].bound[token, -1].tolist()
                    errors = [abs(mpmath.mpf(value) - number / scale) for value, number in
                              zip(found[name].value[token, -1].tolist(), row, strict=True)]  # fmt: skip
                    assert all(error <= 1e-8 * bound for error, bound in zip(errors, bounds, strict=True))
    assert seen == {"int8", "float8_e4m3fn"}


def test_own_scales_in_the_worst_direction_stay_within_the_bound_and_come_close() -> None:
    largest = {"int8": 0.0, "float8_e4m3fn": 0.0}
    for case in drawn():
        if not case.per_token_head:
            continue
        tensors, every = materialise(case), finite(case)
        found, limit = write(tensors), 127.0 if case.cache_dtype == "int8" else 448.0
        live = (tensors.slot_mapping >= 0).numpy()
        for name in PARTS:
            new, _ = numbers(tensors, name)
            for side in (-1, 1):
                scale = np.abs(new).max(-1, keepdims=True) / limit * (1 - side * 4 * UNIT)
                quotient = new / np.where(scale == 0.0, 1.0, scale) * (1 + side * 4 * UNIT)
                if case.cache_dtype == "int8":
                    stored = np.floor(quotient + 0.5).clip(-127, 127)
                else:
                    clipped = np.clip(quotient, every[0], every[-1])
                    stored = clipped.astype(np.float32).astype(kind_of(case)).astype(np.float64)
                ratio = np.abs(stored - found[name].value.numpy()) / found[name].bound.numpy()
                ratio = ratio[live & found[name].judged.numpy().all((1, 2))]
                assert (ratio <= 1.0).all(), case
                largest[case.cache_dtype] = max(largest[case.cache_dtype], float(ratio.max(initial=0.0)))
    print(f"largest errors of own scales in the worst direction, in bounds: {largest}")
    assert min(largest.values()) > 0.95


@pytest.mark.parametrize("name", PARTS)
def test_the_region_of_a_cache_are_the_slots_of_its_tokens(name: str) -> None:
    for case in drawn():
        tensors = materialise(case)
        output = tensors.outputs[name]
        pages, places = (index.tolist() for index in output.region)  # type: ignore[union-attr]
        slots = [page * case.page_size + place for page, place in zip(pages, places, strict=True)]
        assert len(set(slots)) == case.num_tokens
        live = [True] * case.num_tokens if output.live is None else output.live.flatten().tolist()
        assert tensors.slot_mapping.tolist() == [slot if on else -1 for slot, on in zip(slots, live, strict=True)]
        assert output.tensor.shape == (case.num_pages, case.page_size, case.num_heads, case.head_size)
        assert bool(output.unwritten.all())


def test_a_fused_tensor_holds_the_same_keys_and_values() -> None:
    case = WriteCase(num_tokens=5, num_heads=3, dtype="bfloat16", padded_tokens=1, seed=4)
    apart, fused = materialise(case), materialise(replace(case, fused=True))
    assert torch.equal(apart.key, fused.key)
    assert torch.equal(apart.value, fused.value)
    assert fused.key.untyped_storage().data_ptr() == fused.value.untyped_storage().data_ptr()
    assert fused.key.stride() == fused.value.stride() == (8 * 16, 16, 1)
    assert fused.value.storage_offset() - fused.key.storage_offset() == 3 * 16


def test_heads_come_before_places_and_values_have_other_strides() -> None:
    case = WriteCase(num_heads=3, page_size=8, heads_first=True, head_gap=1, value_gap=2)
    tensors = materialise(case)
    assert tensors.outputs["key_cache"].tensor.stride() == (3 * 8 * 17, 17, 8 * 17, 1)
    assert tensors.outputs["value_cache"].tensor.stride() == (3 * 8 * 19, 19, 8 * 19, 1)


def test_the_last_page_of_a_far_cache_lies_beyond_32_bits() -> None:
    case = WriteCase(spare_pages=2, far=True)
    stride = materialise(case).outputs["key_cache"].tensor.stride(0)
    assert stride < REACH <= 2 * stride


@pytest.mark.parametrize("name", get_args(WriteAxis))
def test_the_last_index_of_a_far_axis_lies_beyond_32_bits_and_takes_no_memory(name: WriteAxis) -> None:
    stored_as: StoredType = "int8_token_head" if name.startswith("scale") else "same"
    case = WriteCase(5, 3, page_size=4, spare_pages=2, stored_as=stored_as, shuffled=True, seed=1)
    near, far = (materialise(replace(case, far_axes=axes)) for axes in ((), (name,)))
    moved = 0
    for one, other in zip(tensors_of(near), tensors_of(far), strict=True):
        axis = far_axis(other)
        moved += axis is not None
        assert other.equal(one)
        assert storage_bytes(other).numel() < 2**20
        if axis is not None:
            assert (case.far_lengths[name] - 1) * other.stride(axis) >= REACH > other.stride(axis)
    assert moved == (1 if name.startswith(("key", "value")) else 2)


def test_each_index_of_a_far_axis_has_memory_and_all_together_little() -> None:
    """Few tokens use few places of a page, but each of its places has memory of its own."""
    assert WriteCase(5, 4, 23, page_size=1705, far_axes=("caches_place",)).far_axes == ()
    assert WriteCase(5, 4, 23, page_size=200, far_axes=("caches_place",)).is_far
    far = [case for case in drawn() if case.far_axes]
    assert any("place" in name for case in far for name in case.far_axes)
    for case in far:
        for tensor in tensors_of(materialise(case)):
            assert storage_bytes(tensor).numel() <= 2**25, case


def tensors_of(tensors: WriteTensors) -> list[torch.Tensor]:
    """Return all tensors as integers, as poison may be NaN."""
    return [bits_of(each) for each in (tensors.key, tensors.value, *(o.tensor for o in tensors.outputs.values()))]


def test_a_case_is_not_far_along_axes_that_it_does_not_have() -> None:
    axes: tuple[WriteAxis, ...] = ("key_token", "caches_head", "scale_caches_page")
    assert WriteCase(3, 3, far_axes=axes).far_axes == axes[:2]
    assert WriteCase(3, 3, fused=True, far=True, far_axes=axes).far_axes == ()
    with pytest.raises(CaseError, match="must name one axis of each tensor"):
        WriteCase(3, 3, far_axes=("key_token", "key_head"))
    assert WriteCase(256, far_axes=("key_token",)).is_far
    assert not WriteCase(300, far_axes=("key_token",)).is_far
    assert not WriteCase(200, 8, 128, far_axes=("key_token",)).is_far


@pytest.mark.parametrize("stored_as", ["int8_token_head", "float8_e4m3fn_token_head"])
def test_a_row_of_zeros_holds_zeros_whatever_its_scale_is(stored_as: StoredType) -> None:
    case = WriteCase(8, 4, stored_as=stored_as, zero_rows=True, seed=2)
    tensors = materialise(case)
    zeros = (tensors.key == 0).all(-1)
    assert zeros[0, 0]
    assert 0.1 < zeros.float().mean() < 0.5
    keys, scales = (write(tensors)[name] for name in ("key_cache", "k_scale_cache"))
    assert keys.judged.all()
    assert (keys.value[zeros] == 0).all()
    assert (keys.bound[zeros] < 1.0).all()
    assert torch.equal(scales.judged.expand_as(zeros), ~zeros)


def test_the_reverse_order_moves_tokens_with_their_slots() -> None:
    case = WriteCase(num_tokens=7, shuffled=True, skipped=True, padded_tokens=2, seed=5)
    one, other = materialise(case), materialise(case, reverse=True)
    assert one.slot_mapping.tolist() == other.slot_mapping.tolist()[::-1]
    assert torch.equal(one.key[:7], other.key[:7].flip(0))
    assert torch.equal(one.value[7:], other.value[7:])
