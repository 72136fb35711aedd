"""Storage: element types of tensors, poisoned memory between guards, strided views of it, and tensors over it.

Memory is laid out as unsigned integers in numpy, poison first. The torch tensor is the same view of the same bytes, on
any device.

A tensor with a far axis spans 2^31 elements along it. It consists of pieces, one for each index of the axis. Each piece
holds the elements of its index, with the strides that the tensor had, between guards.

*Poison* are the bits of memory that no kernel may read, and of outputs before they are written. They are
bits, so they survive copies between types and compare exactly. e4m3fn has no infinity and uses NaN instead.
"""

from __future__ import annotations

import math
import mmap
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

from fuzz_attn.case.attention_case import MAX_OFFSET_ELEMENTS, AttentionCase
from fuzz_attn.case.cache_layout import CacheFormat, CacheLayout
from fuzz_attn.case.parts import DTYPES, FP8_DTYPES, DTypeName
from fuzz_attn.case.recipes import BiasDType, SlotPoison, TablePoison
from fuzz_attn.errors import UnsupportedByBackendError
from fuzz_attn.inputs.random_bits import Floats

TORCH_DTYPES: Final[dict[DTypeName, torch.dtype]] = {name: getattr(torch, name) for name in DTYPES}

_FP8: Final = frozenset(TORCH_DTYPES[name] for name in FP8_DTYPES)

BIAS_DTYPES: Final[dict[BiasDType, torch.dtype]] = {name: getattr(torch, name) for name in get_args(BiasDType)}
"""The types of slopes, biases and sinks."""

NUMPY_DTYPES: Final[dict[DTypeName, np.dtype[Any]]] = {
    name: np.dtype(getattr(np, name, None) or getattr(ml_dtypes, name)) for name in DTYPES
}

