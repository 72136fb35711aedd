"""Write explain: what a kernel did wrong in a failing cache write, by slots, tokens, heads and numbers.

Tokens may get into wrong slots by another arithmetic of pages and places, and numbers may be rounded in another way.

What is written is nearly exact, so the caches themselves tell which token a slot holds. A mistake of heads, scales or
types explains a cache if it gives all of its numbers, each within the error bound, and those of near cases that fail.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import torch
from msgspec.structs import replace

from fuzz_attn.forensics.explanation import OR, Explanation, Finding, Reason, factor, is_plausible, ranges
from fuzz_attn.forensics.inquiry import MOST_FINDINGS
from fuzz_attn.forensics.near_cases import Kind, near_cases, near_experiments
from fuzz_attn.forensics.padded_stores import gap_for, padded_store
from fuzz_attn.inputs.output_tensors import OutputTensor
from fuzz_attn.inputs.storage import INTEGERS, is_fp8_dtype
from fuzz_attn.operations.cache_write.write_experiment import (
    CACHE_OF,
    EXACT,
    LIMITS,
    NOWHERE,
    QUOTIENT,
    WriteExperiment,
    WriteTensors,
    parts_of,
    stored,
    with_scale,
)
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.reference import Expected
from fuzz_attn.oracle.roundings import FLUSHED, UNIT
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.launch_properties import nothing_else_written

FEWEST: Final = 3
"""Tokens that must be where an arithmetic puts them: fewer may be there by chance."""


class Place(NamedTuple):
    """Where a token is found: its index, the slot that it should have, the one that holds it, and the page size."""

    token: int
    slot: int
    held: int
    page_size: int


_MISTAKES: Final[dict[str, Callable[[Place], int]]] = {
    "each token is written to the slot of its own index, and not to that of the mapping": lambda at: at.token,
    "the number of the page and the place in it are exchanged": lambda at: (
        at.slot % at.page_size * at.page_size + at.slot // at.page_size
    ),
    "slots are counted in pages of one place less": lambda at: _in_pages_of(at, at.page_size - 1),
    "slots are counted in pages of one place more": lambda at: _in_pages_of(at, at.page_size + 1),
    "the page is that of pages of one place less": lambda at: _page_of(at, at.page_size - 1),
    "the page is that of pages of one place more": lambda at: _page_of(at, at.page_size + 1),
    "every token is written to the first page": lambda at: at.slot % at.page_size,
    "every token is written to the first place of its page": lambda at: at.slot // at.page_size * at.page_size,
    "each token is written to the slot behind its own": lambda at: at.slot + 1,
    "each token is written to the slot before its own": lambda at: at.slot - 1,
    "each token is written to the page behind its own": lambda at: at.slot + at.page_size,
    "each token is written to the page before its own": lambda at: at.slot - at.page_size,
}


def _in_pages_of(at: Place, size: int) -> int:
    """Return the slot whose page and place are those of a slot in pages of another size."""
    return at.slot // size * at.page_size + at.slot % size if size else -1


def _page_of(at: Place, size: int) -> int:
    """Return the slot with the right place, in the page of a slot in pages of another size."""
    return at.slot // size * at.page_size + at.slot % at.page_size if size else -1


def mistakes_of_slots(places: Iterable[Place]) -> list[str]:
    """Return the arithmetics, in words, that put all of some tokens where they are found.

    >>> mistakes_of_slots([Place(0, 3, 4, 16), Place(1, 9, 10, 16), Place(2, 20, 21, 16)])
    ['each token is written to the slot behind its own']
    >>> mistakes_of_slots([Place(0, 3, 4, 16)])
    []
    """
    found = {place for place in places if place.held != place.slot or place.token != place.slot}
    wrong = [place for place in found if place.held != place.slot]
    if len(wrong) < FEWEST:
        return []
    return [words for words, slot in _MISTAKES.items() if all(slot(place) == place.held for place in found)]


_OF_INTEGERS: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "numbers are cut off towards 0 and not rounded to the nearest": torch.trunc,
    "0.5 is added to numbers and they are cut off towards 0: negative ones are rounded up": lambda x: (x + 0.5).trunc(),
    "numbers are rounded down and not to the nearest": torch.floor,
    "numbers are rounded up and not to the nearest": torch.ceil,
    "numbers are rounded away from 0 and not to the nearest": lambda x: x.abs().ceil() * x.sign(),
}


def roundings(
    new: torch.Tensor, scale: torch.Tensor, tensors: WriteTensors, name: str
) -> Iterator[tuple[str, Expected]]:
    """Yield roundings in words, with what a cache would hold: the numbers next to the exact ones on one side."""
    dtype = tensors.outputs[name].tensor.dtype
    known = stored(new, scale, tensors, name)
    exact = new.double()
    if "k_scale_cache" in tensors.outputs:
        largest = exact.abs().amax(-1, keepdim=True) / LIMITS[dtype]
        exact = exact / largest.masked_fill(largest == 0.0, 1.0)
    elif is_fp8_dtype(dtype):
        exact = exact / scale.double()
    elif new.dtype == dtype:
        return
    error = exact.abs() * 3.0 * QUOTIENT + FLUSHED
    for words, to_number in (_OF_INTEGERS if dtype == torch.int8 else _of_floats(dtype)).items():
        error = error + UNIT if dtype == torch.int8 else error
        low, high = to_number(exact - error), to_number(exact + error)
        unit = EXACT if dtype == torch.int8 else EXACT * torch.finfo(dtype).eps * high.abs()
        yield words, Expected((low + high) / 2.0, (high - low).abs() / 2.0 + unit, known.judged)


def _of_floats(dtype: torch.dtype) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Return roundings to a type of floats that are not to the nearest number."""
    return {
        "numbers are cut off towards 0 and not rounded to the nearest": lambda x: _towards_0(x, dtype),
        "numbers are rounded down and not to the nearest": lambda x: _rounded_down(x, dtype),
        "numbers are rounded up and not to the nearest": lambda x: -_rounded_down(-x, dtype),
    }


