"""Launch properties: what the first launch answers by itself."""

from __future__ import annotations

import torch

from fuzz_attn.experiment import Experiment
from fuzz_attn.judge import judge
from fuzz_attn.tensors import AttentionTensors
from fuzz_attn.verdict import Verdict


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
    changed = launch.output_before != launch.output_after
    changed.masked_fill_(_owned_bytes(launch.tensors), value=False)
    if not bool(changed.any()):
        return Verdict("nothing_else_written")
    outside = int(changed.sum())
    message = f"{outside} bytes of the output's memory that belong to no row were written"
    return Verdict("nothing_else_written", "written_outside", message, wrong=outside, elements=changed.numel())


def inputs_unchanged(experiment: Experiment) -> Verdict:
    """No input changes, its padding included."""
    changed = experiment.changed_inputs
    if changed:
        return Verdict("inputs_unchanged", "input_changed", f"the launch changed its input {changed[0]}")
    return Verdict("inputs_unchanged")


def _owned_bytes(tensors: AttentionTensors) -> torch.Tensor:
    """Return which bytes of the output's memory belong to a row of a sequence."""
    output = tensors.output
    owned = torch.zeros(output.untyped_storage().nbytes(), dtype=torch.bool, device=output.device)
    elements = owned.view(-1, output.element_size())
    index = elements.as_strided(
        (*output.shape, output.element_size()),
        (*(stride * output.element_size() for stride in output.stride()), 1),
        output.storage_offset() * output.element_size(),
    )
    answered = tensors.answered_tokens
    index[: sum(tensors.query_lens)] = True if answered is None else answered[:, None, None, None]
    return owned
