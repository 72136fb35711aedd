"""Snapshots: copies of the memory of tensors, guards and padding included, for a later comparison."""

from __future__ import annotations

import torch

from fuzz_attn.inputs.tensors import storage_bytes


def snapshot_of(tensor: torch.Tensor, void: int = 0) -> torch.Tensor:
    """Return a copy, as bytes, of the whole memory that a tensor is a view of.

    It leaves out the first ``void`` bytes, which are addresses without memory.
    """
    return storage_bytes(tensor)[void:].clone()


def still_holds(tensor: torch.Tensor, before: torch.Tensor, void: int = 0) -> bool:
    """Return whether a tensor's memory, without its first ``void`` bytes, equals the snapshot."""
    now = storage_bytes(tensor)[void:]
    if now.device.type == "cpu":  # torch takes ten times as long to compare bytes
        return now.numpy().tobytes() == before.numpy().tobytes()
    return torch.equal(now, before)
