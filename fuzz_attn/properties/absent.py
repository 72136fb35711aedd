"""Absent features: a feature that is on and does nothing gives what the same case without it gives.

Not bit for bit: a kernel compiled for the feature may round in other places, and be right. The launch with the feature
is held to its own error bound around the exact answer without it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from fuzz_attn.inputs.transforms import constant, in_float32
from fuzz_attn.oracle.reference import attend
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.comparisons import judged
from fuzz_attn.properties.experiment import Experiment

WIDEST: Final = 2**20
"""The widest window that a case may have."""


def wide_window(experiment: Experiment) -> Verdict:
    """Windows as long as the longest sequence, or longer, hide nothing."""
    longest = experiment.case.max_seq_len
    window = (longest, longest + 1, WIDEST)[experiment.case.seed % 3]
    return _with(experiment, "wide_window", f"a launch with a window of {window}", same=True, window=window)


def zero_slopes(experiment: Experiment) -> Verdict:
    """ALiBi slopes of 0 are no ALiBi."""
    heads = experiment.case.heads.num_query_heads
    slopes = constant(experiment.first.tensors, (heads,), 0.0)
    return _with(experiment, "zero_slopes", "a launch with ALiBi slopes of 0", alibi_slopes=slopes)


def zero_bias(experiment: Experiment) -> Verdict:
    """Query-query biases of 0 are no biases."""
    longest = experiment.case.max_query_len
    bias = constant(experiment.first.tensors, (longest, longest), 0.0)
    return _with(experiment, "zero_bias", "a launch with a query-query bias of 0", qq_bias=bias)


def absent_sinks(experiment: Experiment) -> Verdict:
    """Sinks of -inf are no sinks."""
    heads = experiment.case.heads.num_query_heads
    sinks = constant(experiment.first.tensors, (heads,), -float("inf"))
    return _with(experiment, "absent_sinks", "a launch with sinks of -inf", same=True, sinks=sinks)


def unit_scales(experiment: Experiment) -> Verdict:
    """Scales of 1 scale nothing: fp8 numbers are then what they are in float32, and other caches ignore the scales."""
    tensors = experiment.again()
    one = constant(tensors, (1,), 1.0)
    scaled = dataclasses.replace(
        tensors,
        q_scale=None if tensors.q_scale is None else one,
        k_scale=one,
        v_scale=one,
        out_scale=None if tensors.out_scale is None else one,
    )
    other, change = experiment.launch_tensors(scaled), "a launch with all scales 1"
    if 1 not in (each.itemsize for each in (tensors.query.dtype, tensors.kv_dtype, tensors.output.dtype)):
        exact = experiment.reference  # nothing is scaled: the problem is still the same
        return judged(experiment, "unit_scales", other, change, exact, own=exact)
    exact = attend(in_float32(other.tensors), experiment.target.rounding_model)
    return judged(experiment, "unit_scales", other, change, exact)


def _with(experiment: Experiment, name: str, change: str, *, same: bool = False, **feature: Any) -> Verdict:
    """Return whether a launch with the feature holds what the case does, within the bound of its own problem.

    With ``same`` that problem is the case's own to the oracle, which is not asked again.
    """
    other, exact = experiment.launch_tensors(dataclasses.replace(experiment.again(), **feature)), experiment.reference
    return judged(experiment, name, other, change, exact, own=exact if same else None)
