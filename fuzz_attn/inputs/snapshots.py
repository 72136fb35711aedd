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
    if before.is_cpu:  # torch takes ten times as long to compare bytes
        now = now.cpu()
        return now.numpy().tobytes() == before.numpy().tobytes()
    return torch.equal(now, before)
