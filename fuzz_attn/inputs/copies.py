"""Copies: the tensors of a case in memory of another device, and of all their memory for a later comparison."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from fuzz_attn.inputs.output_tensors import CallTensors, OutputTensor
from fuzz_attn.inputs.storage import storage_of

T = TypeVar("T", bound=CallTensors)


def copied(tensors: T, device: str) -> T:
    """Return copies of the tensors on a device, guards and padding included; what shared one memory still does.

    Not for tensors with a far axis or with pages that have no memory: all of their addresses would take some.
    """
    memory: dict[int, torch.Tensor] = {}
    return _each(tensors, lambda tensor: _copied(tensor, device, memory))


def with_outputs_of(tensors: T, launched: CallTensors) -> T:
    """Return the tensors with copies of the outputs of others, on their own device."""
    device = str(tensors.device)
    return tensors.with_outputs(**{name: _copied(each.tensor, device, {}) for name, each in launched.outputs.items()})


def without_gradients(tensors: T) -> T:
    """Return tensors over the same memory that require no gradients and belong to no graph."""
    return _each(tensors, torch.Tensor.detach)


def _each(tensors: T, change: Callable[[torch.Tensor], torch.Tensor]) -> T:
    """Return the same problem with each input and output changed."""
    changed: dict[str, Any] = {name: change(tensor) for name, tensor in tensors.inputs()}
    outputs = {name: _changed(output, change) for name, output in tensors.outputs.items()}
    return cast("T", cast(Any, dataclasses.replace)(tensors, **changed, outputs=outputs))


def _changed(output: OutputTensor, change: Callable[[torch.Tensor], torch.Tensor]) -> OutputTensor:
    """Return an output with its tensor, and those that say which of it is live, changed."""
    region = tuple(index if isinstance(index, slice) else change(index) for index in output.region)
    live = None if output.live is None else change(output.live)
    return dataclasses.replace(output, tensor=change(output.tensor), region=region, live=live)


def _copied(tensor: torch.Tensor, device: str, memory: dict[int, torch.Tensor]) -> torch.Tensor:
    """Return a view like a tensor of a copy of its memory, which ``memory`` keeps by the address of the first."""
    address = tensor.untyped_storage().data_ptr()
    if address not in memory:
        memory[address] = storage_of(tensor).to(device, copy=True)
    return memory[address].view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def snapshot_of(tensors: CallTensors, tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy, as bytes, of the memory that one of the tensors is a view of, without addresses that have none."""
    return tensors.memory_of(tensor).clone()


def still_holds(tensors: CallTensors, tensor: torch.Tensor, before: torch.Tensor) -> bool:
    """Return whether the memory of one of the tensors equals its snapshot, which may be on the host."""
    now = tensors.memory_of(tensor)
    return same_bytes(now.cpu() if before.is_cpu else now, before)


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors of bytes on one device are equal; on the host torch takes ten times as long."""
    if one.is_cpu:
        return one.numpy().tobytes() == other.numpy().tobytes()
    return torch.equal(one, other)
