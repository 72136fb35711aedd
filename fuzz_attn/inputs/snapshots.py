"""Snapshots: copies of the memory of tensors, guards and padding included, for a later comparison."""

from __future__ import annotations

import ctypes
from typing import Final, TypeAlias

import torch

from fuzz_attn.inputs.tensors import storage_bytes

Snapshot: TypeAlias = bytes | torch.Tensor
"""A copy of the whole memory that a tensor is a view of: bytes on the host, a tensor of bytes on a device."""

_MEMCMP: Final = ctypes.CDLL(None).memcmp
"""The C library compares memory with bytes without a second copy."""
_MEMCMP.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)


def snapshot_of(tensor: torch.Tensor, void: int = 0) -> Snapshot:
    """Return a snapshot of a tensor's memory without its first ``void`` bytes, which are addresses without memory.

    On the host it is plain bytes, since torch takes several times as long to copy them.
    """
    if tensor.device.type != "cpu":
        return storage_bytes(tensor)[void:].clone()
    storage = tensor.untyped_storage()
    return ctypes.string_at(storage.data_ptr() + void, storage.nbytes() - void)


def still_holds(tensor: torch.Tensor, before: Snapshot, void: int = 0) -> bool:
    """Return whether a tensor's memory, without its first ``void`` bytes, equals the snapshot."""
    if isinstance(before, bytes):
        storage = tensor.untyped_storage()
        if storage.nbytes() - void != len(before):
            return False
        same: bool = _MEMCMP(before, storage.data_ptr() + void, len(before)) == 0
        return same
    return torch.equal(storage_bytes(tensor)[void:], before)
