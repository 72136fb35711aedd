"""Poisoned memory with strided views: how the tensors of a case lie, padding and interleaving included.

Everything is laid out as unsigned integers in numpy, poison first; the torch tensor is then the same view of the same
bytes, on any device.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import torch

from fuzz_attn.case import AttentionCase, DTypeName
from fuzz_attn.poison import BIT_DTYPES, TORCH_DTYPES
from fuzz_attn.streams import Floats

Bits: TypeAlias = np.typing.NDArray[Any]

GUARD_BYTES: Final = 4096
"""Poison on either side of every tensor; a multiple of 16, so that pointers stay as aligned as the allocator's."""


def poisoned(shape: tuple[int, ...], dtype: DTypeName, bits: int) -> Bits:
    """Return memory for elements of the type, each holding ``bits``."""
    return np.full(shape, bits, dtype=BIT_DTYPES[TORCH_DTYPES[dtype].itemsize])


def rounded(array: Floats, dtype: DTypeName, scale: float = 1.0) -> Bits:
    """Return the bits of ``array / scale`` in the type: to nearest even, clamped to its largest finite number."""
    target = TORCH_DTYPES[dtype]
    largest = np.float32(torch.finfo(target).max)
    with np.errstate(over="ignore"):
        scaled = array if scale == 1.0 else array / np.float32(scale)
    stored = torch.from_numpy(np.ascontiguousarray(np.clip(scaled, -largest, largest))).to(target)
    bits: Bits = stored.view(-1).view(torch.uint8).numpy().view(BIT_DTYPES[target.itemsize])
    return bits.reshape(array.shape)


def tensors_over(
    memory: Bits, views: tuple[Bits, ...], dtype: torch.dtype, device: str, *, guard: int
) -> tuple[torch.Tensor, ...]:
    """Return tensors of the type over one guarded copy of ``memory``, strided like its numpy ``views``.

    Before and behind the memory lie ``GUARD_BYTES`` of elements whose bits are ``guard``: what reads a little too far
    meets poison, and what writes a little too far is seen, instead of somebody else's memory.
    """
    size = memory.itemsize
    margin = GUARD_BYTES // size
    guarded = np.full(memory.size + 2 * margin, guard, dtype=memory.dtype)
    guarded[margin : margin + memory.size] = memory.reshape(-1)
    flat = torch.from_numpy(guarded.view(np.uint8)).to(device).view(dtype)
    start = _address(memory) - margin * size
    return tuple(
        flat.as_strided(view.shape, [stride // size for stride in view.strides], (_address(view) - start) // size)
        for view in views
    )


def tensor_of(array: Bits, dtype: torch.dtype, device: str, *, guard: int) -> torch.Tensor:
    """Return a dense, guarded tensor of a vector that holds its elements' bits."""
    return tensors_over(array, (strided(array, array.shape, (1,)),), dtype, device, guard=guard)[0]


def heads_view(memory: Bits, num_heads: int, head_padding: int, head_size: int) -> Bits:
    """Return the ``[tokens, num_heads, head_size]`` view of memory ``[tokens, num_heads * padded + token padding]``."""
    tokens, width = memory.shape
    return strided(memory, (tokens, num_heads, head_size), (width, head_size + head_padding, 1))


def strided(memory: Bits, shape: tuple[int, ...], strides: tuple[int, ...]) -> Bits:
    """Return the view of the memory with these strides, in elements.

    Slices and reshapes leave it to numpy's version which strides a dimension of 1 and an empty array get.
    """
    return np.ndarray(shape, memory.dtype, memory, strides=[stride * memory.itemsize for stride in strides])


def dense_memory(case: AttentionCase, dtype: DTypeName, bits: int, token_padding: int, head_padding: int) -> Bits:
    """Return poisoned memory for queries or outputs, padded between tokens and between heads."""
    width = case.heads.num_query_heads * (case.heads.head_size + head_padding) + token_padding
    return poisoned((case.num_tokens + case.padded_tokens, width), dtype, bits)


def cache_views(case: AttentionCase, num_blocks: int) -> tuple[tuple[Bits, ...], tuple[Bits, Bits]]:
    """Return the memory of both caches (one block of it, or two), and the views of K and V in it.

    The views are ``[num_blocks, block_size, num_kv_heads, head_size]`` whatever the layout.
    """
    heads, size = case.heads.num_kv_heads, case.heads.head_size
    slots, padded = case.pages.block_size, case.heads.head_size + case.strides.cache_slot
    layout = case.strides.cache
    if layout == "kv_first":
        both = poisoned((2, num_blocks, slots, heads, padded), case.dtypes.kv, 0)
        return (both,), (both[0, ..., :size], both[1, ..., :size])
    if layout == "blocks_first":
        both = poisoned((num_blocks, 2, slots, heads, padded), case.dtypes.kv, 0)
        return (both,), (both[:, 0, ..., :size], both[:, 1, ..., :size])
    if layout == "heads_first":
        shape = (num_blocks, heads, slots, padded)
        memory = poisoned(shape, case.dtypes.kv, 0), poisoned(shape, case.dtypes.kv, 0)
        return memory, (memory[0].transpose(0, 2, 1, 3)[..., :size], memory[1].transpose(0, 2, 1, 3)[..., :size])
    shape = (num_blocks, slots, heads, padded)
    memory = poisoned(shape, case.dtypes.kv, 0), poisoned(shape, case.dtypes.kv, 0)
    return memory, (memory[0][..., :size], memory[1][..., :size])


def _address(array: Bits) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
