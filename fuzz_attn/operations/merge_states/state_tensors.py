"""State tensors: what a merge reads and writes, made from a case, the same bits on every machine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from fuzz_attn.case.parts import LaunchHints
from fuzz_attn.case.visibility import Visibility
from fuzz_attn.inputs.output_tensors import CallTensors, OutputTensor
from fuzz_attn.inputs.random_bits import Stream
from fuzz_attn.inputs.storage import (
    TORCH_DTYPES,
    bits_dtype,
    output_poison,
    poisoned,
    rounded,
    slot_poison,
    strided,
    tensors_over,
)
from fuzz_attn.operations.merge_states.state_case import StateCase, StateType
from fuzz_attn.operations.small_tensors import with_far_axis

_LSES, _OUTPUTS, _EMPTY, _ROWS = 61, 62, 63, 64
"""The streams of random numbers."""
BASES: Final = {"e": math.e, "2": 2.0}
EMPTY: Final = -np.inf
"""The LSE of a state, or of a merged row, that saw no key."""


@dataclass(frozen=True)
class StateTensors(CallTensors):
    """The states of all rows, and the outputs ``out`` and ``lse`` of the merge.

    ``partial_outputs`` is ``[num_states, num_tokens, num_heads, head_size]``, ``partial_lses`` is float32
    ``[num_states, num_tokens, num_heads]``. ``out`` is ``[num_tokens or more, num_heads, head_size]`` in their type,
    and ``lse`` float32 ``[num_tokens or more, num_heads]``. LSEs are logarithms of ``base``. To the judge all rows are
    one sequence.
    """

    partial_outputs: torch.Tensor
    partial_lses: torch.Tensor
    outputs: dict[str, OutputTensor]
    query_lens: tuple[int, ...] = (1,)
    context_lens: tuple[int, ...] = (0,)
    base: float = math.e
    visibility: Visibility = field(default_factory=Visibility)
    launch: LaunchHints = field(default_factory=LaunchHints)

    def inputs(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the name and tensor of everything that a merge must not change."""
        yield "partial_outputs", self.partial_outputs
        yield "partial_lses", self.partial_lses


def empty_of(case: StateCase) -> npt.NDArray[np.bool_]:
    """Return which states saw no key, ``[num_states, num_tokens, num_heads]``."""
    shape = case.num_states, case.num_tokens, case.num_heads
    empty = np.zeros(shape, np.bool_)
    if case.empty_states:
        empty |= Stream(case.seed, _EMPTY).below(4, *shape) == 0
        kept = np.arange(case.num_tokens * case.num_heads).reshape(shape[1:]) % case.num_states
        np.put_along_axis(empty, kept[None], False, 0)
    if case.empty_rows:
        rows = Stream(case.seed, _ROWS).below(3, *shape[1:]) == 0
        rows.flat[0] = True
        empty |= rows
    return empty


def materialise(case: StateCase, device: str = "cpu", *, reverse: bool = False) -> StateTensors:
    """Return the tensors of a case, with the states in the reverse order on demand."""
    shape = case.num_states, case.num_tokens, case.num_heads
    empty = empty_of(case)
    lses = np.float32(case.lse_offset) + np.float32(case.lse_spread) * Stream(case.seed, _LSES).normals(*shape)
    lses = np.where(empty, np.float32(EMPTY), lses)
    bits = rounded(Stream(case.seed, _OUTPUTS).normals(*shape, case.head_size), case.dtype)
    bits = np.where(empty[..., None], bits.dtype.type(slot_poison(case.dtype, case.poison)), bits)
    if reverse:
        bits, lses = bits[::-1], lses[::-1]
    memory, view = _memory((*shape, case.head_size), case.gap, case.dtype, slot_poison(case.dtype, "nan"))
    view[...] = bits
    sums, sums_view = _memory(shape, 0, "float32", slot_poison("float32", "nan"))
    sums_view[...] = np.ascontiguousarray(lses).view(np.uint32)
    outputs = tensors_over(memory, (view,), TORCH_DTYPES[case.dtype], device)[0]
    near_sums = tensors_over(sums, (sums_view,), torch.float32, device)[0]
    return StateTensors(
        partial_outputs=with_far_axis(case, outputs, "partial_outputs", ("state", "token", "head")),
        partial_lses=with_far_axis(case, near_sums, "partial_lses", ("state", "token", "head")),
        outputs=outputs_of(case, device),
        base=BASES[case.base],
        query_lens=(case.num_tokens,),
    )


def outputs_of(case: StateCase, device: str, variant: int = 0) -> dict[str, OutputTensor]:
    """Return the poisoned outputs of a case; ``variant`` 1 has the other poison."""
    rows = case.num_tokens + case.padded_tokens
    shapes: dict[str, tuple[tuple[int, ...], int, StateType]] = {
        "out": ((rows, case.num_heads, case.head_size), case.gap, case.dtype),
        "lse": ((rows, case.num_heads), 0, "float32"),
    }
    found = {}
    for name, (shape, gap, dtype) in shapes.items():
        poison = output_poison(dtype, variant)
        memory, view = _memory(shape, gap, dtype, poison)
        near = tensors_over(memory, (view,), TORCH_DTYPES[dtype], device)[0]
        tensor = with_far_axis(case, near, name, ("token", "head"))
        axes = ("token", "head", "column")[: len(shape)]
        found[name] = OutputTensor(tensor, poison, (slice(0, case.num_tokens),), None, axes)
    return found


def _memory(
    shape: tuple[int, ...], gap: int, dtype: StateType, poison: int
) -> tuple[npt.NDArray[np.unsignedinteger], npt.NDArray[np.unsignedinteger]]:
    """Return poisoned memory for a tensor whose last axis has ``gap`` elements behind it, and the view of it."""
    memory = poisoned((*shape[:-1], shape[-1] + gap), bits_dtype(dtype), poison)
    return memory, strided(memory, shape, tuple(stride // memory.itemsize for stride in memory.strides))
