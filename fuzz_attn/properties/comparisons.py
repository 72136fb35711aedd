"""Comparisons: what the second launch of a relation must give, and the verdict on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec
import torch

from fuzz_attn.inputs.tensor_types import bits_of
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.reference import Reference, attend
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

    ``change`` describes the launch in a message. ``exact`` follows from the exact answer to another problem. Two
    launches that both stay within their bounds of it differ by at most the sum of the bounds; checking each against its
    own bound finds more than checking their difference. ``slack`` is what the relation itself loses in float64; what
    ``exact`` lost is counted too (:func:`reference_of`).

    ``own`` is the reference of the launch's own problem where it is known: no row's bound depends on the row's place,
    so a reordered batch has the reordered reference. Otherwise it is computed for ``rounding_model``, by default
    that of the experiment's target.
    """

    launch: Launch
    change: str
    exact: Reference
    own: Reference | None = None
    slack: torch.Tensor | float = 0.0
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
    fields = {field.name: getattr(launch.tensors, field.name) for field in dataclasses.fields(launch.tensors)}
    return tuple(_shape(value) for name, value in fields.items() if name != "output_poison")


def _shape(value: object) -> object:
    return (value.dtype, value.shape, value.stride()) if isinstance(value, torch.Tensor) else value


def reordered(reference: Reference, change: Callable[[torch.Tensor], torch.Tensor]) -> Reference:
    """Return a reference after ``change``, which indexes the tokens or heads of each of its tensors."""
    return Reference(change(reference.expected), change(reference.bound), change(reference.ill_conditioned))


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
    other, tokens = comparison.launch.tensors, comparison.tokens
    rows, answered = sum(other.query_lens), other.answered_tokens
    before = bits_of(first.tensors.output)
    before = before[:rows] if tokens is None else before[tokens]
    different = (before != bits_of(other.output)[:rows]).any(dim=-1)
    if answered is not None:
        different &= answered[:, None]
    count = int(different.sum())
    if not count:
        return Verdict(name)
    token, head = different.nonzero()[0].tolist()
    message = f"{comparison.change} differs in {count} (token, head) rows, first at token {token}, head {head}"
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
    exact, tensors = comparison.exact, comparison.launch.tensors
    own = comparison.own or attend(tensors, comparison.rounding_model or experiment.target.rounding_model)
    bound = own.bound + comparison.slack + FLOAT64 * exact.bound
    return Reference(exact.expected, bound, own.ill_conditioned | exact.ill_conditioned)
