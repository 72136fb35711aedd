"""Expectations: what the output of a recorded call must be, as tensors that a script compares with."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

import torch

from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.export.recorded_calls import Call, RecordedExperiment
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.reference import Reference
from fuzz_attn.properties.check import comparison_of
from fuzz_attn.properties.comparisons import SameBits, reference_of
from fuzz_attn.properties.value_range import nearest_inside

LARGEST: Final = torch.finfo(torch.float64).max
"""The bound of a row that the oracle cannot judge: any finite element is right there."""


@dataclass(frozen=True)
class WithinBound:
    """Each element lies within its bound: infinite for anything, NaN for a row that the target leaves as it was."""

    expected: torch.Tensor
    bound: torch.Tensor


@dataclass(frozen=True)
class SameRows:
    """The rows have the bits of the first call's rows, of those with these indices if there are any."""

    tokens: tuple[int, ...] | None
    live: tuple[bool, ...]


@dataclass(frozen=True)
class Expected:
    """A call, what its output must be, and in words how the call differs from the first."""

    call: Call
    output: WithinBound | SameRows
    change: str = ""


def expectations(experiment: RecordedExperiment, property_name: str, relation: str | None) -> list[Expected]:
    """Return the first call of an experiment and, for a relation, the second, each with what its output must be."""
    if property_name == "few_values":
        raise FuzzAttnError(
            "property='few_values' cannot be exported: its second launch depends on the output of the first; "
            "replay the counterexample instead"
        )
    first = experiment.first.tensors
    reference = _value_range(experiment) if property_name == "value_range" else experiment.reference
    found = [Expected(experiment.calls[0], _within(reference, first))]
    if relation is None:
        return found
    comparison = comparison_of(relation, experiment)
    tensors = comparison.launch.tensors
    call = next(call for call in experiment.calls if call.tensors is tensors)
    if isinstance(comparison, SameBits):
        rows = None if comparison.tokens is None else tuple(comparison.tokens.tolist())
        return [*found, Expected(call, SameRows(rows, tuple(_live(tensors).tolist())), comparison.change)]
    return [*found, Expected(call, _within(reference_of(comparison, experiment), tensors), comparison.change)]


def _live(tensors: AttentionTensors) -> torch.Tensor:
    """Return bool ``[num_tokens]``, whether the target writes the token's rows."""
    answered = tensors.answered_tokens
    return torch.ones(sum(tensors.query_lens), dtype=torch.bool) if answered is None else answered


def _within(reference: Reference, tensors: AttentionTensors) -> WithinBound:
    bound = reference.bound.clone()
    bound[reference.ill_conditioned[..., None] & bound.isfinite()] = LARGEST
    bound[~_live(tensors)] = torch.nan
    return WithinBound(reference.expected.clone(), bound)


def _value_range(experiment: RecordedExperiment) -> Reference:
    """Return the middle of the values that each row sees, and as bound how far an output may lie from it."""
    tensors, known = experiment.first.tensors, experiment.reference
    info = torch.finfo(tensors.output.dtype)
    low, high = (
        nearest_inside(
            experiment.blocks,
            dataclasses.replace(tensors, output=torch.full_like(tensors.output, end)),
            known,
            experiment.target.rounding_model,
        )
        for end in (info.min, info.max)
    )
    middle = (low.expected + high.expected) / 2
    reach = (high.expected - low.expected) / 2 + torch.maximum(low.bound, high.bound)
    return Reference(middle, reach, known.ill_conditioned & False)
