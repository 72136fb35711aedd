"""Output tensors: what a target writes and which of its elements, the base of all tensors of a call, and copies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self, TypeVar, cast

import torch

from fuzz_attn.case.parts import LaunchHints
from fuzz_attn.inputs.storage import bits_of, storage_bytes, storage_of, with_rows

T = TypeVar("T", bound="CallTensors")


@dataclass(frozen=True)
class OutputTensor:
    """A tensor that a target writes, full of ``poison`` before that: the bits of an element not yet written.

    The problem has results for a ``region`` of it, given as torch's indexing takes it: slices, or indices of a
    scattered place such as the slots of a cache. ``axes`` are the names of the region's axes; the judge tells rows by
    ``token``, ``head`` and ``column``. Indices name no element twice. A target must write what of the region is
    ``live``, bool that broadcasts to it, or None for everything. All other elements must keep their bits.
    """

    tensor: torch.Tensor
    poison: int
    region: tuple[slice | torch.Tensor, ...] = ()
    live: torch.Tensor | None = None
    axes: tuple[str, ...] = ("token", "head", "column")

    @property
    def bits(self) -> torch.Tensor:
        """The region as integers of the elements' size."""
        return bits_of(self.tensor)[self.region]

    @property
    def elements(self) -> torch.Tensor:
        """The region, of any values where it is not live."""
        return self.bits.view(self.tensor.dtype)

    @property
    def unwritten(self) -> torch.Tensor:
        """Bool, whether each element of the region still has the bits of the poison."""
        width = 8 * self.tensor.dtype.itemsize
        signed = self.poison - (1 << width) if width > 8 and self.poison >> (width - 1) else self.poison
        return self.bits == signed

    def copy_live(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy the live elements from one tensor of this one's shape to another; both are integers of the elements."""
        given = source[self.region]
        target[self.region] = given if self.live is None else torch.where(self.live, given, target[self.region])

    def arranged(self, tokens: torch.Tensor, rows: int) -> OutputTensor:
        """Return the output, not yet written, for the tokens with these indices only, in this order.

        A tensor with a row for each token gets so many rows; any other one has room for all tokens and stays.
        """
        if "token" not in self.axes:
            return self
        axis = self.axes.index("token")
        live = self.live if self.live is None or self.live.shape[axis] == 1 else self.live.index_select(axis, tokens)
        if any(isinstance(index, torch.Tensor) for index in self.region):
            places = (index[tokens] if isinstance(index, torch.Tensor) else index for index in self.region)
            return dataclasses.replace(self, region=tuple(places), live=live)
        region = (*self.region[:axis], slice(0, len(tokens)), *self.region[axis + 1 :])
        tensor = self.tensor if axis else with_rows(self.tensor, bits_of(self.tensor)[:0], rows)
        return dataclasses.replace(self, tensor=tensor, region=region, live=live)


class CallTensors:
    """What one call of an operation reads and writes: the base of a dataclass with a field for each tensor."""

    outputs: dict[str, OutputTensor]
    launch: LaunchHints

    def inputs(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the name and tensor of everything that the call must not change."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return next(self.inputs())[1].device

    def void_before(self, tensor: torch.Tensor) -> int:
        """Return how many bytes at the start of the storage of one of these tensors, or of its view, have no memory."""
        return 0

    def memory_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the memory that one of these tensors is a view of, as uint8, without addresses that have none."""
        void = self.void_before(tensor)
        return storage_of(tensor)[void:] if void else storage_bytes(tensor)

    def output_words(self, name: str) -> str:
        """Return an output in words, by its name if there are several."""
        return "the output" if len(self.outputs) == 1 else f"the output {name}"

    def with_outputs(self, **tensors: torch.Tensor) -> Self:
        """Return the same problem with other tensors in place of some outputs."""
        changed = {name: dataclasses.replace(self.outputs[name], tensor=tensor) for name, tensor in tensors.items()}
        return cast("Self", cast(Any, dataclasses.replace)(self, outputs=self.outputs | changed))


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