UNSIGNED: Final[dict[int, npt.DTypeLike]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
"""The unsigned integer of numpy that holds an element of so many bytes."""

INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""An integer of torch that holds an element of so many bytes, and that numpy knows."""


def bits_dtype(dtype: DTypeName) -> npt.DTypeLike:
    """Return the unsigned integer that holds an element of the type."""
    return UNSIGNED[DTYPES[dtype].bytes]


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same memory as integers of the elements' size, which copy and compare exactly in every type."""
    return tensor.view(INTEGERS[tensor.dtype.itemsize])


def is_fp8_dtype(dtype: torch.dtype) -> bool:
    """Return whether a type of torch is an fp8 type, which comes with a scale; bytes and int8 are not."""
    return dtype in _FP8


Bits: TypeAlias = npt.NDArray[Any]

_NO_RESERVE: Final = 0x4000
"""Linux' MAP_NORESERVE, which Python does not name: reserves no memory for pages that are never touched."""

GUARD_BYTES: Final = 4096
"""Poison on either side of every tensor; a multiple of 16, so that pointers stay as aligned as the allocator's."""

_NUMPY: Final = {torch.float32: np.float32, torch.float16: np.float16, torch.int32: np.int32, torch.uint8: np.uint8}
"""The types that numpy and torch both know."""
_SLOTS: Final[dict[DTypeName, dict[SlotPoison, int]]] = {
    "float32": {"nan": 0x7FC00000, "inf": 0x7F800000, "negative_inf": 0xFF800000, "huge": 0x7F7FFFFF, "zero": 0},
    "float16": {"nan": 0x7E00, "inf": 0x7C00, "negative_inf": 0xFC00, "huge": 0x7BFF, "zero": 0},
    "bfloat16": {"nan": 0x7FC0, "inf": 0x7F80, "negative_inf": 0xFF80, "huge": 0x7F7F, "zero": 0},
    "float8_e4m3fn": {"nan": 0x7F, "inf": 0x7F, "negative_inf": 0xFF, "huge": 0x7E, "zero": 0},
    "float8_e5m2": {"nan": 0x7E, "inf": 0x7C, "negative_inf": 0xFC, "huge": 0x7B, "zero": 0},
}

_OUTPUTS: Final[dict[DTypeName, tuple[int, int]]] = {
    "float32": (0x7FC0DEAD, 0xFFC0BEEF),
    "float16": (0x7EAD, 0xFEEF),
    "bfloat16": (0x7FAD, 0xFFEF),
    "float8_e4m3fn": (0x7F, 0xFF),
    "float8_e5m2": (0x7D, 0xFF),
}


def poisoned(shape: tuple[int, ...], dtype: npt.DTypeLike, bits: int) -> Bits:
    """Return memory for unsigned (or signed) integers, each of them ``bits``, between guards of the same.

    The guards are ``GUARD_BYTES`` on either side. A read a little too far meets poison, and a write a little too far
    is seen and changes no other memory.
    """
    integer = np.dtype(dtype)
    margin, count = GUARD_BYTES // integer.itemsize, math.prod(shape)
    whole = np.empty(count + 2 * margin, integer)
    whole.fill(bits)
    return whole[margin : margin + count].reshape(shape)


def rounded(array: Floats, dtype: DTypeName, scale: float = 1.0) -> Bits:
    """Return the bits of ``array / scale`` in the type: to nearest even, clamped to its largest finite number.

    With a scale of 0 any stored number stands for 0, so the array itself is stored.
    """
    if scale not in (0.0, 1.0):
        with np.errstate(over="ignore"):
            array = array / np.float32(scale)
    largest = np.float32(DTYPES[dtype].largest)
    clamped: Floats = np.clip(array, -largest, largest)
    if dtype == "float32":
        return clamped.view(np.uint32)
    size, stored = DTYPES[dtype].bytes, torch.from_numpy(clamped).to(TORCH_DTYPES[dtype])
    return stored.view(INTEGERS[size]).numpy().view(UNSIGNED[size])


def bias_bits(array: Floats, dtype: BiasDType) -> Bits:
    """Return the bits of slopes, biases or sinks in their type, without clamping: an infinity stays one."""
    if dtype == "float32":
        return array.view(np.uint32)
    if dtype == "float64":
        return array.astype(np.float64).view(np.uint64)
    return torch.from_numpy(array).to(TORCH_DTYPES[dtype]).view(torch.int16).numpy().view(np.uint16)


def tensors_over(memory: Bits, views: tuple[Bits, ...], dtype: torch.dtype, device: str) -> tuple[torch.Tensor, ...]:
    """Return tensors of the type over ``memory`` of :func:`poisoned` and its guards, strided like its numpy views."""
    size = memory.itemsize
    start = _address(memory) - GUARD_BYTES
    flat = _flat(memory, dtype, device)
    return tuple(
        flat.as_strided(view.shape, [stride // size for stride in view.strides], (_address(view) - start) // size)
        for view in views
    )


def with_large_offsets(
    near: tuple[torch.Tensor, ...], first_block: int, page: int, device: str
) -> tuple[torch.Tensor, ...]:
    """Return caches over one memory on the CPU with ``first_block`` more pages of ``page`` elements before their own.

    The new pages are addresses without memory: they read as zeros on the CPU and as anything elsewhere. The memory that
    existed, guards included, ends the new storage.
    """
    existing = storage_of(near[0])
    whole = reserved(first_block * page * near[0].element_size() + existing.numel(), device)
    whole[-existing.numel() :] = existing
    flat = whole.view(near[0].dtype)
    return tuple(
        flat.as_strided(
            (first_block + view.shape[0], *view.shape[1:]), (page, *view.stride()[1:]), view.storage_offset()
        )
        for view in near
    )


def storage_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return all addresses of the storage of a tensor as uint8, without a copy."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def reserved(size: int, device: str) -> torch.Tensor:
    """Return ``size`` bytes; on the CPU they take memory only where they are touched.

    Raises :class:`UnsupportedByBackendError` where they do not fit.
    """
    try:
        if device != "cpu":
            return torch.empty(size, dtype=torch.uint8, device=device)
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        memory = mmap.mmap(-1, size, flags=private)
        with suppress(OSError):  # a kernel may be built without huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)  # one for each row touched would take megabytes
        return torch.frombuffer(memory, dtype=torch.uint8)
    except (OSError, torch.OutOfMemoryError) as error:
        raise UnsupportedByBackendError(f"a tensor that spans {size} bytes does not fit: {error}") from error


def reaches_large_offsets() -> bool:
    """Return whether this machine gives a process the addresses of two tensors of the largest span."""
    try:
        reserved(2 * 4 * MAX_OFFSET_ELEMENTS, "cpu")
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

    Slices and reshapes would not do: the strides of a dimension of 1 and of an empty array depend on numpy's version.
    """
    return np.ndarray(shape, memory.dtype, memory, strides=[stride * memory.itemsize for stride in strides])


def packed_memory(
    case: AttentionCase, heads: tuple[int, int], dtype: DTypeName, bits: int, gaps: tuple[int, int], extra_rows: int = 0
) -> Bits:
    """Return poisoned memory for packed tokens with ``heads``, number and size; ``gaps`` pad a token and a head."""
    width = heads[0] * (heads[1] + gaps[1]) + gaps[0]
    return poisoned((case.num_tokens + case.padded_tokens + extra_rows, width), bits_dtype(dtype), bits)


def _flat(memory: Bits, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Return the whole allocation of ``memory`` of :func:`poisoned`, guards included, as a vector of the type."""
    assert memory.base is not None
    flat = torch.from_numpy(memory.base.view(_NUMPY.get(dtype, np.uint8)))
    if device != "cpu":
        flat = flat.to(device)
    return flat if flat.dtype == dtype else flat.view(dtype)


def _address(array: Bits) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


@dataclass(frozen=True)
class CacheMemory:
    """One allocation or two laid out as ``layout`` says, and K and V in the shapes of the cache format.

    ``slots`` are the same elements as ``[num_blocks, block_size, num_kv_heads, ...]``. The last dimensions are the head
    size, in pieces for the keys of a split cache.
    """

    layout: CacheLayout
    memory: tuple[Bits, ...]
    views: tuple[Bits, Bits]
    slots: tuple[Bits, Bits]


def cache_memory(case: AttentionCase, cache: CacheFormat, num_blocks: int, poisons: tuple[int, int]) -> CacheMemory:
    """Return memory for the caches of a case, poisoned as K and V are; the padding of one allocation as K is."""
    layout = cache.layout(case.heads, case.pages.block_size, case.dtypes.kv, case.strides)
    memory = _allocations(layout, num_blocks, bits_dtype(case.dtypes.kv), poisons)
    second = layout.keys.elements * (num_blocks if layout.arrangement == "kv_first" else 1) * (not layout.is_latent)
    starts = (memory[0], memory[0][second:]) if layout.one_allocation else memory
    keys, values = (
        strided(start, (num_blocks, *page.shape), (page_stride, *page.strides))
        for start, page, page_stride in zip(starts, (layout.keys, layout.values), layout.page_strides, strict=True)
    )
    if layout.one_allocation and not layout.is_latent and poisons[0] != poisons[1]:
        values[...] = poisons[1]
    slots = keys.transpose(cache.key_axes), values.transpose(cache.value_axes)
    return CacheMemory(layout, memory, (keys, values), slots)


def _allocations(
    layout: CacheLayout, num_blocks: int, dtype: npt.DTypeLike, poisons: tuple[int, int]
) -> tuple[Bits, ...]:
    if layout.one_allocation:
        kv_first = layout.arrangement == "kv_first"
        return (poisoned((num_blocks * layout.page_strides[0] * (1 + kv_first),), dtype, poisons[0]),)
    pages = (layout.keys, layout.values)
    return tuple(
        poisoned((num_blocks * page.elements,), dtype, poison) for page, poison in zip(pages, poisons, strict=True)
    )


REACH: Final = 2**31
"""How many elements the last indices of a far axis lie behind the first one, at least."""
FAR: Final = 2**24
"""A stride of more elements is that of a far axis; no tensor in memory is so large in one index."""
STEP: Final = 16
"""A stride changes by a multiple of it, so that it stays as divisible as it was and no other code is compiled."""


def stride_of(near: torch.Tensor, axis: int, live: int) -> int:
    """Return a stride with which about half of ``live`` indices lie beyond 2^31, and the last of two or three.

    Not only the last one, because few rows may use it: it may be the last slot of a page. The present stride where
    there is only one index.
    """
    first = max(live // 2, min(live - 1, 2))
    gap = -(-REACH // (STEP * first)) * STEP if first else 0
    return near.stride(axis) + gap


def spread(near: torch.Tensor, axis: int, stride: int) -> torch.Tensor:
    """Return a guarded tensor with another, longer stride along one axis, between whose indices there is no memory."""
    count, size = near.shape[axis], near.element_size()
    if count < 2 or not near.numel() or stride == near.stride(axis):
        return near
    held = storage_of(near)
    width = held.numel() - (count - 1) * near.stride(axis) * size
    whole = reserved((count - 1) * stride * size + width, str(near.device))
    pieces = whole.as_strided((count, width), (stride * size, 1))
    pieces[:] = held[:size].repeat(width // size)
    strides = [stride if index == axis else each for index, each in enumerate(near.stride())]
    far = whole.view(near.dtype).as_strided(near.shape, strides, near.storage_offset())
    bits_of(far).copy_(bits_of(near))
    return far


def far_axis(tensor: torch.Tensor) -> int | None:
    """Return the axis along which only the elements of a tensor, and the guards around them, have memory."""
    strides = tensor.stride()
    longest = max(strides, default=0)
    if len(strides) < 2 or longest < FAR:
        return None
    axis = strides.index(longest)
    span = tensor.shape[axis] * longest * tensor.element_size()
    return axis if tensor.untyped_storage().nbytes() <= span else None


def pieces_of(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """Return the memory of a tensor with a far axis, uint8 ``[indices, bytes]``: each piece with its guards."""
    whole, count = storage_of(tensor), tensor.shape[axis]
    stride = tensor.stride(axis) * tensor.element_size()
    return whole.as_strided((count, whole.numel() - (count - 1) * stride), (stride, 1))


def elements_in(copy: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor in a dense copy of its memory, as a view of the copy in the tensor's type."""
    held, axis = copy.view(tensor.dtype), far_axis(tensor)
    strides = [held.stride(0) if index == axis else each for index, each in enumerate(tensor.stride())]
    return held.as_strided(tensor.shape, strides, tensor.storage_offset())


def with_rows(like: torch.Tensor, held: torch.Tensor, rows: int) -> torch.Tensor:
    """Return a tensor with the strides of ``like``; its first rows are the bits ``held``, the rest is its poison."""
    axis, margin = far_axis(like), GUARD_BYTES // like.element_size()
    strides = list(like.stride())
    if axis == 0:
        strides[0] = pieces_of(like, 0).shape[1] // like.element_size() - 2 * margin
    elif axis is not None:
        strides[axis] = strides[0] // like.shape[axis]
    poison = bits_of(storage_of(like)[: like.element_size()].view(like.dtype))
    memory = poison.repeat(2 * margin + rows * strides[0])
    near = memory.as_strided((rows, *like.shape[1:]), strides, margin)
    near[: held.shape[0]] = held
    changed = near.view(like.dtype)
    return changed if axis is None else spread(changed, axis, like.stride(axis))


def in_one_row(cache: torch.Tensor) -> torch.Tensor:
    """Return a cache ``[num_blocks, block_size, ...]`` with all slots equally far apart as ``[num_slots, ...]``."""
    slot = cache.stride(0) // cache.shape[1]  # not stride(1): pages of one slot may be far apart
    shape = cache.shape[0] * cache.shape[1], *cache.shape[2:]
    return cache.as_strided(shape, (slot, *cache.stride()[2:]), cache.storage_offset())


def storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole memory that a tensor is a view of, as uint8, without a copy.

    That of a tensor with a far axis is ``[indices, bytes]``; of all others it is flat.
    """
    axis = far_axis(tensor)
    return storage_of(tensor) if axis is None else pieces_of(tensor, axis)


def slot_poison(dtype: DTypeName, kind: SlotPoison) -> int:
    """Return the bits of an element that no kernel may read."""
    return _SLOTS[dtype][kind]


def bias_poison(dtype: BiasDType) -> int:
    """Return the bits of a NaN between and around slopes, biases and sinks."""
    return 0x7FF8000000000000 if dtype == "float64" else slot_poison(dtype, "nan")


def output_poison(dtype: DTypeName, variant: int) -> int:
    """Return the bits of an output element not yet written.

    It is a NaN that no arithmetic produces, where the type has such a NaN (e4m3fn has two NaNs in all).
    """
    return _OUTPUTS[dtype][variant]


def table_poison(kind: TablePoison, num_blocks: int) -> int:
    """Return the block-table entry past the last page of a sequence."""
    return {"zero": 0, "negative": -1, "one_past": num_blocks, "huge": 2**31 - 1}[kind]
