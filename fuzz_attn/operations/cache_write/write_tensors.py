"""Write tensors: what a cache write reads and writes, made from a case, the same bits on every machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from fuzz_attn.case.parts import LaunchHints
from fuzz_attn.case.visibility import Visibility
from fuzz_attn.inputs.output_tensors import CallTensors, OutputTensor
from fuzz_attn.inputs.random_bits import Integers, Stream
from fuzz_attn.inputs.storage import (
    TORCH_DTYPES,
    bits_dtype,
    output_poison,
    poisoned,
    rounded,
    slot_poison,
    spread,
    stride_of,
    strided,
    tensor_of,
    tensors_over,
)
from fuzz_attn.operations.cache_write.write_case import QUERY_HEADS, SCALE_CACHES, CacheType, StoredType, WriteCase
from fuzz_attn.operations.small_tensors import with_far_axis

_KEYS, _VALUES, _SLOTS, _SKIPPED, _ZEROS = 65, 66, 67, 68, 69
"""The streams of random numbers."""
NOWHERE: Final = -1
"""The slot of a skipped token."""
_NAMED: Final[dict[StoredType, tuple[str, int]]] = {
    "float8_e4m3fn": ("fp8_e4m3", 1),
    "float8_e5m2": ("fp8_e5m2", 1),
    "int8_token_head": ("int8_per_token_head", 2),
    "float8_e4m3fn_token_head": ("fp8_per_token_head", 3),
}
"""What launchers call a kind of caches: ``kv_cache_dtype`` and ``kv_quant_mode``."""
_UNUSED_INT8: Final = 0x80
"""The bits of -128, which no correct write stores: scales make 127 the largest."""
_BEYOND: Final = 2**62 + 1
"""What lies around the slots: no kernel that reads it finds a slot there."""


@dataclass(frozen=True)
class WriteTensors(CallTensors):
    """The new keys and values, their slots, the scales, and the caches as the outputs of the write.

    ``key`` and ``value`` are ``[num_tokens or more, num_heads, head_size]``, ``slot_mapping`` is int64
    ``[num_tokens]``, ``k_scale`` and ``v_scale`` are float32 ``[1]``. ``key_cache`` and ``value_cache`` are
    ``[num_pages, page_size, num_heads, head_size]``; the region of each holds a slot for every token, of which those of
    skipped tokens are not live. With a scale for each token and head, ``k_scale_cache`` and ``v_scale_cache`` are
    outputs too, float32 ``[num_pages, page_size, num_heads]``. To the judge all tokens are one sequence.
    """

    key: torch.Tensor
    value: torch.Tensor
    slot_mapping: torch.Tensor
    k_scale: torch.Tensor
    v_scale: torch.Tensor
    outputs: dict[str, OutputTensor]
    kv_cache_dtype: str = "auto"
    kv_quant_mode: int = 0
    query_lens: tuple[int, ...] = (1,)
    context_lens: tuple[int, ...] = (0,)
    visibility: Visibility = field(default_factory=Visibility)
    launch: LaunchHints = field(default_factory=LaunchHints)

    def inputs(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the name and tensor of everything that a write must not change."""
        yield "key", self.key
        yield "value", self.value
        yield "slot_mapping", self.slot_mapping
        yield "k_scale", self.k_scale
        yield "v_scale", self.v_scale


def slots_of(case: WriteCase, other: int = 0) -> Integers:
    """Return a slot for each token, also for skipped ones, no slot twice; ``other`` slots than those of 0."""
    count = case.num_pages * case.page_size
    if not case.shuffled and not other:
        return np.arange(case.num_tokens)
    slots: Integers = Stream(case.seed + other, _SLOTS).permutation(count)[: case.num_tokens]
    return slots


def skipped_of(case: WriteCase) -> npt.NDArray[np.bool_]:
    """Return which tokens go nowhere, ``[num_tokens]``."""
    skipped = np.zeros(case.num_tokens, np.bool_)
    if case.skipped:
        skipped |= Stream(case.seed, _SKIPPED).below(3, case.num_tokens) == 0
        skipped[0] = True
    return skipped


def materialise(
    case: WriteCase, device: str = "cpu", *, reverse: bool = False, variant: int = 0, other: int = 0
) -> WriteTensors:
    """Return the tensors of a case, on demand with the tokens in the reverse order or in ``other`` slots.

    With ``variant`` 1 the caches hold the other poison.
    """
    slots, skipped = slots_of(case, other), skipped_of(case)
    keys, values = _numbers(case, _KEYS), _numbers(case, _VALUES)
    if reverse:
        slots, skipped = slots[::-1].copy(), skipped[::-1].copy()
        rows = slice(0, case.num_tokens)
        keys[rows], values[rows] = keys[rows][::-1].copy(), values[rows][::-1].copy()
    key, value = _fused(case, keys, values, device) if case.fused else _apart(case, keys, values, device)
    name, mode = _NAMED.get(case.stored_as, ("auto", 0))
    mapping = np.where(skipped, NOWHERE, slots)
    return WriteTensors(
        key=key,
        value=value,
        slot_mapping=tensor_of(mapping, torch.int64, device, guard=_BEYOND),
        k_scale=_scale(case.k_scale, device),
        v_scale=_scale(case.v_scale, device),
        outputs=_caches(case, slots, skipped, device, variant),
        kv_cache_dtype=name,
        kv_quant_mode=mode,
        query_lens=(case.num_tokens,),
    )


