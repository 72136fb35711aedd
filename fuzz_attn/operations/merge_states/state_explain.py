"""State explain: what a kernel did wrong in a failing merge, found by computing what typical mistakes would give.

A mistake explains a launch if its own merge gives all elements of the wrong outputs, each within the error bound; one
that also gives those of a right output comes before others. What the sanitizer saw comes before all of them. The
explanation takes no launch beside the case's own, and one more to see whether empty states are read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch
from msgspec.structs import replace

from fuzz_attn.forensics.explanation import OR, Explanation, Finding, Reason, ranges
from fuzz_attn.operations.merge_states.state_experiment import StateExperiment, merge
from fuzz_attn.operations.merge_states.state_tensors import EMPTY, StateTensors
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.reference import Expected, Reference
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.launch_properties import nothing_else_written

Changed = Callable[[StateTensors], StateTensors]


SMALL: Final = 2.0**-6
"""Share of the numbers beyond which an error is no rounding to 16 bits, or of several."""


class Mistake(NamedTuple):
    """A mistake in words, and what the outputs are with it."""

    reason: Reason
    words: str
    reference: Reference


def explain(experiment: Experiment) -> Explanation:
    """Return which mistake gives the outputs of the first launch, else that none is known."""
    assert isinstance(experiment, StateExperiment)
    if experiment.first.error:
        return _unknown("the target raised")
    if seen := experiment.first.observations:
        return Explanation((Finding("address", seen[0].message + _of_strides(experiment)),), launches=1)
    right, launched = experiment.reference, experiment.first.tensors
    wrong = {name for name in right if not judge(launched, {name: right[name]}).passed}
    if not wrong:
        outside = nothing_else_written(experiment)
        if not outside.passed:
            words = f"{outside.message}: a store lacks a mask, or has a wrong stride"
            return Explanation((Finding("address", words),), launches=1)
        return _unknown("the outputs of this launch are right")
    if lost := [words for name in sorted(wrong) if (words := _never_written(experiment, name))]:
        return Explanation((Finding("unwritten", "; ".join(lost)),), launches=1)
    return _of_outputs(experiment, right, wrong) or _unknown("no typical mistake gives these outputs")


def _never_written(experiment: StateExperiment, name: str) -> str:
    """Return which elements of an output the target has not written, in words; an empty text where it wrote all."""
    lost = experiment.first.tensors.outputs[name].unwritten
    if not bool(lost.any()):
        return ""
    axes = ("token", "head", "column")[: lost.dim()]
    words = []
    for place, axis in enumerate(axes):
        indices = lost.movedim(place, 0).flatten(1).any(1).nonzero().flatten().tolist()
        if axis == "token" or len(indices) < lost.shape[place]:
            words.append(f"{axis}{'s' * (len(indices) > 1)} {ranges(indices)}")
    rows = lost.reshape(*lost.shape[:2], -1).any(-1)
    empty = experiment.reference["lse"].value == EMPTY
    why = ", whose states have no keys" if torch.equal(rows, empty) and not bool(empty.all()) else ""
    return f"{name}: {', '.join(words)}{why}: never written"


def _of_strides(experiment: StateExperiment) -> str:
    """Return whose stride is not used, in words, where a case passes without one of its far axes; else nothing."""
    case = experiment.case
    for axis in case.far_axes:
        near = tuple(other for other in case.far_axes if other != axis)
        if experiment.with_target(replace(case, far_axes=near), experiment.target).is_right:
            tensor, _, name = axis.rpartition("_")
            return f"; right where {name}s of {tensor} follow one another: another stride than theirs is used"
    return ""


def _of_outputs(experiment: StateExperiment, right: Reference, wrong: set[str]) -> Explanation | None:
    """Return which mistake gives the wrong outputs; None if none is known."""
    tensors: StateTensors = experiment.left
    launched: Any = experiment.first.tensors
    found = [
        mistake
        for mistake in _mistakes(tensors, right)
        if judge(launched, {name: mistake.reference[name] for name in wrong}).passed
    ]
    found = [mistake for mistake in found if judge(launched, mistake.reference).passed] or found
    names = " and ".join(sorted(wrong))
    if found:
        words = OR.join(dict.fromkeys(mistake.words for mistake in found))
        finding = Finding(found[0].reason, f"{names}: {words}", vague=len(found) > 1)
        return Explanation((finding,), launches=1)
    if reads_empty_states(experiment):
        return Explanation((Finding("address", f"{names}: outputs of states without a key are read"),), launches=2)
    if maxima := [*_of_maxima(tensors, launched, right, wrong)]:
        return Explanation((Finding("denominator", f"{names}: {OR.join(maxima)}", vague=len(maxima) > 1),), launches=2)
    return _of_small_errors(experiment, right, wrong)


def _of_small_errors(experiment: StateExperiment, right: Reference, wrong: set[str]) -> Explanation | None:
    """Return that no error is larger than roundings to 16 bits make; None where one is."""
    tensors: StateTensors = experiment.left
    largest = {
        "out": tensors.partial_outputs.double().nan_to_num(0.0).abs().amax(),
        "lse": torch.ones((), dtype=torch.float64),
    }
    ratios = []
    for name in sorted(wrong):
        actual, expected = experiment.first.tensors.outputs[name].elements.double(), right[name]
        error = (actual - expected.value).masked_fill(actual == expected.value, 0.0).abs()
        size = torch.maximum(expected.value.abs(), largest[name])
        if not bool((error <= expected.bound + SMALL * size).all()):
            return None
        ratios.append(float((error / expected.bound).nan_to_num(0.0).max()))
    names, ratio = " and ".join(sorted(wrong)), max(ratios)
    words = f"{names}: the errors are small, and {ratio:.3g} times as large as a correct kernel's can be"
    return Explanation((Finding("arithmetic", words),), launches=1)


def with_causes(verdict: Verdict, experiment: Experiment) -> Verdict:
    """Return a failed verdict that names the poison of empty states where the case passes without it."""
    assert isinstance(experiment, StateExperiment)
    return replace(verdict, poison=("states",)) if reads_empty_states(experiment) else verdict


def reads_empty_states(experiment: StateExperiment) -> bool:
    """Return whether a failing case passes with zeros in the outputs of states without a key."""
    case = experiment.case
    if case.poison == "zero":
        return False
    return experiment.with_target(replace(case, poison="zero"), experiment.target).is_right


def _unknown(words: str) -> Explanation:
    return Explanation((Finding("unknown", words),), launches=1)


def _mistakes(tensors: StateTensors, right: Reference) -> Iterator[Mistake]:
    """Yield typical mistakes, those of single states first."""
    count, _, heads, _ = tensors.partial_outputs.shape
    for state in range(count if count > 1 else 0):
        kept = [each for each in range(count) if each != state]
        yield Mistake("segment", f"state {state} of {count} is left out", merge(_chosen(tensors, kept)))
        if count > 2:
            yield Mistake("segment", f"only state {state} of {count} counts", merge(_chosen(tensors, [state])))
    if heads > 1:
        for head in range(heads):
            lses = tensors.partial_lses[:, :, head : head + 1].expand_as(tensors.partial_lses)
            other = dataclasses.replace(tensors, partial_lses=lses)
            yield Mistake("head mapping", f"the LSEs of head {head} weigh all heads", merge(other))
    equal = merge(dataclasses.replace(tensors, partial_lses=torch.where(tensors.partial_lses == EMPTY, EMPTY, 0.0)))
    shifted = equal["lse"].value + tensors.partial_lses.double().amax(0)
    for lse in (right["lse"].value, shifted, equal["lse"].value):
        yield Mistake("denominator", "all states have equal weights", _with(right, out=equal["out"].value, lse=lse))
    yield from _of_weights(tensors, right)
    yield from _of_roundings(tensors, right)


def _of_roundings(tensors: StateTensors, right: Reference) -> Iterator[Mistake]:
    """Yield roundings to 16 bits that a correct kernel does not make."""
    lses = tensors.partial_lses.double()
    top = lses.amax(0).nan_to_num(0.0, neginf=0.0)
    for narrow in (torch.float16, torch.bfloat16):
        name = str(narrow).removeprefix("torch.")
        weights = (
            ((lses - top) * math.log(tensors.base)).exp().to(narrow).double().log() / math.log(tensors.base)
        ) + top
        outputs = tensors.partial_outputs.to(narrow).to(tensors.partial_outputs.dtype)
        rounded = {
            "LSEs of the states": dataclasses.replace(tensors, partial_lses=lses.to(narrow).double()),
            "weights": dataclasses.replace(tensors, partial_lses=weights),
            "outputs of the states": dataclasses.replace(tensors, partial_outputs=outputs),
        }
        for what, changed in rounded.items():
            yield Mistake("arithmetic", f"the {what} are rounded to {name}", merge(changed))
        summed = merge(rounded["weights"])["lse"].value
        times = ((right["lse"].value - summed) * math.log(tensors.base)).exp().nan_to_num(1.0)
        words = f"the sum of the weights is of weights rounded to {name}"
        yield Mistake("arithmetic", words, _with(right, out=_scaled(right, times), lse=summed))


def _of_weights(tensors: StateTensors, right: Reference) -> Iterator[Mistake]:
    """Yield mistakes of the sum of the weights and of the LSE that follows from it."""
    lse = right["lse"].value
    top = tensors.partial_lses.double().amax(0)
    logarithm = (lse - top).nan_to_num(0.0)
    total = (logarithm * math.log(tensors.base)).exp()
    yield Mistake("denominator", "it is not divided by the sum of the weights", _with(right, out=_scaled(right, total)))
    yield Mistake("denominator", "it is the largest LSE, without the sum of the weights", _with(right, lse=top))
    alone = _with(right, lse=(lse - top).masked_fill(top == EMPTY, EMPTY))
    yield Mistake("denominator", "it lacks the largest LSE, which was subtracted", alone)
    own, other, factor = ("2", "e", _LN2) if tensors.base == 2.0 else ("e", "2", 1.0 / _LN2)
    yield Mistake("scale", f"its logarithm has base {other}", _with(right, lse=top + logarithm * factor))
    yield Mistake("scale", f"it is the logarithm of base {other}, not {own}", _with(right, lse=lse * factor))
    wrong_base = merge(dataclasses.replace(tensors, base=2.0 if other == "2" else math.e))
    power = top + (wrong_base["lse"].value - top).nan_to_num(0.0) * (1.0 / factor)
    yield Mistake(
        "scale", f"weights are powers of {other}, not of {own}", _with(right, out=wrong_base["out"].value, lse=power)
    )
    if bool((lse == EMPTY).any()):
        never_empty = lse.masked_fill(lse == EMPTY, 0.0)
        yield Mistake("denominator", "it is 0 and not -inf without any key", _with(right, lse=never_empty))


def _of_maxima(tensors: StateTensors, launched: StateTensors, right: Reference, wrong: set[str]) -> Iterator[str]:
    """Yield mistakes of the number that is subtracted from LSEs, which may give infinity and NaN in float32.

    Kernels differ in which maximum they add to the logarithm, and in what they do where all weights underflow.
    """
    lses = tensors.partial_lses.double() * math.log(tensors.base)
    top, empty = lses.amax(0), lses == EMPTY
    states = tensors.partial_outputs.double().masked_fill(empty[..., None], 0.0)
    maxima = {
        "nothing is subtracted from the LSEs": torch.zeros_like(top),
        "the maximum of the LSEs lacks the last state": _largest(lses[:-1], top),
        "the maximum of the LSEs lacks the first state": _largest(lses[1:], top),
        "the maximum of the LSEs is at least 0": top.clamp_min(0.0),
        "a row without any key is divided by 0": top,
    }
    for words, largest in maxima.items():
        weights = (lses - largest).exp().float().double().masked_fill(empty, 0.0)
        total = weights.sum(0)
        none = torch.zeros_like(top, dtype=torch.bool) if largest is top else top == EMPTY
        out = ((weights[..., None] * states).sum(0) / total[..., None]).masked_fill(none[..., None], 0.0)
        sums = [(each + total.log()).masked_fill(none, EMPTY) / math.log(tensors.base) for each in (largest, top)]
        given = {
            "out": [out, out.masked_fill((total == 0.0)[..., None], 0.0)],
            "lse": [*sums, *(each.masked_fill(total == 0.0, EMPTY) for each in sums)],
        }
        if all(
            any(_alike(actual, each) and not _alike(right[name].value, each) for each in given[name])
            for name, actual in ((name, launched.outputs[name].elements) for name in sorted(wrong))
        ):
            yield words


def _largest(lses: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return lses.amax(0) if len(lses) else torch.full_like(like, EMPTY)


def _alike(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether numbers are alike as far as a kernel's type and order of sums let them, NaN and infinity too."""
    return torch.allclose(actual.float(), expected.float(), SMALL, SMALL, equal_nan=True)


_LN2: Final = math.log(2.0)


def _scaled(right: Reference, factor: torch.Tensor) -> torch.Tensor:
    return right["out"].value * factor[..., None]


def _with(right: Reference, **values: torch.Tensor) -> Reference:
    """Return the reference with other values, each with a bound that has grown as the value has."""
    changed = {}
    for name, value in values.items():
        known = right[name]
        grown = (value.abs() / known.value.abs()).nan_to_num(1.0, 1.0).clamp_min(1.0)
        changed[name] = Expected(value, known.bound * 2.0 * grown, known.judged, known.exact_infinities)
    return right | changed


def _chosen(tensors: StateTensors, states: list[int]) -> StateTensors:
    return dataclasses.replace(
        tensors, partial_outputs=tensors.partial_outputs[states], partial_lses=tensors.partial_lses[states]
    )
