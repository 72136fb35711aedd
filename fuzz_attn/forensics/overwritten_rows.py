"""Overwritten rows: those that a kernel stores which it must leave as they are, as they are right or padding."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.forensics.explanation import Finding, rows_of_case
from fuzz_attn.inputs.output_tensors import OutputTensor
from fuzz_attn.inputs.storage import bits_of
from fuzz_attn.properties.experiment import Experiment


def overwritten_rows(experiment: Experiment) -> Finding | None:
    """Return that a kernel stores rows that were right before it; None where none does, or the backend has no launches.

    ``out`` is compared before and behind each launch, so this takes one more call of the target.
    """
    expected = experiment.reference.get("out")
    if expected is None or expected.value.dim() != 3:
        return None
    launches = _states_of(experiment, lambda output: output.elements)
    states = [elements for _, elements in launches[1:]]
    right = [_right_rows(state.double(), expected.value, expected.bound) for state in states]
    for later in range(1, len(states)):
        lost = right[later - 1] & ~right[-1] & ~right[later]
        for row in rows_of_case(experiment.case):
            if lost[row.token, row.head]:
                first = next(number for number, rows in enumerate(right) if rows[row.token, row.head])
                which = f"query {row.query} of sequence {row.sequence}, head {row.head}"
                names = launches[first][0], launches[later][0]
                words = f"{which}: {names[0]} stores the right row, then {names[1]} overwrites it"
                return Finding("unwritten", words, cause=f"unwritten: {names[1]} overwrites rows of {names[0]}")
    return None


def writer_of_padding(experiment: Experiment) -> str:
    """Return the kernel that first stores rows of ``out`` behind the last token; empty where it is not known."""
    first = experiment.case.num_tokens

    def padding(output: OutputTensor) -> torch.Tensor:
        return bits_of(output.tensor).movedim(output.axes.index("token"), 0)[first:]

    launches = _states_of(experiment, padding)
    for (name, before), (_, after) in pairwise(launches):
        if not torch.equal(before, after):
            return name
    return ""


def _states_of(experiment: Experiment, seen: Callable[[OutputTensor], torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    """Return each kernel of a call with a part of ``out`` before it, and then that part as the call leaves it.

    The list is empty where the backend has no launches.
    """
    backend, launches = experiment.backend, list[tuple[str, torch.Tensor]]()
    if not isinstance(backend, SimulatorBackend):
        return launches
    tensors = experiment.again()
    output = tensors.outputs["out"]

    def launching(program: Any, bound: object, grid: object) -> None:
        launches.append((program.name, seen(output).clone()))

    with backend.watched(launching):
        experiment.launch_tensors(tensors)
    return [*launches, ("", seen(output).clone())]


def _right_rows(elements: torch.Tensor, value: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """Return bool ``[num_tokens, num_query_heads]``: rows whose elements are all within their bounds."""
    inside = ((elements - value).abs() <= bound) | bound.isinf() | (elements == value)
    return inside.all(dim=-1)
