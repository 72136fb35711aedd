"""Absent features: a feature that is switched on without effect gives what the same case gives without it.

The bits may differ, because a kernel compiled for the feature may round elsewhere. So the launch with the feature is
compared with the exact answer without it, within its own error bound. Each function has the name of its relation in the
registry and returns the comparison to make.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from fuzz_attn.case.attention_case import replace
from fuzz_attn.case.recipes import Custom
from fuzz_attn.inputs.tensors import custom_mask_of
from fuzz_attn.inputs.transforms import constant, in_float32
from fuzz_attn.oracle.reference import attend
from fuzz_attn.properties.comparisons import Comparison, WithinBound
from fuzz_attn.properties.experiment import Experiment

WIDEST: Final = 2**20
"""The widest window that a case may have."""


def wide_window(experiment: Experiment) -> Comparison:
    """Launch with a window that is at least as long as the longest sequence, and as its query tokens.

    Where rows count from the first key, the last of more query tokens than keys stands behind the last key.
    """
    longest = max(experiment.case.max_seq_len, experiment.case.max_query_len)
    window = (longest, longest + 1, WIDEST)[experiment.case.seed % 3]
    return _with(experiment, f"a launch with a window of {window}", same_bound=True, window=window)


def zero_slopes(experiment: Experiment) -> Comparison:
    """Launch with ALiBi slopes of 0."""
    heads = experiment.case.heads.num_query_heads
    slopes = constant(experiment.first.tensors, (heads,), 0.0)
    return _with(experiment, "a launch with ALiBi slopes of 0", alibi_slopes=slopes)


def zero_bias(experiment: Experiment) -> Comparison:
    """Launch with query-query biases of 0."""
    longest = experiment.case.max_query_len
    bias = constant(experiment.first.tensors, (longest, longest), 0.0)
    return _with(experiment, "a launch with a query-query bias of 0", qq_bias=bias)


def absent_sinks(experiment: Experiment) -> Comparison:
    """Launch with sinks of -inf."""
    heads = experiment.case.heads.num_query_heads
    sinks = constant(experiment.first.tensors, (heads,), -float("inf"))
    return _with(experiment, "a launch with sinks of -inf", same_bound=True, sinks=sinks)


def causal_bits(experiment: Experiment) -> Comparison:
    """Launch with a custom mask in place of the causal one that has its bits."""
    case = replace(experiment.case, mask=Custom("bottom_right", causal=False))
    bits = custom_mask_of(case, str(experiment.first.tensors.query.device))
    change = "a launch with the bits of the causal mask as a custom one"
    return _with(experiment, change, same_bound=True, mask=case.mask, custom_mask=bits)


def unit_scales(experiment: Experiment) -> Comparison:
    """Launch with all scales 1: fp8 numbers then stand for themselves, and other types ignore the scales."""
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
        exact = experiment.reference  # without fp8 nothing is scaled, and the problem is the same
        return WithinBound(other, change, exact, own=exact)
    return WithinBound(other, change, attend(in_float32(other.tensors), experiment.target.rounding_model))


def _with(experiment: Experiment, change: str, *, same_bound: bool = False, **feature: Any) -> Comparison:
    """Launch with a feature. With ``same_bound`` the oracle computes the same for both problems."""
    other, exact = experiment.launch_tensors(dataclasses.replace(experiment.again(), **feature)), experiment.reference
    return WithinBound(other, change, exact, own=exact if same_bound else None)
