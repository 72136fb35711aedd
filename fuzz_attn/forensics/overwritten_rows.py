"""Overwritten rows: rows that one kernel of a call answers rightly, and a later one of the same call stores again."""

from __future__ import annotations

from typing import Any

import torch

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.forensics.explanation import Finding, rows_of_case
from fuzz_attn.properties.experiment import Experiment


def overwritten_rows(experiment: Experiment) -> Finding | None:
    """Return that a kernel stores rows that were right before it; None where none does, or the backend has no launches.

    ``out`` is compared before and behind each launch, so this takes one more call of the target.
    """
    backend = experiment.backend
    expected = experiment.reference.get("out")
    if not isinstance(backend, SimulatorBackend) or expected is None or expected.value.dim() != 3:
        return None
    tensors = experiment.again()
    output = tensors.outputs["out"]
    launches: list[tuple[str, torch.Tensor]] = []

    def launching(program: Any, bound: object, grid: object) -> None:
        launches.append((program.name, output.elements.clone()))

    with backend.watched(launching):
        experiment.launch_tensors(tensors)
    states = [*(elements for _, elements in launches[1:]), output.elements]
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


def _right_rows(elements: torch.Tensor, value: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """Return bool ``[num_tokens, num_query_heads]``: rows whose elements are all within their bounds."""
    inside = ((elements - value).abs() <= bound) | bound.isinf() | (elements == value)
    return inside.all(dim=-1)
