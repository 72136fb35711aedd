"""Launch properties: those that need no second launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuzz_attn.backends.backend import Observation
from fuzz_attn.inputs.copies import same_bytes
from fuzz_attn.inputs.storage import elements_in
from fuzz_attn.inputs.tensor_types import bits_of
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.experiment import Experiment


def oracle(experiment: Experiment) -> Verdict:
    """Every element of a live row was written and agrees with the oracle within its error bound."""
    return judge(experiment.first.tensors, experiment.reference)


def findings(experiment: Experiment) -> tuple[Verdict, ...]:
    """Return a failed verdict for each line where the sanitizers of the backend found something.

    No access leaves its tensor, no unwritten memory is read, no programs race and no index overflows.
    """
    sites: dict[str, list[Observation]] = {}
    for observation in experiment.first.observations:
        sites.setdefault(observation.site or observation.kind, []).append(observation)
    return tuple(_finding(observations) for observations in sites.values())


def _finding(observations: Sequence[Observation]) -> Verdict:
    first, more = observations[0], len(observations) - 1
    message = first.message + (f" (and {more} more findings there)" if more else "")
    return Verdict("sanitizers", first.kind, message, wrong=len(observations), site=first.site)


def nothing_else_written(experiment: Experiment) -> Verdict:
    """Only live rows are written: padded rows, and padding between rows and heads, keep their bits."""
    launch = experiment.first
    allowed = _with_live_rows_of(launch.tensors, launch.output_before)
    if same_bytes(allowed, launch.output_after):
        return Verdict("nothing_else_written")
    changed = allowed != launch.output_after
    outside = int(changed.sum())
    message = f"{outside} bytes of the output's memory that belong to no row were written"
    return Verdict("nothing_else_written", "written_outside", message, wrong=outside, elements=changed.numel())


def inputs_unchanged(experiment: Experiment) -> Verdict:
    """No input changes, and neither does its padding."""
    changed = experiment.changed_inputs
    if changed:
        return Verdict("inputs_unchanged", "input_changed", f"the launch changed its input {changed[0]}")
    return Verdict("inputs_unchanged")


def _with_live_rows_of(tensors: AttentionTensors, before: torch.Tensor) -> torch.Tensor:
    """Return the output's bytes from before the launch, with the rows that the target may write as they are now."""
    output = bits_of(tensors.output)
    memory = before.clone()
    rows = elements_in(memory, output)
    number, answered = sum(tensors.query_lens), tensors.answered_tokens
    if answered is None:
        rows[:number] = output[:number]
    else:
        rows[:number][answered] = output[:number][answered]
    return memory
