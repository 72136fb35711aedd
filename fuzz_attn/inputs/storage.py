"""Storage: poisoned memory between guards, strided views of it, and tensors over it.

Memory is laid out as unsigned integers in numpy, poison first. The torch tensor is the same view of the same bytes, on
any device.
"""

from __future__ import annotations

import math
import mmap
from contextlib import suppress
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.checks import MAX_OFFSET_ELEMENTS
from fuzz_attn.case.dtypes import DTYPES, DTypeName
from fuzz_attn.case.recipes import BiasDType
from fuzz_attn.errors import UnsupportedByBackendError
from fuzz_attn.inputs.dtypes import INTEGERS, TORCH_DTYPES, UNSIGNED, bits_dtype
from fuzz_attn.inputs.random_bits import Floats

Bits: TypeAlias = npt.NDArray[Any]

_NO_RESERVE: Final = 0x4000
"""Linux' MAP_NORESERVE, which Python does not name: reserves no memory for pages that are never touched."""

GUARD_BYTES: Final = 4096
"""Poison on either side of every tensor; a multiple of 16, so that pointers stay as aligned as the allocator's."""

_NUMPY: Final = {torch.float32: np.float32, torch.float16: np.float16, torch.int32: np.int32, torch.uint8: np.uint8}
"""The types that numpy and torch both know."""


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
    case: AttentionCase, num_heads: int, dtype: DTypeName, bits: int, gaps: tuple[int, int], extra_rows: int = 0
) -> Bits:
    """Return poisoned memory for packed tokens; ``gaps`` are the padding of a token and of a head."""
    width = num_heads * (case.heads.head_size + gaps[1]) + gaps[0]
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
