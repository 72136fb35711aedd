"""Recorded calls: the calls of a case as plain data, without calling the target."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fuzz_attn.backends.backend import Backend
from fuzz_attn.backends.scratch import PoisonedScratch
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.inputs.tensors import AttentionTensors, storage_bytes
from fuzz_attn.properties.experiment import Experiment, Launch
from fuzz_attn.targets.target import Target


@dataclass(frozen=True)
class View:
    """A tensor argument: its block of memory, type, shape, strides and offset, in elements, and a copy to print."""

    block: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    content: torch.Tensor


@dataclass(frozen=True)
class Block:
    """The memory of one or more tensors: its bytes, and how many bytes of addresses without memory lie before them.

    ``first`` and ``last`` are the first byte and the end of the bytes that the tensors use. Where only ``pieces`` of
    the memory exist, one after the other in the data, ``stride`` is the number of bytes from one to the next; else 0.
    """

    data: bytes
    void: int
    first: int
    last: int
    pieces: int
    stride: int


@dataclass(frozen=True)
class Call:
    """A call of a target: its arguments by keyword, and the memory of those that are tensors.

    ``output`` is the name of the output's argument, empty where the call returns the output. ``inputs`` are the blocks
    that the call must not change.
    """

    target: Target
    tensors: AttentionTensors
    arguments: dict[str, object]
    blocks: dict[str, Block]
    output: str
    inputs: tuple[str, ...]


class RecordedExperiment(Experiment):
    """An experiment whose launches call nothing: the calls that it would make are in ``calls``."""

    def __init__(self, case: AttentionCase, target: Target, backend: Backend, calls: list[Call] | None = None) -> None:
        super().__init__(case, target, backend)
        self.calls: list[Call] = [] if calls is None else calls

    def with_target(self, case: AttentionCase, target: Target) -> RecordedExperiment:
        """Return an experiment that records its calls in the same list."""
        return RecordedExperiment(case, target, self.backend, self.calls)

    def launch_tensors(self, tensors: AttentionTensors, dead: torch.Tensor | None = None) -> Launch:
        """Record the call; the output stays as it is."""
        self.calls.append(recorded(self.target, tensors))
        return Launch(tensors, storage_bytes(tensors.output).clone())


def recorded(target: Target, tensors: AttentionTensors) -> Call:
    """Return the call of a target on tensors; memory that a binding leaves uninitialised holds poison."""
    with PoisonedScratch():
        call = target.call_on(tensors)
    arguments: dict[str, object] = {}
    names: dict[int, str] = {}
    blocks: dict[str, Block] = {}
    kept = [tensor for _, tensor in tensors.inputs()] + [copy.tensor for copy in call.problem.copies]
    known = {tensor.untyped_storage().data_ptr() for tensor in kept}
    inputs, output = [], ""
    for name, value in call.arguments.items():
        if not isinstance(value, torch.Tensor):
            arguments[name] = value
            continue
        block = names.setdefault(value.untyped_storage().data_ptr(), name)
        blocks[block] = _block(tensors, value, blocks.get(block))
        arguments[name] = _view(block, value, tensors)
        output = name if value is tensors.output else output
        inputs += [block] * (value.untyped_storage().data_ptr() in known and block not in inputs)
    return Call(target, tensors, arguments, blocks, output, tuple(inputs))


def _view(block: str, tensor: torch.Tensor, tensors: AttentionTensors) -> View:
    near = tensor if not tensors.void_before(tensor) else tensor[:0]
    return View(block, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), near.clone())


def _block(tensors: AttentionTensors, tensor: torch.Tensor, known: Block | None) -> Block:
    """Return the memory of a tensor, or the known block of its memory with the bytes that this tensor uses too."""
    size = tensor.element_size()
    first = int(tensor.storage_offset()) * size
    reach = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    last = first + (reach + 1) * size if tensor.numel() else first
    if known is not None:
        return replace(known, first=min(known.first, first), last=max(known.last, last))
    memory = tensors.memory_of(tensor)
    pieces, stride = (memory.shape[0], memory.stride(0)) if memory.dim() > 1 else (1, 0)
    return Block(memory.numpy().tobytes(), tensors.void_before(tensor), first, last, pieces, stride)
