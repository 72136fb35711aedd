"""Output tensors: what a target writes and which of its elements, and the base of all tensors of a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self, cast

import torch

from fuzz_attn.case.parts import LaunchHints
from fuzz_attn.inputs.storage import storage_bytes, storage_of, with_rows
from fuzz_attn.inputs.tensor_types import bits_of


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
