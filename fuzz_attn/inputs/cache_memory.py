"""Cache memory: poisoned memory for both caches of a case, and K and V as views of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy.typing as npt

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.cache_layout import CacheLayout
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.inputs.dtypes import bits_dtype
from fuzz_attn.inputs.storage import Bits, poisoned, strided


@dataclass(frozen=True)
class CacheMemory:
    """One allocation or two, and K and V in the shapes of the family.

    ``slots`` are the same elements as ``[num_blocks, block_size, num_kv_heads, ...]``. The last dimensions are the head
    size, in pieces for the keys of a split cache.
    """

    memory: tuple[Bits, ...]
    views: tuple[Bits, Bits]
    slots: tuple[Bits, Bits]


def cache_memory(case: AttentionCase, num_blocks: int, poisons: tuple[int, int]) -> CacheMemory:
    """Return memory for the caches of a case, poisoned as K and V are; the padding of one allocation as K is."""
    layout, cache = case.cache_layout, FAMILIES[case.family].cache
    memory = _allocations(layout, num_blocks, bits_dtype(case.dtypes.kv), poisons)
    second = layout.keys.elements * (num_blocks if layout.arrangement == "kv_first" else 1)
    starts = (memory[0], memory[0][second:]) if layout.one_allocation else memory
    keys, values = (
        strided(start, (num_blocks, *page.shape), (page_stride, *page.strides))
        for start, page, page_stride in zip(starts, (layout.keys, layout.values), layout.page_strides, strict=True)
    )
    if layout.one_allocation and poisons[0] != poisons[1]:
        values[...] = poisons[1]
    return CacheMemory(memory, (keys, values), (keys.transpose(cache.key_axes), values.transpose(cache.value_axes)))


def _allocations(
    layout: CacheLayout, num_blocks: int, dtype: npt.DTypeLike, poisons: tuple[int, int]
) -> tuple[Bits, ...]:
    if layout.one_allocation:
        return (poisoned((2 * num_blocks * layout.keys.elements,), dtype, poisons[0]),)
    pages = (layout.keys, layout.values)
    return tuple(
        poisoned((num_blocks * page.elements,), dtype, poison) for page, poison in zip(pages, poisons, strict=True)
    )
