"""Recorded calls: the calls of a case, what the outputs of each must be, and the file of their large tensors."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch

from fuzz_attn.backends.backend import Backend
from fuzz_attn.backends.poisoned_scratch import PoisonedScratch
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.operations.calls.call_case import Call as PartOfSequence
from fuzz_attn.operations.calls.call_case import CallSequence, in_words
from fuzz_attn.operations.registry import AnyCase
from fuzz_attn.oracle.reference import Expected, Reference
from fuzz_attn.properties.check import comparison_of
from fuzz_attn.properties.comparisons import SameBits, reference_of
from fuzz_attn.properties.experiment import Experiment, Launch, memory_of_outputs
from fuzz_attn.properties.launch_properties import nearest_inside
from fuzz_attn.targets.target import Target


def write_safetensors(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    """Write tensors by name: their type as the format calls it, shape and bytes."""
    header, end = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the bytes to 8
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values()))


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

    ``written`` names the argument of each output that is one, ``returned`` the outputs that the call returns, in order.
    ``inputs`` are the blocks that the call must not change.
    """

    target: Target
    tensors: AttentionTensors
    arguments: dict[str, object]
    blocks: dict[str, Block]
    written: dict[str, str]
    returned: tuple[str, ...]
    inputs: tuple[str, ...]


class RecordedExperiment(Experiment):
    """An experiment whose launches call nothing: the calls that it would make are in ``calls``."""

    def __init__(self, case: AnyCase, target: Target, backend: Backend, calls: list[Call] | None = None) -> None:
        super().__init__(case, target, backend)
        self.calls: list[Call] = [] if calls is None else calls

    def with_target(self, case: AnyCase, target: Target) -> RecordedExperiment:
        """Return an experiment that records its calls in the same list."""
        return RecordedExperiment(case, target, self.backend, self.calls)

    def launch_tensors(self, tensors: AttentionTensors, dead: torch.Tensor | None = None) -> Launch:
        """Record the call; the outputs stay as they are."""
        self.calls.append(recorded(self.target, tensors))
        return Launch(tensors, {name: memory.clone() for name, memory in memory_of_outputs(tensors).items()})


def recorded(target: Target, tensors: AttentionTensors) -> Call:
    """Return the call of a target on tensors; memory that a binding leaves uninitialised holds poison."""
    with PoisonedScratch():
        call = target.call_on(tensors)
    arguments: dict[str, object] = {}
    names: dict[int, str] = {}
    blocks: dict[str, Block] = {}
    kept = [tensor for _, tensor in tensors.inputs()] + [copy.tensor for copy in call.problem.copies]
    known = {tensor.untyped_storage().data_ptr() for tensor in kept}
    inputs = []
    written: dict[str, str] = {}
    for name, value in call.arguments.items():
        if not isinstance(value, torch.Tensor):
            arguments[name] = value
            continue
        block = names.setdefault(value.untyped_storage().data_ptr(), name)
        blocks[block] = _block(tensors, value, blocks.get(block))
        arguments[name] = _view(block, value, tensors)
        written |= {output: name for output, each in tensors.outputs.items() if value is each.tensor}
        inputs += [block] * (value.untyped_storage().data_ptr() in known and block not in inputs)
    return Call(target, tensors, arguments, blocks, written, call.problem.binding.returned, tuple(inputs))


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


LARGEST: Final = torch.finfo(torch.float64).max
"""The bound of a row that the oracle cannot judge: any finite element is right there."""


@dataclass(frozen=True)
class WithinBound:
    """Each element lies within its bound: infinite for anything, NaN for one that the target leaves as it was."""

    value: torch.Tensor
    bound: torch.Tensor


@dataclass(frozen=True)
class SameRows:
    """The elements have the bits of the first call's, of those of the tokens with these indices if there are any."""

    tokens: tuple[int, ...] | None


@dataclass(frozen=True)
class Expectation:
    """A call, what its outputs must be, and in words how the call differs from the first or from those before it.

    One of a sequence of calls has a ``part``: what memory it gets, and whether it raises or runs in a second thread.
    """

    call: Call
    outputs: dict[str, WithinBound | SameRows]
    change: str = ""
    part: PartOfSequence | None = None


def expectations(experiment: RecordedExperiment, property_name: str, relation: str | None) -> list[Expectation]:
    """Return the first call of an experiment and, for a relation, the second, each with what its outputs must be."""
    if property_name == "few_values":
        raise FuzzAttnError(
            "property='few_values' cannot be exported: its second launch depends on the output of the first; "
            "replay the counterexample instead"
        )
    first = experiment.first.tensors
    reference = _value_range(experiment) if property_name == "value_range" else experiment.reference
    found = [Expectation(experiment.calls[0], _within(reference, first))]
    if relation is None:
        return found
    comparison = comparison_of(relation, experiment)
    tensors = comparison.launch.tensors
    call = next(call for call in experiment.calls if call.tensors is tensors)
    if isinstance(comparison, SameBits):
        rows = None if comparison.tokens is None else tuple(comparison.tokens.tolist())
        return [*found, Expectation(call, dict.fromkeys(tensors.outputs, SameRows(rows)), comparison.change)]
    return [*found, Expectation(call, _within(reference_of(comparison, experiment), tensors), comparison.change)]


def expectations_of_calls(sequence: CallSequence, target: Target, backend: Backend) -> list[Expectation]:
    """Return each call of a sequence; one that must raise has no outputs."""
    found = []
    for number, each in enumerate(sequence.calls):
        experiment = RecordedExperiment(each.case, target, backend)
        tensors = experiment.first.tensors
        outputs = {} if each.raises else _within(experiment.reference, tensors)
        found.append(Expectation(experiment.calls[0], outputs, in_words(sequence, number), each))
    return found


def _within(reference: Reference, tensors: AttentionTensors) -> dict[str, WithinBound | SameRows]:
    found: dict[str, WithinBound | SameRows] = {}
    for name, expected in reference.items():
        live = tensors.outputs[name].live
        bound = expected.bound.masked_fill(~expected.judged & expected.bound.isfinite(), LARGEST)
        bound = bound if live is None else bound.masked_fill(~live, torch.nan)
        found[name] = WithinBound(expected.value.clone(), bound)
    return found


def _value_range(experiment: RecordedExperiment) -> Reference:
    """Return the middle of the values that each row sees, and as bound how far an output may lie from it."""
    tensors, known = experiment.first.tensors, experiment.reference["out"]
    info = torch.finfo(tensors.output.dtype)
    low, high = (
        nearest_inside(
            experiment.blocks,
            tensors.with_outputs(out=torch.full_like(tensors.output, end)),
            known,
            experiment.target.rounding_model,
        )
        for end in (info.min, info.max)
    )
    middle = (low.value + high.value) / 2
    reach = (high.value - low.value) / 2 + torch.maximum(low.bound, high.bound)
    return {"out": Expected(middle, reach, torch.ones_like(known.judged))}
