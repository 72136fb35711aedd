"""Poisoned memory with strided views: how the tensors of a case lie, padding and interleaving included.

Everything is laid out as unsigned integers in numpy, poison first; the torch tensor is then the same view of the same
bytes, on any device.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fuzz_attn.case.attention_case import MAX_OFFSET_ELEMENTS, AttentionCase, DTypeName, piece_size
from fuzz_attn.case.families import SPLIT_CACHES
from fuzz_attn.errors import UnsupportedByBackendError
from fuzz_attn.inputs.poison import BIT_DTYPES, TORCH_DTYPES
from fuzz_attn.inputs.random_bits import Floats

Bits: TypeAlias = npt.NDArray[Any]

_NO_RESERVE: Final = 0x4000
"""Linux' MAP_NORESERVE, which Python does not name: no memory is set aside for what is never touched."""

GUARD_BYTES: Final = 4096
"""Poison on either side of every tensor; a multiple of 16, so that pointers stay as aligned as the allocator's."""

_LARGEST: Final = {name: np.float32(torch.finfo(dtype).max) for name, dtype in TORCH_DTYPES.items()}
_NUMPY: Final = {torch.float32: np.float32, torch.float16: np.float16, torch.int32: np.int32, torch.uint8: np.uint8}
"""The types that numpy and torch both know."""
_SIGNED: Final = {1: torch.uint8, 2: torch.int16}
"""An integer type of numpy's and of every torch that is as wide as the elements."""


def bits_dtype(dtype: DTypeName) -> npt.DTypeLike:
    """Return the unsigned integer that holds an element of the type."""
    return BIT_DTYPES[TORCH_DTYPES[dtype].itemsize]


def poisoned(shape: tuple[int, ...], dtype: npt.DTypeLike, bits: int) -> Bits:
    """Return memory for unsigned (or signed) integers, each of them ``bits``, between guards of the same.

    The guards are ``GUARD_BYTES`` on either side: what reads a little too far meets poison, and what writes a little
    too far is seen, instead of somebody else's memory.
    """
    integer = np.dtype(dtype)
    margin, count = GUARD_BYTES // integer.itemsize, math.prod(shape)
    whole = np.empty(count + 2 * margin, integer)
    whole.fill(bits)
    return whole[margin : margin + count].reshape(shape)


def rounded(array: Floats, dtype: DTypeName, scale: float = 1.0) -> Bits:
    """Return the bits of ``array / scale`` in the type: to nearest even, clamped to its largest finite number."""
    if scale != 1.0:
        with np.errstate(over="ignore"):
            array = array / np.float32(scale)
    target, largest = TORCH_DTYPES[dtype], _LARGEST[dtype]
    clamped: Floats = np.clip(array, -largest, largest)
    if dtype == "float32":
        return clamped.view(np.uint32)
    stored = torch.from_numpy(clamped).to(target)
    return stored.view(_SIGNED[target.itemsize]).numpy().view(BIT_DTYPES[target.itemsize])