def _towards_0(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    limit = torch.finfo(dtype).max
    near = exact.clamp(-limit, limit).to(dtype)
    bits = near.view(INTEGERS[dtype.itemsize])
    cut = (bits - (near.double().abs() > exact.abs()).to(bits.dtype)).view(dtype)
    return cut.double()


def _rounded_down(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    limit = torch.finfo(dtype).max
    near = exact.clamp(-limit, limit).to(dtype)
    bits = near.view(INTEGERS[dtype.itemsize])
    above = near.double() > exact
    # Numbers of one sign are ordered as their bits are, negative ones the other way round. What rounds to 0 stays:
    # no mistake is told by numbers as small.
    moved = torch.where(near.double() > 0.0, bits - 1, bits + 1)
    return torch.where(above & (near.double() != 0.0), moved, bits).view(dtype).double()


NEAR: Final = 6
"""Near cases on which a mistake is confirmed that gives all numbers of the failing one."""
OF_SLOTS: Final = 24
"""Near cases whose tokens tell by which arithmetic slots are wrong."""
FEWEST_COLUMNS: Final = 4
"""Numbers of a head that must have one factor for it to be named."""
SHOWN: Final = 3
"""Slots or tokens of one kind that are named one by one."""


_OTHER: Final = {
    "key_cache": "value_cache",
    "value_cache": "key_cache",
    "k_scale_cache": "v_scale_cache",
    "v_scale_cache": "k_scale_cache",
}


ALIKE: Final = 2.0**-20
"""How far ratios of scales may lie apart that stand for one factor."""


class Cache(NamedTuple):
    """A cache after a launch, beside what it should hold.

    ``held`` float64 ``[num_slots, num_heads, head_size]`` and ``written`` bool, of each slot whether any of it is.
    ``slots`` is the slot of each token, -1 for none; ``known`` what each token's slot must hold, also of those.
    """

    name: str
    held: torch.Tensor
    written: torch.Tensor
    slots: list[int]
    known: Expected

    def holds(self, slot: int, token: int) -> bool:
        """Return whether a slot holds all numbers of a token."""
        error = (self.held[slot] - self.known.value[token]).abs()
        return bool((error <= self.known.bound[token]).all())

    def nearly_holds(self, slot: int, token: int, unit: float) -> bool:
        """Return whether a slot holds numbers next to those of a token, in a type with this spacing at 1."""
        value, bound = self.known.value[token], self.known.bound[token]
        return bool(((self.held[slot] - value).abs() <= torch.maximum(4.0 * bound, 2.0 * unit * value.abs())).all())

    def factor_of(self, slot: int, token: int) -> str:
        """Return how many times what they must be all numbers of a head are, in words; nothing where that differs."""
        for head in range(self.held.shape[1]):
            held, value, bound = self.held[slot, head], self.known.value[token, head], self.known.bound[token, head]
            right = (held - value).abs() <= bound
            if bool(right.all()):
                continue
            square = float((value * value).sum())
            times = float((held * value).sum()) / square if square else 0.0
            fits = (held - times * value).abs() <= bound * max(abs(times), 1.0)
            told = (value.abs() > 4.0 * bound).sum()
            if not bool(fits.all()) or told < FEWEST_COLUMNS or not is_plausible(times):
                return ""
            return factor(float(f"{times:.3g}"))
        return ""

    def token_in(self, slot: int) -> int | None:
        """Return the token whose numbers a slot holds; None for none."""
        return next((token for token in range(len(self.slots)) if self.holds(slot, token)), None)


def explain(experiment: Experiment, kind: Kind) -> Explanation:
    """Return what is wrong in the caches after the first launch, the first of K and V that tells."""
    assert isinstance(experiment, WriteExperiment)
    if experiment.first.error:
        return _of([Finding("unknown", "the target raised")])
    seen = [Finding("address", each.message) for each in experiment.first.observations[:1]]
    if (seen or not nothing_else_written(experiment).passed) and (padding := _of_padding(experiment)):
        return _of([padding])
    tensors: WriteTensors = experiment.left
    found: dict[tuple[Reason, str], list[str]] = {}
    for name in sorted(tensors.outputs, key=lambda name: name not in CACHE_OF):
        if any(name in map(CACHE_OF.get, names) for names in found.values()) and _follows(name, experiment, tensors):
            continue
        for reason, words in _findings(_cache(experiment, tensors, name), experiment, tensors, kind):
            found.setdefault((reason, words), []).append(name)
    findings = [Finding(reason, f"{' and '.join(names)}: {words}") for (reason, words), names in found.items()]
    stray = bool(seen or findings) and all(finding.reason in ("address", "unwritten") for finding in findings)
    if stray and (words := _of_slots(experiment, kind)):
        return _of([Finding("page", words), *(seen or findings)][:MOST_FINDINGS])
    if stray or not findings:
        findings = [_without_features(found, experiment) for found in (seen or findings)[:1]] + findings[not seen :]
    return _of(findings or [Finding("unknown", "no typical mistake gives these caches")])


def _of_padding(experiment: WriteExperiment) -> Finding | None:
    """Return which store writes the padding of heads, where that is all that is wrong."""
    case, gap = experiment.case, gap_for(experiment.case.head_size)
    apart = replace(case, head_gap=max(gap, case.head_gap), far=False, far_axes=()) if gap else None
    return padded_store(experiment.with_target(apart, experiment.target)) if apart else None


def _of_slots(experiment: WriteExperiment, kind: Kind) -> str:
    """Return by which arithmetic tokens get into wrong slots in the case and near ones, in words; else nothing."""
    places: list[Place] = []
    for case in (experiment.case, *near_cases(kind, experiment.case, 1, OF_SLOTS + 1)):
        near = experiment.with_target(case, experiment.target)
        if near.first.error or kind.unpromised(case, experiment.target.domain):
            continue
        cache = _cache(near, near.left, "value_cache")
        for slot in cache.written.nonzero().flatten().tolist():
            token = cache.token_in(slot)
            if token is not None and cache.slots[token] != NOWHERE:
                places.append(Place(token, cache.slots[token], slot, case.page_size))
    return OR.join(mistakes_of_slots(places))


def _follows(name: str, experiment: WriteExperiment, tensors: WriteTensors) -> bool:
    """Return whether a cache holds the right numbers for the scales that are stored, which are wrong."""
    outputs = experiment.first.tensors.outputs
    scales = next(outputs[of].elements for of, numbers in CACHE_OF.items() if numbers == name)
    new, _ = parts_of(tensors)[name]
    dtype = outputs[name].tensor.dtype
    known = with_scale(new.double(), scales.double(), dtype)
    right = (outputs[name].elements.double() - known.value).abs() <= known.bound
    live = outputs[name].live
    return bool((right if live is None else right | ~live).all())


def _without_features(finding: Finding, experiment: WriteExperiment) -> Finding:
    """Return a finding of wrong places with the feature of the case without which it passes."""
    changes = (
        ("skipped", False, "without skipped tokens", "a token without a slot is written, or another one is skipped"),
        ("value_gap", 0, "where both caches have the same strides", "those of keys are used for values"),
        ("heads_first", False, "where heads follow places in a page", "strides of the caches are assumed"),
        ("head_gap", 0, "where heads are next to each other", "strides of the caches are assumed"),
        ("fused", False, "without fused rows", "strides of the new keys or values are assumed"),
        ("far", False, "without pages beyond 2^31 elements", "offsets are computed in 32 bits"),
    )
    case = experiment.case
    for name, value, words, why in changes:
        plain = replace(case, **{name: value})
        if plain != case and experiment.with_target(plain, experiment.target).is_right:
            return Finding(finding.reason, f"{finding.words}; right {words}: {why}")
    for axis in case.far_axes:
        near = replace(case, far_axes=tuple(other for other in case.far_axes if other != axis))
        if experiment.with_target(near, experiment.target).is_right:
            tensor, _, name = axis.rpartition("_")
            words = f"right where {name}s of {tensor} are near each other"
            return Finding(finding.reason, f"{finding.words}; {words}: another stride is used, or offsets are cut")
    return finding


def _of(findings: list[Finding]) -> Explanation:
    return Explanation(tuple(findings), launches=1)


def _cache(experiment: WriteExperiment, tensors: WriteTensors, name: str) -> Cache:
    output = experiment.first.tensors.outputs[name]
    written = ~dataclasses.replace(output, region=()).unwritten.flatten(0, 1)
    held = output.tensor.double().flatten(0, 1)
    new, scale = parts_of(tensors)[name]
    known = stored(new, scale, tensors, name)
    return Cache(name, held, written.flatten(1).any(1), tensors.slot_mapping.tolist(), known)


def _findings(
    cache: Cache, experiment: WriteExperiment, tensors: WriteTensors, kind: Kind
) -> Iterator[tuple[Reason, str]]:
    """Yield what is wrong in one cache: a mistake that gives all of it, else wrong slots."""
    launched, known = experiment.first.tensors, experiment.reference[cache.name]
    if not judge(launched, {cache.name: known}).passed:
        fitting = _confirmed(_fitting(experiment, cache.name), experiment, cache.name, kind)
        if fitting:
            yield fitting[0][0], OR.join(words for _, words in fitting)
            return
        dtype = launched.outputs[cache.name].tensor.dtype
        if "k_scale_cache" in launched.outputs and _zeros_are_nan(cache, experiment, kind):
            yield "scale", "rows of zeros are divided by their scale, 0"
            return
        if words := _of_scales(cache, experiment, kind) if cache.name in CACHE_OF else _of_limit(cache, dtype):
            yield "scale", words
            return
    yield from _slots_of_no_token(cache)
    yield from _wrong_tokens(cache, launched.outputs[cache.name])


def _fitting(experiment: WriteExperiment, name: str) -> list[tuple[Reason, str]]:
    """Return the typical mistakes that give all numbers which a cache holds."""
    launched, tensors = experiment.first.tensors, experiment.left
    return [
        (reason, words)
        for reason, words, expected in _mistakes(name, tensors)
        if judge(launched, {name: _like(expected, tensors, name)}).passed
    ]


def _confirmed(
    fitting: list[tuple[Reason, str]], experiment: WriteExperiment, name: str, kind: Kind
) -> list[tuple[Reason, str]]:
    """Return those mistakes that also give what near cases hold, where these are wrong.

    One column may fit by chance.
    """
    for near in near_experiments(experiment, kind, NEAR) if fitting else ():
        if not judge(near.first.tensors, {name: near.reference[name]}).passed:
            possible = {words for _, words, _ in _mistakes(name, near.left)}
            fits = {words for _, words in _fitting(near, name)}
            fitting = [(reason, words) for reason, words in fitting if words in fits or words not in possible]
    return fitting


def _like(expected: Expected, tensors: WriteTensors, name: str) -> Expected:
    """Return what all tokens would hold as the reference has it: without skipped tokens."""
    live = tensors.outputs[name].live
    return expected if live is None else dataclasses.replace(expected, value=expected.value.masked_fill(~live, 0.0))


def _mistakes(name: str, tensors: WriteTensors) -> Iterator[tuple[Reason, str, Expected]]:
    """Yield typical mistakes: a reason, words, and what the cache would hold."""
    parts = parts_of(tensors)
    new, scale = parts[name]
    other = _OTHER[name]
    others, other_scale = parts[other]
    for head in range(new.shape[1] if new.shape[1] > 1 else 0):
        of_head = stored(new[:, head : head + 1].expand_as(new), scale, tensors, name)
        yield "head mapping", f"all heads hold head {head}", of_head
    if name in CACHE_OF:
        yield (
            "scale",
            "scales follow from the largest number and not from the largest magnitude",
            stored(new.clamp_min(0.0), scale, tensors, name),
        )
        for narrow in (torch.float16, torch.bfloat16):
            known = stored(new, scale, tensors, name)
            rounded = dataclasses.replace(known, value=known.value.to(narrow).double())
            yield "arithmetic", f"scales are rounded to {str(narrow).removeprefix('torch.')}", rounded
        yield from _other_scales(stored(new, scale, tensors, name), new)
    yield "address", f"it holds the numbers of {other}", stored(others, scale, tensors, name)
    if is_fp8_dtype(tensors.outputs[name].tensor.dtype) and name not in CACHE_OF and len(tensors.outputs) == 2:
        one = torch.ones_like(scale)
        yield "scale", "numbers are not divided by the scale", stored(new, one, tensors, name)
        yield "scale", "numbers are multiplied with the scale", stored(new, one / scale, tensors, name)
        yield "scale", f"numbers are divided by the scale of {other}", stored(new, other_scale, tensors, name)
        limit = torch.finfo(tensors.outputs[name].tensor.dtype).max
        words = f"numbers are clamped to {limit:g} before they are divided by the scale"
        yield "scale", words, stored(new.clamp(-limit, limit), scale, tensors, name)
    for narrow in (torch.float16, torch.bfloat16):
        words = f"numbers are rounded to {str(narrow).removeprefix('torch.')} on the way"
        yield "arithmetic", words, stored(new.to(narrow).to(new.dtype), scale, tensors, name)
    if name not in CACHE_OF:
        yield "arithmetic", "the signs of numbers are lost", stored(new.abs(), scale, tensors, name)
        yield "arithmetic", "numbers have the opposite sign", stored(-new, scale, tensors, name)
        for words, expected in roundings(new, scale, tensors, name):
            yield "arithmetic", words, expected


def _other_scales(known: Expected, new: torch.Tensor) -> Iterator[tuple[Reason, str, Expected]]:
    """Yield mistakes of what scales follow from."""
    numbers = new.double()
    largest = numbers.abs().amax(-1)

    def with_value(value: torch.Tensor) -> Expected:
        bound = known.bound * (value / known.value).abs().nan_to_num(1.0, 1.0).clamp_min(1.0) * new.shape[-1]
        return dataclasses.replace(known, value=value, bound=bound)

    limits = known.value / largest
    yield "scale", "scales are the inverse of what they must be", with_value(1.0 / known.value)
    yield "scale", "scales follow from the sum of the magnitudes", with_value(numbers.abs().sum(-1) * limits)
    yield "scale", "scales follow from the mean of the magnitudes", with_value(numbers.abs().mean(-1) * limits)
    yield "scale", "scales follow from the smallest magnitude", with_value(numbers.abs().amin(-1) * limits)
    root = numbers.square().mean(-1).sqrt()
    yield "scale", "scales follow from the root of the mean square", with_value(root * limits)
    if new.shape[1] > 1:
        shared = largest.amax(1, keepdim=True).expand_as(largest)
        yield "scale", "all heads of a token have the scale of the largest of them", with_value(shared * limits)
    if new.shape[0] > 1:
        shared = largest.amax(0, keepdim=True).expand_as(largest)
        yield "scale", "all tokens have the scale of the largest of them", with_value(shared * limits)


def _of_scales(cache: Cache, experiment: WriteExperiment, kind: Kind) -> str:
    """Return by which factor all scales are wrong, also in near cases, in words; nothing if that differs."""
    ratios = [_ratio(cache)]
    ratios += [_ratio(_cache(near, near.left, cache.name)) for near in near_experiments(experiment, kind, NEAR)]
    first = ratios[0]
    told = [ratio for ratio in ratios if ratio is not None]
    if first is None or len(told) < len(ratios) or max(told) - min(told) > ALIKE * first:
        return ""
    limit = LIMITS[experiment.first.tensors.outputs[CACHE_OF[cache.name]].tensor.dtype]
    largest = limit / first
    words = f"scales are {factor(first)} times what they must be"
    if first != 1.0 and abs(largest - round(largest)) <= 4 * ALIKE * largest and round(largest) > 1:
        return f"{words}: with them the largest magnitude becomes {round(largest)} and not {limit:g}"
    return words


def _ratio(cache: Cache) -> float | None:
    """Return how many times what they must be the judged scales of a cache are; None where that differs."""
    live = torch.tensor(cache.slots) != NOWHERE
    ratio = cache.held.cpu()[torch.tensor(cache.slots)[live]] / cache.known.value.cpu()[live]
    ratio = ratio[cache.known.judged.cpu()[live].expand_as(ratio)]
    if not ratio.numel() or not bool(ratio.isfinite().all()):
        return None
    low, high = float(ratio.min()), float(ratio.max())
    return low if low > 0.0 and high - low <= ALIKE * low else None


def _zeros_are_nan(cache: Cache, experiment: WriteExperiment, kind: Kind) -> bool:
    """Return whether a cache holds NaN exactly where rows of zeros belong, also in near cases."""
    nan, zeros = _nan_and_zeros(cache)
    if not bool(nan.any()) or not torch.equal(nan, zeros):
        return False
    for near in near_experiments(experiment, kind, NEAR):
        nan, zeros = _nan_and_zeros(_cache(near, near.left, cache.name))
        if not torch.equal(nan, zeros):
            return False
    return True


def _nan_and_zeros(cache: Cache) -> tuple[torch.Tensor, torch.Tensor]:
    live = torch.tensor(cache.slots) != NOWHERE
    nan = cache.held.cpu()[torch.tensor(cache.slots)[live]].isnan()
    zeros = cache.known.value.cpu()[live] == 0.0
    return nan, zeros.all(-1, keepdim=True).expand_as(nan) if zeros.dim() > 2 else zeros


def _of_limit(cache: Cache, dtype: torch.dtype) -> str:
    """Return what is wrong of the largest numbers of an fp8 cache, in words, if all else is right; else nothing."""
    if not is_fp8_dtype(dtype):
        return ""
    live = torch.tensor(cache.slots) != NOWHERE
    held = cache.held.cpu()[torch.tensor(cache.slots)[live]]
    value, bound = cache.known.value.cpu()[live], cache.known.bound.cpu()[live]
    wrong = ~((held - value).abs() <= bound)
    if not bool(wrong.any()):
        return ""
    beyond = wrong & (value.abs() == torch.finfo(dtype).max)
    if bool((beyond == wrong).all()) and not bool(held[wrong].isfinite().any()):
        return "numbers beyond the largest of the cache are not clamped"
    limit = float(held.nan_to_num().abs().max())
    clamped = bool(((held - value.clamp(-limit, limit)).abs() <= bound).all())
    return f"numbers are clamped to {limit:g}" if clamped else ""


def _slots_of_no_token(cache: Cache) -> Iterator[tuple[Reason, str]]:
    """Yield the slots that are written though no token has them."""
    written = cache.written.clone()
    written[[slot for slot in cache.slots if slot != NOWHERE]] = False
    slots = written.nonzero().flatten().tolist()
    for slot in slots[:SHOWN]:
        token = cache.token_in(slot)
        what = "is written" if token is None else f"holds token {token}, {_place_of(cache, token)}"
        yield "address", f"slot {slot}, which no token has, {what}"
    if len(slots) > SHOWN:
        yield "address", f"{len(slots)} slots are written that no token has"


def _place_of(cache: Cache, token: int) -> str:
    slot = cache.slots[token]
    return "which is skipped" if slot == NOWHERE else f"whose slot is {slot}"


def _wrong_tokens(cache: Cache, output: OutputTensor) -> Iterator[tuple[Reason, str]]:
    """Yield the tokens whose slots do not hold them."""
    live = [(token, slot) for token, slot in enumerate(cache.slots) if slot != NOWHERE]
    missing = [token for token, slot in live if not cache.written[slot]]
    for token in missing[:SHOWN]:
        yield "unwritten", f"token {token} is not written to slot {cache.slots[token]}"
    if len(missing) > SHOWN:
        yield "unwritten", f"{len(missing)} of {len(live)} tokens are not written"
    wrong = [(token, slot) for token, slot in live if cache.written[slot] and not cache.holds(slot, token)]
    if not wrong:
        return
    axes = {"head": (0, 2), "column": (0, 1)}
    unwritten = output.unwritten[[token for token, _ in wrong]]
    unwritten = unwritten[..., None] if unwritten.ndim == 2 else unwritten
    for axis, rest in axes.items():
        never = unwritten.all(rest)
        if bool(never.any()):
            lost = never.nonzero().flatten().tolist()
            which = f"{axis} {lost[0]} is" if len(lost) == 1 else f"{axis}s {ranges(lost)} are"
            overflow = ", or -128 is stored there" if output.tensor.dtype == torch.int8 else ""
            yield "unwritten", f"{which} not written{overflow}"
            return
    for token, slot in wrong[:SHOWN]:
        other = cache.token_in(slot)
        if other is not None:
            yield "address", f"slot {slot} holds token {other} and not token {token}"
        elif cache.nearly_holds(slot, token, _spacing(output.tensor.dtype)):
            yield "arithmetic", f"numbers of token {token} in slot {slot} are rounded wrongly"
        elif cache.name in CACHE_OF:
            yield "scale", f"the scales of token {token} in slot {slot} do not follow from its largest magnitude"
        elif ratio := cache.factor_of(slot, token):
            yield "scale", f"numbers of token {token} in slot {slot} are {ratio} times what they must be"
        else:
            yield "address", f"slot {slot} holds other numbers than those of token {token}"


def _spacing(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
