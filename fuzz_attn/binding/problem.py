"""Problem: the tensors of a case as a binding passes them, caches in the target's layout and indices in its form.

Copies are made for one call, between guards of poison that tell whether the target changed them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fuzz_attn.binding.binding import Binding, python_value
from fuzz_attn.binding.layouts import AXES, Layout, format_of, groups_of
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.inputs.storage import GUARD_BYTES, in_one_row
from fuzz_attn.inputs.tensor_types import bits_of, is_fp8_dtype
from fuzz_attn.inputs.tensors import AttentionTensors

Integers: TypeAlias = npt.NDArray[np.int64]

_INDEX_DTYPES: Final = {"int32": torch.int32, "int64": torch.int64}
_NO_INDEX: Final = 2**31 - 1


@dataclass(frozen=True)
class Problem:
    """The inputs of one call. ``copies`` are the tensors that were made for it, by the names of what they hold."""

    tensors: AttentionTensors
    binding: Binding
    copies: list[Copy] = field(default_factory=list)

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.tensors.query.device

    @cached_property
    def key_cache(self) -> torch.Tensor:
        """The key cache in the target's layout."""
        return self._cache("key_cache")

    @cached_property
    def value_cache(self) -> torch.Tensor:
        """The value cache in the target's layout."""
        return self._cache("value_cache")

    def off(self, role: str, otherwise: object = None) -> object:
        """Return the argument of a role whose feature the case does not have."""
        return python_value(self.binding.off[role]) if role in self.binding.off else otherwise

    def integers(self, name: str, numbers: list[int] | Integers, guard: int = _NO_INDEX) -> torch.Tensor:
        """Return integers of the type that the target takes, between guards."""
        dtype = _INDEX_DTYPES[self.binding.index_dtype]
        array = torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.int64)).to(self.device, dtype)
        return self.kept(name, array, guard)

    def kept(self, name: str, values: torch.Tensor, guard: float | None = None) -> torch.Tensor:
        """Return a copy of a tensor between guards, watched for changes."""
        copy = guarded(name, values, guard)
        self.copies.append(copy)
        return copy.tensor

    @cached_property
    def key_lens(self) -> list[int]:
        """For each sequence, how many keys an index list counts: those of the context where new keys are packed."""
        tensors = self.tensors
        packed = FAMILIES[tensors.family].packs_new_keys
        pairs = zip(tensors.query_lens, tensors.context_lens, strict=True)
        return [context if packed else query + context for query, context in pairs]

    def slots_of(self, sequence: int) -> Integers:
        """Return the slot of each key that the index list of a sequence counts."""
        positions, size = np.arange(self.key_lens[sequence], dtype=np.int64), self.tensors.block_size
        slots: Integers = self._pages[sequence][positions // size] * size + positions % size
        return slots

    @cached_property
    def _pages(self) -> Integers:
        return self.tensors.block_table.cpu().numpy().astype(np.int64)

    def _cache(self, name: str) -> torch.Tensor:
        tensors, layout = self.tensors, self.binding.cache_layout
        own: torch.Tensor = getattr(tensors, name)
        if format_of(layout, tensors.family) != tensors.cache_format:
            assert layout is not None
            copy = cache_copy(name, tensors, layout)
            self.copies.append(copy)
            own = copy.tensor
        elif tensors.cache_format.in_one_row:
            own = in_one_row(own)
        as_bytes = self.binding.fp8 == "bytes" and is_fp8_dtype(own.dtype)
        return own.view(torch.uint8) if as_bytes else own


_POISON: Final = 0xFF
"""The value of each byte of a guard: NaN in every floating-point type, -1 in every integer."""


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
    memory = guarded_memory(values.numel() * values.element_size(), values.device)
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


def guarded_memory(size: int, device: torch.device) -> torch.Tensor:
    """Return new memory for ``size`` bytes between guards, all of it full of their bytes."""
    whole = -(-size // GUARD_BYTES) * GUARD_BYTES + 2 * GUARD_BYTES
    return torch.full((whole,), _POISON, dtype=torch.uint8, device=device)


def _inside(memory: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return memory.view(dtype).as_strided(shape, strides, GUARD_BYTES // dtype.itemsize)
