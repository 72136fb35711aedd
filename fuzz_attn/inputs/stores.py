"""Stores: where the keys and values of a batch lie, in pages of the caches or packed beside them."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import torch

from fuzz_attn.inputs.tensor_types import is_fp8_dtype
from fuzz_attn.inputs.tensors import AttentionTensors

Array: TypeAlias = np.typing.NDArray[Any]


class Store:
    """The keys and values of a batch, by sequence and position. Only it knows pages, layouts, scales and packed tokens.

    Indices come and go through numpy, whose calls cost least for a few numbers.
    """

    def __init__(self, tensors: AttentionTensors) -> None:
        self._tensors = tensors
        self._pages = tensors.block_table.cpu().numpy()
        self._starts = np.array([0, *accumulate(tensors.query_lens)])
        self._contexts = np.array(tensors.context_lens)

    def gather(self, sequence: Array, position: Array) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values ``[B, num_kv_heads, K, head_size]``, float64, as a kernel computes with them.

        ``position`` is ``[B, K]``, and ``sequence`` broadcasts to it. Stored fp8 is dequantised unless q is fp8 too.
        """
        tensors = self._tensors
        pages, slots = np.divmod(position, tensors.block_size)
        blocks = self._pages[sequence, pages].astype(np.int64)
        keys, values = self._cached(self._placed(blocks), self._placed(slots))
        if tensors.new_keys is not None and tensors.new_values is not None:
            new = position - self._contexts[sequence]
            packed = np.array(tensors.reads_packed)[sequence] & (new >= 0)
            tokens = self._placed((self._starts[sequence] + new)[packed])
            places = tuple(map(self._placed, packed.nonzero()))
            _put(keys, places, tensors.new_keys[tokens])
            _put(values, places, tensors.new_values[tokens])
        return keys, values

    def _placed(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(array).to(self._tensors.query.device)

    def _cached(self, block: torch.Tensor, slot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tensors, dtype = self._tensors, self._tensors.query.dtype
        keys, values = (
            stored.transpose(1, 2).contiguous()
            for stored in (tensors.keys_at(block, slot), tensors.values_at(block, slot))
        )
        return _dequantised(keys, tensors.k_scale, dtype), _dequantised(values, tensors.v_scale, dtype)


def _put(cached: torch.Tensor, places: tuple[torch.Tensor, ...], new: torch.Tensor) -> None:
    """Copy packed keys or values to their places ``[B, K]``."""
    cached.transpose(1, 2)[places] = new.double()


def _dequantised(stored: torch.Tensor, scale: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Return float64 values: fp8 times its scale, rounded to the type of q; fp8 as stored if q is fp8 too."""
    if not is_fp8_dtype(stored.dtype) or is_fp8_dtype(dtype):
        return stored.double()
    scaled = stored.float()
    if scale is not None:
        scaled *= scale
    return scaled.to(dtype).double()
