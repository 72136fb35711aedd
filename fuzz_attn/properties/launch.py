"""Launch properties: what the first launch answers by itself."""

from __future__ import annotations

import torch

from fuzz_attn.inputs.dtypes import bits_of
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.experiment import Experiment


def oracle(experiment: Experiment) -> Verdict:
    """Every element that a row owns agrees with the oracle within its bound, and was written."""
    return judge(experiment.first.tensors, experiment.reference)


def sanitizers(experiment: Experiment) -> Verdict:
    """Every access stays inside its tensor's own elements, nothing unwritten is read, no programs race, no index wraps.

    Holds where the backend has no sanitizers.
    """
    observations = experiment.first.observations
    if not observations:
        return Verdict("sanitizers")
    kind, message = observations[0]
    more = f" (and {len(observations) - 1} more findings)" if len(observations) > 1 else ""
    return Verdict("sanitizers", kind, f"{message}{more}", wrong=len(observations))


def nothing_else_written(experiment: Experiment) -> Verdict:
    """Nothing but live rows is written: padded rows, padding between rows and heads keep their bits."""
    launch = experiment.first
    allowed = _with_rows_of(launch.tensors, launch.output_before)
    if allowed.equal(launch.output_after):
        return Verdict("nothing_else_written")
    changed = allowed != launch.output_after
    outside = int(changed.sum())
    message = f"{outside} bytes of the output's memory that belong to no row were written"
    return Verdict("nothing_else_written", "written_outside", message, wrong=outside, elements=changed.numel())


def inputs_unchanged(experiment: Experiment) -> Verdict:
    """No input changes, its padding included."""
    changed = experiment.changed_inputs
    if changed:
        return Verdict("inputs_unchanged", "input_changed", f"the launch changed its input {changed[0]}")
    return Verdict("inputs_unchanged")


def _with_rows_of(tensors: AttentionTensors, before: torch.Tensor) -> torch.Tensor:
    """Return the bytes that were in the output's memory, with the rows that the target owns as they are now."""
    output = bits_of(tensors.output)
    memory = before.clone()
    rows = memory.view(output.dtype).as_strided(output.shape, output.stride(), output.storage_offset())
    number, answered = sum(tensors.query_lens), tensors.answered_tokens
    if answered is None:
        rows[:number] = output[:number]
    else:
        rows[:number][answered] = output[:number][answered]
    return memory
