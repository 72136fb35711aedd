"""Problem: the tensors of a case as a binding passes them, caches in the target's layout and indices in its form."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fuzz_attn.bindings.binding import Binding, python_value
from fuzz_attn.bindings.layouts import format_of
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.inputs.tensor_types import is_fp8_dtype
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.targets.bindings.cache_copies import Copy, cache_copy, guarded

Integers: TypeAlias = npt.NDArray[np.int64]

_INDEX_DTYPES: Final = {"int32": torch.int32, "int64": torch.int64}


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

    def integers(self, name: str, numbers: list[int] | Integers) -> torch.Tensor:
        """Return integers of the type that the target takes, between guards that are no valid index."""
        dtype = _INDEX_DTYPES[self.binding.index_dtype]
        array = torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.int64)).to(self.device, dtype)
        return self.kept(name, array, torch.iinfo(torch.int32).max)

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
            own = own.as_strided((own.shape[0] * own.shape[1], *own.shape[2:]), own.stride()[1:], own.storage_offset())
        as_bytes = self.binding.fp8 == "bytes" and is_fp8_dtype(own.dtype)
        return own.view(torch.uint8) if as_bytes else own
