"""State explain: what a kernel did wrong in a failing merge, found by computing what typical mistakes would give.

A mistake explains a launch if its own merge gives all elements of the wrong outputs, each within the error bound; one
that also gives those of a right output comes before others. What the sanitizer saw comes before all of them. The
explanation takes no launch beside the case's own, and one more to see whether empty states are read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

import torch
from msgspec.structs import replace

from fuzz_attn.forensics.explanation import OR, Explanation, Finding, Reason, ranges, without_numbers
from fuzz_attn.forensics.near_cases import Kind, near_experiments
from fuzz_attn.forensics.padded_stores import gap_for, padded_store
from fuzz_attn.inputs.output_tensors import same_bytes
from fuzz_attn.inputs.storage import bits_of, elements_in
from fuzz_attn.operations.merge_states.state_case import StateCase, described
from fuzz_attn.operations.merge_states.state_experiment import EMPTY, StateExperiment, StateTensors, merge
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.reference import Expected, Reference
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.launch_properties import nothing_else_written

Changed = Callable[[StateTensors], StateTensors]


NEAR: Final = 12
"""Near cases that tell several mistakes apart."""
FEWEST_TOLD: Final = 2
"""Near cases that must show a mistake which the case itself does not show."""
ONLY_STATE: Final = "the only state is left out"
ERRORS_ARE_SMALL: Final = "the errors are small"
SMALL: Final = 2.0**-6
"""Share of the numbers beyond which an error is no rounding to 16 bits, or of several."""


class Mistake(NamedTuple):
    """A mistake in words, and what the outputs are with it."""

    reason: Reason
    words: str
    reference: Reference


Told: TypeAlias = tuple[Reason, str]
"""A mistake in words with its reason."""


def explain(experiment: Experiment, kind: Kind) -> Explanation:
    """Return which mistake gives the outputs of the first launch, else that none is known."""
    assert isinstance(experiment, StateExperiment)
    if experiment.first.error:
        return _unknown("the target raised")
    finding = _of_accesses(experiment)
    if finding is not None:
        return Explanation((finding,), launches=2)
    wrong = _wrong_outputs(experiment)
    if lost := [words for name in sorted(wrong) if (words := _never_written(experiment, name))]:
        return Explanation((Finding("unwritten", "; ".join(lost)),), launches=1)
    found = _of_outputs(experiment, wrong, kind) or _unknown("no typical mistake gives these outputs")
    return _of_near_cases(experiment, kind, found) if found.findings[0].vague or _is_open(found) else found


def _of_accesses(experiment: StateExperiment) -> Finding | None:
    """Return what is wrong of the accesses of a launch, by sanitizers, or by memory where all outputs are right."""
    seen, outside = experiment.first.observations, nothing_else_written(experiment)
    if (seen or not outside.passed) and (padding := _of_padding(experiment)):
        return padding
    if seen:
        return Finding("address", seen[0].message + _of_strides(experiment))
    if _wrong_outputs(experiment):
        return None
    if outside.passed:
        return Finding("unknown", "the outputs of this launch are right")
    why = _rows_of_no_token(experiment) or "a store lacks a mask, or has a wrong stride"
    return Finding("address", f"{outside.message}: {why}")


def _is_open(found: Explanation) -> bool:
    return found.reason == "unknown" or ERRORS_ARE_SMALL in found.words


def _of_near_cases(experiment: StateExperiment, kind: Kind, found: Explanation) -> Explanation:
    """Return what near cases that are wrong show, where the case itself leaves it open and they agree; else the same.

    Two of them must, because outputs of one may be those of a mistake by chance.
    """
    told: list[tuple[StateCase, str, list[Told]]] = []
    for near in near_experiments(experiment, kind, NEAR):
        wrong = _wrong_outputs(near)
        possible = (_fitting(near, wrong) or _of_maxima(near, wrong)) if wrong and not reads_empty_states(near) else []
        if possible and possible[0][1] != ONLY_STATE:
            told.append((near.case, " and ".join(sorted(wrong)), possible))
    mistake = _shared([possible for _, _, possible in told])
    if mistake is None:
        return found
    case, names, possible = told[0]
    reason, words = next(each for each in possible if without_numbers(each[1]) == mistake)
    own = described(experiment.case)
    longer = "; ".join(f"{what}: {words}" for what, words in described(case) if (what, words) not in own)
    kept = [finding for finding in found.findings if not finding.vague and finding.reason != "unknown"]
    return replace(found, findings=(Finding(reason, f"{names}: {words}"), *kept), longer=longer)


def _shared(told: list[list[Told]]) -> str | None:
    """Return the mistake that alone explains each of several cases, without its numbers; None if none does."""
    named = [{without_numbers(words) for _, words in possible} for possible in told]
    shared = set.intersection(*named) if len(named) >= FEWEST_TOLD else set()
    return shared.pop() if len(shared) == 1 else None


def _wrong_outputs(experiment: StateExperiment) -> set[str]:
    right = experiment.reference
    return {name for name in right if not judge(experiment.first.tensors, {name: right[name]}).passed}


def _of_padding(experiment: StateExperiment) -> Finding | None:
    """Return which store writes the padding of heads, where that is all that is wrong."""
    gap = gap_for(experiment.case.head_size)
    apart = replace(experiment.case, gap=gap, far_axes=()) if gap else None
    return padded_store(experiment.with_target(apart, experiment.target)) if apart else None


def _rows_of_no_token(experiment: StateExperiment) -> str:
    """Return which rows behind those of the tokens are written, in words, where nothing else is; else nothing."""
    words, launch = [], experiment.first
    for name, output in launch.tensors.outputs.items():
        bits, before = bits_of(output.tensor), launch.outputs_before[name].clone()
        held = elements_in(before, bits)
        rows = (held != bits).flatten(1).any(1).nonzero().flatten().tolist()
        held.copy_(bits)
        if not same_bytes(before, launch.outputs_after[name]):
            return ""
        if own := [row for row in rows if row >= experiment.case.num_tokens]:
            words.append(f"row{'s' * (len(own) > 1)} {ranges(own)} of {name}")
    return f"{' and '.join(words)}, which belong to no token" if words else ""


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
    """Return whose stride is not used, in words, where a case passes without a far axis or a gap; else nothing."""
    case = experiment.case
    if case.gap and experiment.with_target(replace(case, gap=0), experiment.target).is_right:
        return "; right where heads of outputs follow one another: another stride than theirs is used"
    for axis in case.far_axes:
        near = tuple(other for other in case.far_axes if other != axis)
        if experiment.with_target(replace(case, far_axes=near), experiment.target).is_right:
            tensor, _, name = axis.rpartition("_")
            return f"; right where {name}s of {tensor} follow one another: another stride than theirs is used"
    return ""


def _of_outputs(experiment: StateExperiment, wrong: set[str], kind: Kind) -> Explanation | None:
    """Return which mistake gives the wrong outputs; None if none is known. Near cases of a kind tell several apart."""
    right = experiment.reference
    names = " and ".join(sorted(wrong))
    if found := _told_apart(_fitting(experiment, wrong), experiment, kind, _fitting):
        vague = len(found) > 1 or found[0][1] == ONLY_STATE
        finding = Finding(found[0][0], f"{names}: {OR.join(words for _, words in found)}", vague=vague)
        return Explanation((finding,), launches=1)
    if reads_empty_states(experiment):
        return Explanation((Finding("address", f"{names}: outputs of states without a key are read"),), launches=2)
    if maxima := _told_apart(_of_maxima(experiment, wrong), experiment, kind, _of_maxima):
        words = OR.join(words for _, words in maxima)
        return Explanation((Finding("denominator", f"{names}: {words}", vague=len(maxima) > 1),), launches=2)
    if words := _of_keyless_rows(experiment, right, wrong):
        return Explanation((Finding("denominator", words),), launches=1)
    return _of_small_errors(experiment, right, wrong)


def _fitting(experiment: StateExperiment, wrong: set[str]) -> list[Told]:
    """Return the mistakes that give the wrong outputs; those that give the right ones too come alone.

    One that gives numbers within the bounds of the right ones explains none that are wrong.
    """
    right, launched = experiment.reference, experiment.first.tensors
    found = []
    for mistake in _mistakes(experiment.left, right):
        given = {name: mistake.reference[name] for name in wrong}
        if judge(launched, given).passed and all(_differ(given[name], right[name]) for name in wrong):
            found.append(mistake)
    found = [mistake for mistake in found if judge(launched, mistake.reference).passed] or found
    return [*dict.fromkeys((mistake.reason, mistake.words) for mistake in found)]


def _differ(given: Expected, right: Expected) -> bool:
    """Return whether a number of a mistake lies beyond the bound of the right one."""
    near = (given.value == right.value) | ((given.value - right.value).abs() <= right.bound)
    return not bool(near.all())


def _told_apart(
    found: list[Told],
    experiment: StateExperiment,
    kind: Kind,
    fitting: Callable[[StateExperiment, set[str]], list[Told]],
) -> list[Told]:
    """Return those of several mistakes that also give what near cases hold, where these are wrong.

    All of them where near cases leave none: the mistake has another form there.
    """
    kept = found
    for near in near_experiments(experiment, kind, NEAR) if len(found) > 1 else ():
        if wrong := _wrong_outputs(near):
            fits = fitting(near, wrong)
            kept = [each for each in kept if each in fits] or kept
    return kept


def _of_keyless_rows(experiment: StateExperiment, right: Reference, wrong: set[str]) -> str:
    """Return what rows hold whose states have no keys, in words, if only they are wrong and hold one number."""
    words, keyless = [], right["lse"].value == EMPTY
    for name in sorted(wrong):
        actual, expected = experiment.first.tensors.outputs[name].elements.double(), right[name]
        held = actual[keyless].flatten()
        inside = (actual == expected.value) | ((actual - expected.value).abs() <= expected.bound)
        rows = inside.reshape(*keyless.shape, -1).all(-1)
        one = (held == held[:1]) | (held.isnan() & held[:1].isnan())
        if not bool(keyless.any()) or not bool((rows | keyless).all()) or not bool(one.all()):
            return ""
        must = float(expected.value[keyless].flatten()[0])
        words.append(f"{name}: rows whose states have no keys hold {float(held[0]):g} and not {must:g}")
    return "; ".join(words)


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
        if not bool(actual.isfinite().logical_or(actual == expected.value).all()):
            return None
        if not bool((error <= expected.bound + SMALL * size).all()):
            return None
        ratios.append(float((error / expected.bound).nan_to_num(0.0).max()))
    names, ratio = " and ".join(sorted(wrong)), max(ratios)
    words = f"{names}: {ERRORS_ARE_SMALL}, and {ratio:.3g} times as large as a correct kernel's can be"
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
    count = len(tensors.partial_outputs)
    for state in range(count if count > 1 else 0):
        kept = [each for each in range(count) if each != state]
        yield Mistake("segment", f"state {state} of {count} is left out", merge(_chosen(tensors, kept)))
        if count > 2:
            yield Mistake("segment", f"only state {state} of {count} counts", merge(_chosen(tensors, [state])))
    if count == 1:
        none = dataclasses.replace(tensors, partial_lses=torch.full_like(tensors.partial_lses, EMPTY))
        yield Mistake("segment", ONLY_STATE, merge(none))
    yield from _of_other_rows(tensors)
    equal = merge(dataclasses.replace(tensors, partial_lses=torch.where(tensors.partial_lses == EMPTY, EMPTY, 0.0)))
    shifted = equal["lse"].value + tensors.partial_lses.double().amax(0)
    for lse in (right["lse"].value, shifted, equal["lse"].value):
        yield Mistake("denominator", "all states have equal weights", _with(right, out=equal["out"].value, lse=lse))
    yield from _of_weights(tensors, right)
    yield from _of_roundings(tensors, right)


def _of_other_rows(tensors: StateTensors) -> Iterator[Mistake]:
    """Yield mistakes of rows: LSEs or outputs of one head, or of one token, for all of them."""
    for axis, name in ((2, "head"), (1, "token")):
        for index in range(tensors.partial_lses.shape[axis] if tensors.partial_lses.shape[axis] > 1 else 0):
            lses = tensors.partial_lses.narrow(axis, index, 1).expand_as(tensors.partial_lses)
            outputs = tensors.partial_outputs.narrow(axis, index, 1).expand_as(tensors.partial_outputs)
            of_lses = dataclasses.replace(tensors, partial_lses=lses)
            of_outputs = dataclasses.replace(tensors, partial_outputs=outputs)
            both = dataclasses.replace(of_lses, partial_outputs=outputs)
            reason: Reason = "head mapping" if name == "head" else "address"
            yield Mistake(reason, f"the LSEs of {name} {index} weigh all {name}s", merge(of_lses))
            yield Mistake(reason, f"the outputs of {name} {index} are merged for all {name}s", merge(of_outputs))
            yield Mistake(reason, f"all {name}s have the states of {name} {index}", merge(both))


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
        low, high = ((right["out"].value + sign * right["out"].bound).to(narrow).double() for sign in (-1, 1))
        known = dataclasses.replace(right["out"], value=(low + high) / 2, bound=right["out"].bound + (high - low) / 2)
        yield Mistake("arithmetic", f"the output is rounded to {name}", {**right, "out": known})
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
    yield from _of_running_maximum(tensors, right)
    wrong_base = merge(dataclasses.replace(tensors, base=2.0 if other == "2" else math.e))
    power = top + (wrong_base["lse"].value - top).nan_to_num(0.0) * (1.0 / factor)
    yield Mistake(
        "scale", f"weights are powers of {other}, not of {own}", _with(right, out=wrong_base["out"].value, lse=power)
    )
    if bool((lse == EMPTY).any()):
        never_empty = lse.masked_fill(lse == EMPTY, 0.0)
        yield Mistake("denominator", "it is 0 and not -inf without any key", _with(right, lse=never_empty))


def _of_running_maximum(tensors: StateTensors, right: Reference) -> Iterator[Mistake]:
    """Yield the mistakes that sums are not rescaled where a later state has a larger LSE: one of them, or both."""
    lses = tensors.partial_lses.double() * math.log(tensors.base)
    empty = lses == EMPTY
    weights = (lses - lses.cummax(0).values).exp().masked_fill(empty, 0.0)
    total = weights.sum(0)
    states = tensors.partial_outputs.double().masked_fill(empty[..., None], 0.0)
    rescaled = (lses - lses.amax(0)).exp().masked_fill(empty, 0.0)
    none = total == 0.0
    summed, right_sum = ((each[..., None] * states).sum(0) for each in (weights, rescaled))
    lse = (lses.amax(0) + total.log()).masked_fill(none, EMPTY) / math.log(tensors.base)
    divisor, right_divisor = (each.masked_fill(none, 1.0)[..., None] for each in (total, rescaled.sum(0)))
    words = "weights are relative to the largest LSE so far, and"
    both = _with(right, out=summed / divisor, lse=lse)
    yield Mistake("denominator", f"{words} sums are not rescaled for a larger one", both)
    weights_alone = _with(right, out=right_sum / divisor, lse=lse)
    yield Mistake("denominator", f"{words} their sum is not rescaled for a larger one", weights_alone)
    outputs_alone = _with(right, out=summed / right_divisor)
    yield Mistake("denominator", f"{words} the sum of outputs is not rescaled for a larger one", outputs_alone)


def _of_maxima(experiment: StateExperiment, wrong: set[str]) -> list[Told]:
    """Return mistakes of the number that is subtracted from LSEs, which may give infinity and NaN in float32.

    Kernels differ in which maximum they add to the logarithm, and in what they do where all weights underflow.
    """
    tensors, launched, right = experiment.left, experiment.first.tensors, experiment.reference
    found: list[Told] = []
    lses = tensors.partial_lses.double() * math.log(tensors.base)
    top, empty = lses.amax(0), lses == EMPTY
    states = tensors.partial_outputs.double().masked_fill(empty[..., None], 0.0)
    maxima = {
        "nothing is subtracted from the LSEs": torch.zeros_like(top),
        "the maximum of the LSEs lacks the last state": _largest(lses[:-1], top),
        "the maximum of the LSEs lacks the first state": _largest(lses[1:], top),
        "the maximum of the LSEs is at least 0": top.clamp_min(0.0),
        "the smallest LSE is subtracted and not the largest": lses.masked_fill(empty, torch.inf).amin(0),
        "the LSE of the last state is subtracted and not the largest": lses[-1],
        "the LSE of the first state is subtracted and not the largest": lses[0],
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
            found.append(("denominator", words))
    return found


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
