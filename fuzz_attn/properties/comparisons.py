"""Comparisons: what the second launch of a relation must give, and the verdict on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec
import torch

from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.reference import Expected, Reference, attend
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.oracle.verdict import Kind, Verdict
from fuzz_attn.properties.experiment import Experiment, Launch

SECOND_LAUNCH: Final = "a second launch on the same input"
"""The change of the relation ``determinism``, in words."""

FLOAT64: Final = 2.0**-28
"""What the answer to the other problem has lost in float64, relative to that problem's bound. The bound counts the
same operations with units of 2^-24, where float64 has units of 2^-53; the rest is for its exponential."""


@dataclass(frozen=True)
class SameBits:
    """A launch that must give the bits of the experiment's first one.

    ``change`` describes the launch in a message. ``kind`` is the verdict's where the bits differ. ``tokens[i]`` is the
    row of the first launch that belongs to row ``i`` of this one; None if the rows are the same.
    """

    launch: Launch
    change: str
    kind: Kind = "different_bits"
    tokens: torch.Tensor | None = None


@dataclass(frozen=True)
class WithinBound:
    """A launch that must give ``exact``, up to the error bound of its own problem.

    ``change`` describes the launch in a message. ``exact`` follows from the exact answer to another problem; outputs
    that it or the launch does not have are not compared. Two launches that both stay within their bounds of it differ
    by at most the sum of the bounds; checking each against its own bound finds more than checking their difference.
    ``slack`` is what the relation itself loses in float64 of an output; what ``exact`` lost is counted too
    (:func:`reference_of`).

    ``own`` is the reference of the launch's own problem where it is known: no row's bound depends on the row's place,
    so a reordered batch has the reordered reference. Otherwise it is computed for ``rounding_model``, by default
    that of the experiment's target.
    """

    launch: Launch
    change: str
    exact: Reference
    own: Reference | None = None
    slack: Mapping[str, torch.Tensor | float] = field(default_factory=dict)
    rounding_model: RoundingModel | None = None


Comparison: TypeAlias = SameBits | WithinBound


def compared(comparison: Comparison, experiment: Experiment, name: str) -> Verdict:
    """Return the verdict of the relation ``name`` on its second launch.

    A launch that raised, or in which a sanitizer found something that it did not find in the first launch, fails
    whatever its output is. A launch of another shape that is refused can show nothing, so it passes.
    """
    launch, change = comparison.launch, comparison.change
    if launch.refusal and (launch.refusal.stage == "compile" or shape_of(launch) != shape_of(experiment.first)):
        return Verdict(name)
    if launch.error:
        return Verdict(name, "exception", f"only {change} {launch.error}", site=launch.error_site)
    before = {(observation.kind, observation.site) for observation in experiment.first.observations}
    new = [observation for observation in launch.observations if (observation.kind, observation.site) not in before]
    if new:
        return Verdict(name, new[0].kind, f"only {change}: {new[0].message}", wrong=len(new), site=new[0].site)
    if isinstance(comparison, SameBits):
        return _same_bits(comparison, experiment, name)
    return _within_bound(comparison, experiment, name)


def shape_of(launch: Launch) -> tuple[object, ...]:
    """Return what a target may refuse in a launch: everything but the elements of its tensors."""
    return tuple(_shape(getattr(launch.tensors, field.name)) for field in dataclasses.fields(launch.tensors))


def _shape(value: object) -> object:
    if isinstance(value, dict):
        return tuple((name, _shape(output.tensor)) for name, output in value.items())
    return (value.dtype, value.shape, value.stride()) if isinstance(value, torch.Tensor) else value


def reordered(reference: Reference, tensors: AttentionTensors, axis: str, index: torch.Tensor) -> Reference:
    """Return the reference of ``tensors`` with its tokens or heads at other indices."""
    axes = {name: tensors.outputs[name].axes for name in reference}
    return {
        name: expected.taken(axes[name].index(axis), index) if axis in axes[name] else expected
        for name, expected in reference.items()
    }


def second_launch(experiment: Experiment) -> SameBits:
    """Return the comparison of the relation ``determinism``."""
    return SameBits(experiment.launch_tensors(experiment.again()), SECOND_LAUNCH, "nondeterministic")


def _same_bits(comparison: SameBits, experiment: Experiment, name: str) -> Verdict:
    """Return the verdict on the bits; a target that is not deterministic fails for that instead."""
    verdict = _same_rows(comparison, experiment.first, name)
    if verdict.passed or comparison.kind == "nondeterministic":
        return verdict
    again = SameBits(experiment.launch(experiment.case), SECOND_LAUNCH, "nondeterministic")
    repeated = compared(again, experiment, "determinism")
    return verdict if repeated.passed else repeated


def _same_rows(comparison: SameBits, first: Launch, name: str) -> Verdict:
    outputs = comparison.launch.tensors.outputs
    for output in outputs:
        verdict = _same_output(comparison, first, name, output)
        if not verdict.passed:
            return verdict if len(outputs) == 1 else msgspec.structs.replace(verdict, output=output)
    return Verdict(name)


def _same_output(comparison: SameBits, first: Launch, name: str, output: str) -> Verdict:
    """Return the verdict on the bits of one output's live elements."""
    other, before = comparison.launch.tensors.outputs[output], first.tensors.outputs[output].bits
    if comparison.tokens is not None and "token" in other.axes:
        before = before.index_select(other.axes.index("token"), comparison.tokens)
    different = before != other.bits
    if other.live is not None:
        different &= other.live
    if "column" in other.axes:
        different = different.any(dim=other.axes.index("column"))
    count = int(different.sum())
    if not count:
        return Verdict(name)
    axes = [axis for axis in other.axes if axis != "column"]
    place = ", ".join(f"{axis} {index}" for axis, index in zip(axes, different.nonzero()[0].tolist(), strict=True))
    what = f"({', '.join(axes)}) rows" + (f" of {output}" if len(first.tensors.outputs) > 1 else "")
    message = f"{comparison.change} differs in {count} {what}, first at {place}"
    return Verdict(name, comparison.kind, message, wrong=count, elements=different.numel())


def _within_bound(comparison: WithinBound, experiment: Experiment, name: str) -> Verdict:
    """Return the verdict on the elements, except in rows and places that either problem leaves without a bound."""
    verdict = judge(comparison.launch.tensors, reference_of(comparison, experiment))
    message = verdict.message and f"{comparison.change}: {verdict.message}"
    return msgspec.structs.replace(verdict, property_name=name, message=message)


def reference_of(comparison: WithinBound, experiment: Experiment) -> Reference:
    """Return what the second launch must give, and the bound within which it must do so.

    Where the launch's own problem is exact and the other one is not, the own bound may lie below the roundings of the
    expected output in float64.
    """
    tensors = comparison.launch.tensors
    own = comparison.own or attend(tensors, comparison.rounding_model or experiment.target.rounding_model)
    return {
        name: _together(exact, own[name], comparison.slack.get(name, 0.0))
        for name, exact in comparison.exact.items()
        if name in tensors.outputs
    }


def _together(exact: Expected, own: Expected, slack: torch.Tensor | float) -> Expected:
    bound = own.bound + slack + FLOAT64 * exact.bound
    return Expected(exact.value, bound, own.judged & exact.judged, exact.exact_infinities)