def tensors_over(memory: Bits, views: tuple[Bits, ...], dtype: torch.dtype, device: str) -> tuple[torch.Tensor, ...]:
    """Return tensors of the type over ``memory`` of :func:`poisoned`, guards included, strided like its numpy views."""
    size = memory.itemsize
    start = _address(memory) - GUARD_BYTES
    flat = _flat(memory, dtype, device)
    return tuple(
        flat.as_strided(view.shape, [stride // size for stride in view.strides], (_address(view) - start) // size)
        for view in views
    )


def pushed_far(near: tuple[torch.Tensor, ...], first_block: int, page: int, device: str) -> tuple[torch.Tensor, ...]:
    """Return caches over one memory on the CPU with ``first_block`` more pages of ``page`` elements before their own.

    These are addresses that nothing stands behind: they read as zeros on the CPU and as anything elsewhere. The memory
    that there was, guards included, ends the new storage.
    """
    existing = torch.empty(0, dtype=torch.uint8).set_(near[0].untyped_storage())
    whole = _reserved(first_block * page * near[0].element_size() + existing.numel(), device)
    whole[-existing.numel() :] = existing
    flat = whole.view(near[0].dtype)
    return tuple(
        flat.as_strided(
            (first_block + view.shape[0], *view.shape[1:]), (page, *view.stride()[1:]), view.storage_offset()
        )
        for view in near
    )


def _reserved(size: int, device: str) -> torch.Tensor:
    """Return so many bytes; on the CPU they take memory only where they are touched.

    Raises :class:`UnsupportedByBackendError` where there is no room.
    """
    try:
        if device != "cpu":
            return torch.empty(size, dtype=torch.uint8, device=device)
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        return torch.frombuffer(mmap.mmap(-1, size, flags=private), dtype=torch.uint8)
    except (OSError, torch.OutOfMemoryError) as error:
        raise UnsupportedByBackendError(f"a cache that stretches over {size} bytes does not fit: {error}") from error


def reaches_large_offsets() -> bool:
    """Return whether this machine gives a process the addresses of two of the largest caches with far pages."""
    try:
        _reserved(2 * 4 * MAX_OFFSET_ELEMENTS, "cpu")
    except UnsupportedByBackendError:
        return False
    return True


def tensor_of(array: Bits, dtype: torch.dtype, device: str, *, guard: int) -> torch.Tensor:
    """Return a dense tensor of a vector that holds its elements' bits, between guards that hold ``guard``."""
    memory = poisoned(array.shape, array.dtype, guard)
    memory[...] = array
    return _flat(memory, dtype, device).as_strided(array.shape, (1,), GUARD_BYTES // array.itemsize)


def heads_view(memory: Bits, num_heads: int, head_padding: int, head_size: int) -> Bits:
    """Return the ``[tokens, num_heads, head_size]`` view of memory ``[tokens, num_heads * padded + token padding]``."""
    tokens, width = memory.shape
    return strided(memory, (tokens, num_heads, head_size), (width, head_size + head_padding, 1))


def strided(memory: Bits, shape: tuple[int, ...], strides: tuple[int, ...]) -> Bits:
    """Return the view of the memory with these strides, in elements.

    Slices and reshapes leave it to numpy's version which strides a dimension of 1 and an empty array get.
    """
    return np.ndarray(shape, memory.dtype, memory, strides=[stride * memory.itemsize for stride in strides])


def dense_memory(case: AttentionCase, num_heads: int, dtype: DTypeName, bits: int, gaps: tuple[int, int]) -> Bits:
    """Return poisoned memory for packed tokens of so many heads; ``gaps`` are padding of a token and of a head."""
    width = num_heads * (case.heads.head_size + gaps[1]) + gaps[0]
    return poisoned((case.num_tokens + case.padded_tokens, width), bits_dtype(dtype), bits)


@dataclass(frozen=True)
class CacheMemory:
    """Both caches: their memory (one block of it, or two), and K and V as views of it.

    ``views`` have the family's own shapes; ``slots`` are the same elements as ``[num_blocks, block_size, num_kv_heads,
    ...]``, where the last dimensions are the head size, in pieces for the keys of a split cache.
    """

    memory: tuple[Bits, ...]
    views: tuple[Bits, Bits]
    slots: tuple[Bits, Bits]


def cache_memory(case: AttentionCase, num_blocks: int, poisons: tuple[int, int]) -> CacheMemory:
    """Return memory for the caches of a case, poisoned as K and V are; padding of one that both share as K is."""
    caches = _split_caches if case.family in SPLIT_CACHES else _slot_caches
    made = caches(case, num_blocks, poisons)
    if len(made.memory) == 1 and poisons[0] != poisons[1]:
        made.slots[1][...] = poisons[1]
    return made


def _slot_caches(case: AttentionCase, num_blocks: int, poisons: tuple[int, int]) -> CacheMemory:
    heads, size = case.heads.num_kv_heads, case.heads.head_size
    slots, gaps = case.pages.block_size, _cache_gaps(case)
    if case.strides.cache == "heads_first":
        shapes = ((num_blocks, heads, slots, size + gap) for gap in gaps)
        keys, values = map(poisoned, shapes, [bits_dtype(case.dtypes.kv)] * 2, poisons)
        views = keys.transpose(0, 2, 1, 3)[..., :size], values.transpose(0, 2, 1, 3)[..., :size]
        return CacheMemory((keys, values), views, views)
    blocks = _pages(case, poisons, num_blocks, [(slots, heads, size + gap) for gap in gaps])
    views = blocks.keys[..., :size], blocks.values[..., :size]
    return CacheMemory(blocks.memory, views, views)


def _split_caches(case: AttentionCase, num_blocks: int, poisons: tuple[int, int]) -> CacheMemory:
    heads, size, slots = case.heads.num_kv_heads, case.heads.head_size, case.pages.block_size
    piece = piece_size(case.dtypes.kv)
    blocks = _pages(case, poisons, num_blocks, [(heads * size * slots + gap,) for gap in _cache_gaps(case)])
    keys = _paged_view(blocks.keys, (num_blocks, heads, size // piece, slots, piece))
    values = _paged_view(blocks.values, (num_blocks, heads, size, slots))
    return CacheMemory(blocks.memory, (keys, values), (keys.transpose(0, 3, 1, 2, 4), values.transpose(0, 3, 1, 2)))


class _Pages(NamedTuple):
    memory: tuple[Bits, ...]
    keys: Bits
    values: Bits


def _cache_gaps(case: AttentionCase) -> tuple[int, int]:
    """Return the padding of the rows (of the pages, in a split cache) of K and of V: the same in one allocation."""
    gap = case.strides.cache_slot
    return gap, gap if case.strides.cache in ("kv_first", "blocks_first") else gap + case.strides.value_slot


def _pages(case: AttentionCase, poisons: tuple[int, int], num_blocks: int, pages: list[tuple[int, ...]]) -> _Pages:
    """Return memory for pages of K and of V, in one allocation or in two, and both as ``[num_blocks, ...]``."""
    dtype, page = bits_dtype(case.dtypes.kv), pages[0]
    if case.strides.cache == "kv_first":
        both = poisoned((2, num_blocks, *page), dtype, poisons[0])
        return _Pages((both,), both[0], both[1])
    if case.strides.cache == "blocks_first":
        both = poisoned((num_blocks, 2, *page), dtype, poisons[0])
        return _Pages((both,), both[:, 0], both[:, 1])
    keys, values = (poisoned((num_blocks, *own), dtype, poison) for own, poison in zip(pages, poisons, strict=True))
    return _Pages((keys, values), keys, values)


def _paged_view(block: Bits, shape: tuple[int, ...]) -> Bits:
    """Return memory ``[num_blocks, elements]`` seen as dense pages of a shape, whatever lies between the pages."""
    inner = [math.prod(shape[axis + 1 :]) * block.itemsize for axis in range(1, len(shape))]
    return np.lib.stride_tricks.as_strided(block, shape, (block.strides[0], *inner))


def _flat(memory: Bits, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Return all that was allocated for ``memory`` of :func:`poisoned`, guards included, as a vector of the type."""
    assert memory.base is not None
    flat = torch.from_numpy(memory.base.view(_NUMPY.get(dtype, np.uint8)))
    if device != "cpu":
        flat = flat.to(device)
    return flat if flat.dtype == dtype else flat.view(dtype)


def _address(array: Bits) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
