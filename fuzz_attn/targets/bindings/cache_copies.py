"""Copies: memory that is made for one call, between guards of poison, and whether the target changed it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch

from fuzz_attn.bindings.layouts import AXES, Layout, groups_of
from fuzz_attn.inputs.storage import GUARD_BYTES
from fuzz_attn.inputs.tensor_types import bits_of
from fuzz_attn.inputs.tensors import AttentionTensors

_POISON: Final = 0xFF
"""The value of each byte of a guard: NaN in every floating-point type."""


@dataclass(frozen=True)
class Copy:
    """A tensor made for one call. ``memory`` is all of its memory, guards included, ``before`` what that held."""

    name: str
    tensor: torch.Tensor
    memory: torch.Tensor
    before: torch.Tensor

    @property
    def is_changed(self) -> bool:
        """Whether the call has changed the memory."""
        return not self.memory.equal(self.before)


def guarded(name: str, values: torch.Tensor, guard: float | None = None) -> Copy:
    """Return a dense copy of a tensor between guards, which hold ``guard`` or else bytes that are NaN."""
    memory = _memory(values.numel() * values.element_size(), values.device)
    if guard is not None:
        memory.view(values.dtype).fill_(guard)
    tensor = _inside(memory, tuple(values.shape), values.dtype)
    bits_of(tensor).copy_(bits_of(values))
    return Copy(name, tensor, memory, memory.clone())


def cache_copy(name: str, tensors: AttentionTensors, layout: Layout) -> Copy:
    """Return one of the caches in another layout, poison in unused slots included."""
    slots, pattern = (tensors.key_slots, layout.keys) if name == "key_cache" else (tensors.value_slots, layout.values)
    rows = bits_of(slots).flatten(3)
    sizes = dict(zip(AXES, (*rows.shape[:3], *_pieces(tensors, rows.shape[3])), strict=True))
    groups = groups_of(pattern)
    axes = [AXES.index(axis) for group in groups for axis in group]
    ordered = rows.reshape(tuple(sizes.values())).permute(axes)
    shape = tuple(math.prod(sizes[axis] for axis in group) for group in groups)
    return guarded(name, ordered.reshape(shape).view(slots.dtype))


def _pieces(tensors: AttentionTensors, head_size: int) -> tuple[int, int]:
    """Return how many pieces of 16 bytes a key has, and their elements; one piece where that does not divide it."""
    x = max(1, 16 // tensors.key_cache.element_size())
    return (head_size // x, x) if head_size % x == 0 else (1, head_size)


def _memory(size: int, device: torch.device) -> torch.Tensor:
    whole = -(-size // GUARD_BYTES) * GUARD_BYTES + 2 * GUARD_BYTES
    return torch.full((whole,), _POISON, dtype=torch.uint8, device=device)


def _inside(memory: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return memory.view(dtype).as_strided(shape, strides, GUARD_BYTES // dtype.itemsize)