def _numbers(case: WriteCase, stream: int) -> npt.NDArray[Any]:
    """Return the bits of new keys or values, ``[num_tokens and padded rows, num_heads, head_size]``."""
    shape = case.num_tokens + case.padded_tokens, case.num_heads, case.head_size
    normals = Stream(case.seed, stream).normals(*shape)
    if case.zero_rows:
        zeros = Stream(case.seed ^ stream, _ZEROS).below(4, *shape[:2]) == 0
        zeros[0, 0] = True
        normals[zeros] = 0.0
    return rounded(np.float32(case.magnitude) * normals, case.dtype)


def _apart(
    case: WriteCase, keys: npt.NDArray[Any], values: npt.NDArray[Any], device: str
) -> tuple[torch.Tensor, torch.Tensor]:
    memories = [poisoned(bits.shape, bits.dtype, slot_poison(case.dtype, "nan")) for bits in (keys, values)]
    for memory, bits in zip(memories, (keys, values), strict=True):
        memory[...] = bits
    key, value = (tensors_over(memory, (memory,), TORCH_DTYPES[case.dtype], device)[0] for memory in memories)
    axes = ("token", "head")
    return with_far_axis(case, key, "key", axes), with_far_axis(case, value, "value", axes)


def _fused(
    case: WriteCase, keys: npt.NDArray[Any], values: npt.NDArray[Any], device: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values as columns of one tensor, behind those of queries."""
    rows, heads, size = keys.shape
    memory = poisoned((rows, QUERY_HEADS + 2 * heads, size), keys.dtype, slot_poison(case.dtype, "nan"))
    strides = [stride * keys.itemsize for stride in (memory.shape[1] * size, size, 1)]
    starts = [first * size * keys.itemsize for first in (QUERY_HEADS, QUERY_HEADS + heads)]
    views = [np.ndarray(keys.shape, keys.dtype, memory, start, strides) for start in starts]
    views[0][...], views[1][...] = keys, values
    key, value = tensors_over(memory, tuple(views), TORCH_DTYPES[case.dtype], device)
    return key, value


def _scale(scale: float, device: str) -> torch.Tensor:
    bits = np.array([scale], np.float32).view(np.uint32)
    return tensor_of(bits, torch.float32, device, guard=slot_poison("float32", "nan"))


def _caches(
    case: WriteCase, slots: Integers, skipped: npt.NDArray[np.bool_], device: str, variant: int
) -> dict[str, OutputTensor]:
    """Return the poisoned caches by their names."""
    pages, places = np.divmod(slots, case.page_size)
    region = tuple(torch.from_numpy(each).to(device) for each in (pages, places))
    live = torch.from_numpy(~skipped)[:, None, None].to(device) if skipped.any() else None
    gaps = {"key_cache": case.head_gap, "value_cache": case.head_gap + case.value_gap}
    found = {}
    for (name, gap), scales in zip(gaps.items(), SCALE_CACHES, strict=True):
        poison = _UNUSED_INT8 if case.cache_dtype == "int8" else output_poison(case.cache_dtype, variant)
        width = case.head_size + gap
        inner = (width, case.page_size * width) if case.heads_first else (case.num_heads * width, width)
        strides = (case.page_size * case.num_heads * width, *inner, 1)
        tensor = _cache(case, (case.head_size,), strides, (case.cache_dtype, poison), device)
        found[name] = OutputTensor(tensor, poison, region, live)
        if case.per_token_head:
            found[scales] = _scales(case, gap, region, live, output_poison("float32", variant), device)
    return found


def _scales(
    case: WriteCase,
    gap: int,
    region: tuple[torch.Tensor, ...],
    live: torch.Tensor | None,
    poison: int,
    device: str,
) -> OutputTensor:
    """Return poisoned scales of each token and head, with ``gap`` elements behind those of a place, or of a head."""
    width = (case.page_size if case.heads_first else case.num_heads) + gap
    rows = case.num_heads if case.heads_first else case.page_size
    strides = (rows * width, *((1, width) if case.heads_first else (width, 1)))
    tensor = _cache(case, (), strides, ("float32", poison), device)
    return OutputTensor(tensor, poison, region, None if live is None else live[..., 0], ("token", "head"))


def _cache(
    case: WriteCase, last: tuple[int, ...], strides: tuple[int, ...], kind: tuple[CacheType, int], device: str
) -> torch.Tensor:
    """Return a cache ``[num_pages, page_size, num_heads, *last]`` with these strides, of a type and a poison."""
    dtype, poison = kind
    shape = case.num_pages, case.page_size, case.num_heads, *last
    memory = poisoned((shape[0] * strides[0],), np.uint8 if dtype == "int8" else bits_dtype(dtype), poison)
    view = strided(memory, shape, strides)
    near = tensors_over(memory, (view,), torch.int8 if dtype == "int8" else TORCH_DTYPES[dtype], device)[0]
    if not case.far or not last:
        return with_far_axis(case, near, "caches" if last else "scale_caches", ("page", "place", "head"))
    return spread(near, 0, stride_of(near, 0, case.num_pages))
