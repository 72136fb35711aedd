"""Snapshots: what the memory of tensors holds, guards and padding included, to be compared with later."""

from __future__ import annotations

import torch

from fuzz_attn.inputs.tensors import storage_bytes


def snapshot_of(tensor: torch.Tensor, void: int = 0) -> torch.Tensor:
    """Return a copy, as bytes, of the whole memory that a tensor is a view of.

    The first ``void`` bytes of it are no memory and left out.
    """
    return storage_bytes(tensor)[void:].clone()


def still_holds(tensor: torch.Tensor, before: torch.Tensor, void: int = 0) -> bool:
    """Return whether a tensor's memory is what it was, but for the first ``void`` bytes."""
    return torch.equal(storage_bytes(tensor)[void:], before)
