"""Snapshots: copies of the memory of tensors, guards and padding included, for a later comparison."""

from __future__ import annotations

import torch

from fuzz_attn.inputs.tensors import AttentionTensors


def snapshot_of(tensors: AttentionTensors, tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy, as bytes, of the memory that one of the tensors is a view of, without addresses that have none."""
    return tensors.memory_of(tensor).clone()


def still_holds(tensors: AttentionTensors, tensor: torch.Tensor, before: torch.Tensor) -> bool:
    """Return whether the memory of one of the tensors equals its snapshot, which may be on the host."""
    now = tensors.memory_of(tensor)
    return same_bytes(now.cpu() if before.is_cpu else now, before)


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors of bytes on one device are equal; on the host torch takes ten times as long."""
    if one.is_cpu:
        return one.numpy().tobytes() == other.numpy().tobytes()
    return torch.equal(one, other)
