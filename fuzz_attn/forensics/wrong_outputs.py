"""Outputs: elements that are never written, and outputs that are wrong though the weights are right."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from itertools import groupby
from typing import Final

import numpy as np
import torch

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import DTypeName, is_fp8
from fuzz_attn.forensics.accesses import element_of, packed_words
from fuzz_attn.forensics.explanation import Finding, count, factor, is_plausible, ranges, rows_of_case
from fuzz_attn.forensics.lab import Array, Lab, by_row
from fuzz_attn.inputs.batch_rows import custom_masks, seen_keys
from fuzz_attn.inputs.storage import TORCH_DTYPES, bits_of, elements_in, far_axis
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.reference import attend
from fuzz_attn.properties.experiment import Launch

LITTLE_LEFT = 0.05
"""Share of the errors that an explanation may leave."""
MOST_CONVERTED = 1 << 22
"""Elements of a cache up to which it is read as integers."""
LIMITS = frozenset(torch.finfo(TORCH_DTYPES[name]).max for name in ("float8_e4m3fn", "float8_e5m2", "float16"))
"""The largest numbers of types, which outputs of another type may be clamped to."""
ROUNDED: Final = 2.0**-3
"""The largest relative error of an fp8 number with two bits behind its point."""
READ_AS: Final = "the caches are read as "
SEEN = 10.0
"""How many times the largest error a limit must be, for outputs to show that they are cut to it."""
OF_A_ROW = 0.2
"""Share of the error of each row that it may leave."""


def empty_findings(lab: Lab) -> list[Finding]:
    """Return what rows that see no key give in place of 0, where all other rows are right."""
    case, rows = lab.case, rows_of_case(lab.case)
    bits = custom_masks(case)
    if not (bits or FAMILIES[case.family].any_lengths):
        return []
    lengths = zip(case.sequences, bits or [None] * len(case.sequences), strict=True)
    seen = [np.asarray(seen_keys(case.visibility, s.query_len, s.context_len, own).any(1)) for s, own in lengths]
    wrong = [row for row in rows if lab.first.wrong[row.token, row.head].any()]
    if not wrong or any(seen[row.sequence][row.query] for row in wrong):
        return []
    actual = lab.first.actual[wrong[0].token, wrong[0].head]
    finite = bool(np.isfinite(actual).all())
    if finite and not bits:  # the weights tell which key it attends
        return []
    gives = f"{actual[np.abs(actual).argmax()]:.4g}" if finite else "NaN or Inf"
    return [Finding("denominator", f"{wrong[0].words}, head {wrong[0].head}, sees no key, and gives {gives}, not 0")]


def unwritten_findings(lab: Lab) -> list[Finding]:
    """Return which rows, heads or columns of the outputs still hold their poison."""
    return [finding for name in lab.untouched for finding in _unwritten_in(name, lab)]


def _unwritten_in(name: str, lab: Lab) -> Iterator[Finding]:
    tensors = lab.experiment.first.tensors
    output, expected = tensors.outputs[name], lab.experiment.reference.get(name)
    unwritten = lab.untouched[name]
    if expected is not None:
        unwritten = unwritten & expected.bound.isfinite().cpu().numpy()
    if output.live is not None:
        unwritten = unwritten & output.live.cpu().numpy()
    if not unwritten.any():
        return
    of = f" of {tensors.output_words(name)}" * (len(tensors.outputs) > 1)
    if set(output.axes) - {"token", "head", "column"}:
        yield Finding("unwritten", f"{count(int(unwritten.sum()), 'element')}{of}: never written")
        return
    lost = _by_row(unwritten, output.axes)
    columns = np.flatnonzero(lost.any(axis=(0, 1)))
    rows = [row for row in rows_of_case(lab.case) if lost[row.token, min(row.head, lost.shape[1] - 1)].any()]
    heads = sorted({row.head for row in rows})
    words = [
        f"{'query' if len(queries) == 1 else 'queries'} {ranges(queries)} of sequence {sequence}"
        for sequence, queries in ((i, {r.query for r in group}) for i, group in groupby(rows, lambda r: r.sequence))
    ]
    what = ", ".join(words[:3]) + (f" and {len(words) - 3} more sequences" if len(words) > 3 else "")
    what += f", head{'s' * (len(heads) > 1)} {ranges(heads)}" * (len(heads) < lab.case.heads.num_query_heads)
    what += f", columns {ranges(columns.tolist())}" * (len(columns) < lost.shape[2])
    yield Finding("unwritten", f"{what}{of}: never written")


def _by_row(elements: Array, axes: tuple[str, ...]) -> Array:
    """Return elements as ``[tokens, heads, columns]``, of length 1 along an axis that the output does not have."""
    present = [axes.index(axis) for axis in ("token", "head", "column") if axis in axes]
    missing = tuple(place for place, axis in enumerate(("token", "head", "column")) if axis not in axes)
    ordered: Array = np.expand_dims(elements.transpose(present), missing)
    return ordered


PADDED_ROWS: Final = "unwritten: rows behind the last token are written"
"""The cause of what only padded rows of the output show."""


def outside_findings(lab: Lab) -> list[Finding]:
    """Return which memory of the outputs the target wrote that it must leave as it was."""
    return [finding for name in lab.experiment.first.tensors.outputs for finding in _outside_of(name, lab)]


def _outside_of(name: str, lab: Lab) -> list[Finding]:
    launch = lab.experiment.first
    output, words = launch.tensors.outputs[name], launch.tensors.output_words(name)
    bits = bits_of(output.tensor)
    live = torch.zeros_like(bits, dtype=torch.bool)
    output.copy_live(torch.ones_like(live), live)
    dead = (bits != elements_in(launch.outputs_before[name], bits)) & ~live
    if not bool(dead.any()):
        return _beside(name, launch, lab.case)
    if "token" not in output.axes or dead.dim() != len(output.axes):
        what = f"{count(int(dead.sum()), 'element')} of {words}"
        return [Finding("unwritten", f"{what} written, which the target must leave as they are")]
    by_token = dead.movedim(output.axes.index("token"), 0)
    rows = by_token.reshape(len(by_token), -1).any(1).nonzero().flatten().tolist()
    left = f"{_rows_of(rows, words, lab.case)} written, which the target must leave as they are"
    padded = name == "out" and min(rows) >= lab.case.num_tokens
    return [Finding("unwritten", left, cause=PADDED_ROWS if padded else "")]


def _beside(name: str, launch: Launch, case: AttentionCase) -> list[Finding]:
    """Return which memory between or around the rows of an output is written; empty where none is."""
    output, words = launch.tensors.outputs[name], launch.tensors.output_words(name)
    bits, memory = bits_of(output.tensor), launch.outputs_before[name].clone()
    elements_in(memory, bits).copy_(bits)
    places = (memory.view(bits.dtype) != launch.outputs_after[name].view(bits.dtype)).nonzero()
    if not len(places):
        return []
    *row, place = places[0].tolist()
    offset = sum(row) * bits.stride(far_axis(bits) or 0) + place - int(bits.storage_offset())
    where = packed_words(name, offset, bits, case) if name == "out" else element_of(bits, offset, words)
    much = f"{count(len(places), 'element')} of memory between or around the rows of {words}"
    return [Finding("address", f"{much} {'is' if len(places) == 1 else 'are'} written, from {where}")]


def _rows_of(rows: list[int], output: str, case: AttentionCase) -> str:
    starts, sequences = 0, []
    for index, sequence in enumerate(case.sequences):
        if any(starts <= row < starts + sequence.query_len for row in rows):
            sequences.append(index)
        starts += sequence.query_len
    what = f"row{'s' * (len(rows) > 1)} {ranges(rows)} of {output}"
    padded = any(row >= case.num_tokens for row in rows)
    empty = bool(sequences) and not any(case.sequences[index].seq_len for index in sequences)
    keyless = ", which has no keys" if len(sequences) == 1 else ", which have no keys"
    of = [f"of sequence {ranges(sequences)}{keyless * empty}"] * bool(sequences) + ["behind the last token"] * padded
    return f"{what} ({', '.join(of)}) {'are' if len(rows) > 1 else 'is'}"


def output_findings(lab: Lab) -> list[Finding]:
    """Return what is wrong with outputs whose weights are right: a factor or a clamp; empty if neither."""
    actual, expected, bound = lab.first.actual, lab.first.expected, lab.first.bound
    usable = np.isfinite(bound) & np.isfinite(actual)
    if not usable.any():
        return []
    clamped = [*_clamped_before(lab, usable), *_clamps(actual, expected, bound, usable)]
    if clamped and float(np.abs(actual[usable]).max()) in LIMITS:  # a factor would give them too, if all are beyond
        return clamped
    return [*_factors(lab, usable), *clamped][:1]


def _factors(lab: Lab, usable: Array) -> Iterator[Finding]:
    """Yield one factor on all outputs, or one for the values of the cache and one for the packed ones."""
    actual, expected, bound = (each[usable] for each in (lab.first.actual, lab.first.expected, lab.first.bound))
    if not actual.any():  # what has any factor of 0
        yield Finding("scale", "outputs are 0", vague=True)
        return
    parts = [part[usable] for part in _parts(lab)]
    for columns in ([expected], *([parts] if parts else [])):
        matrix = np.stack(columns, axis=1)
        fitted, *_ = np.linalg.lstsq(matrix, actual, rcond=None)
        left = _size(actual - matrix @ fitted)
        if left > LITTLE_LEFT * _size(actual - expected) or not _of_all_rows(lab, usable, matrix @ fitted):
            continue
        changed = np.abs(matrix @ fitted - expected) > 2 * bound
        if bool((changed & (np.abs(actual - expected) <= bound)).any()):  # right, and not with that factor
            continue
        plausible = all(is_plausible(number) or _names(number, lab.case) for number in fitted.tolist())
        if not plausible and left > LITTLE_LEFT * _size(actual):  # else any small numbers have a factor near 0
            continue
        if len(fitted) == 1:
            names = _names(float(fitted[0]), lab.case)
            only_new = bool(parts) and not np.any(parts[0])  # then it may be the scale of their values
            words = f"weights are right; the output's scale is not ({_named(float(fitted[0]), lab.case)})"
            yield Finding("scale", words, vague=only_new or len(names) > 1)
            return
        for name, number in zip(("the cache", "the new tokens"), fitted.tolist(), strict=True):
            if abs(number - 1) > 0.02:
                words = f"weights are right; the values of {name} have a wrong scale ({_named(number, lab.case)})"
                yield Finding("scale", words, vague=len(_names(number, lab.case)) != 1)
                return


def _of_all_rows(lab: Lab, usable: Array, scaled: Array) -> bool:
    """Return whether scaled outputs explain the error of each row, and not only of those with large numbers."""
    given = np.where(usable, lab.first.expected, 0.0)
    given[usable] = scaled
    first = lab.first
    actual, expected, bound = (np.where(usable, each, 0.0) for each in (first.actual, first.expected, first.bound))
    left, error, allowed = (
        np.sqrt(np.square(each).sum(axis=-1)) for each in (actual - given, actual - expected, bound)
    )
    return bool((left <= OF_A_ROW * error + allowed)[by_row(lab.first.wrong)].all())


def _parts(lab: Lab) -> list[Array]:
    """Return the expected output of the cached values, and of the packed ones; nothing without packed ones."""
    tensors = lab.experiment.first.tensors
    if tensors.new_values is None:
        return []
    whole = lab.first.expected
    without = dataclasses.replace(tensors, new_values=torch.zeros_like(tensors.new_values))
    cached = attend(without, lab.experiment.target.rounding_model)["out"].value.cpu().numpy()
    return [cached, whole - cached]


def _named(number: float, case: AttentionCase) -> str:
    """Return a factor, with the scales of the case that it may be."""
    return ", ".join((f"factor {factor(number)}", *([" or ".join(names)] if (names := _names(number, case)) else [])))


def _names(number: float, case: AttentionCase) -> list[str]:
    """Return the scales of a case that a factor may be."""
    scales = case.scales
    known = {
        "1 / v_scale": 1 / scales.v if scales.v else math.inf,
        "v_scale": scales.v,
        "1 / out_scale": 1 / scales.out,
        "out_scale": scales.out,
        "out_scale squared": scales.out**2,
        "k_scale / v_scale": scales.k / scales.v if scales.v else math.inf,
        "q_scale": scales.q,
        "1 / q_scale": 1 / scales.q if scales.q else math.inf,
    }
    allowed = 0.03 if is_fp8(case.dtypes.out) else 0.01
    return [name for name, value in known.items() if value != 1.0 and abs(number - value) <= allowed * abs(value)]


def _clamped_before(lab: Lab, usable: Array) -> Iterator[Finding]:
    """Yield that outputs are clamped to the largest number of their type before they are divided by their scale."""
    scale, dtype = abs(lab.case.scales.out), lab.case.dtypes.out
    if not is_fp8(dtype) or scale <= 1:
        return
    actual, expected, bound = (each[usable] for each in (lab.first.actual, lab.first.expected, lab.first.bound))
    largest = torch.finfo(TORCH_DTYPES[dtype]).max
    limit = float(np.abs(actual).max(initial=0.0))
    beyond = np.abs(expected) > limit + bound
    if beyond.any() and abs(limit * scale - largest) <= ROUNDED * largest and (np.abs(actual[beyond]) == limit).all():
        words = f"outputs beyond {largest:g} are clamped to it before they are divided by out_scale, {scale:g}"
        yield Finding("scale", f"weights are right; {words}")


def _clamps(actual: Array, expected: Array, bound: Array, usable: Array) -> Iterator[Finding]:
    """Yield the limit that outputs are clamped to too early."""
    limit = float(np.abs(actual[usable]).max(initial=0.0))
    beyond = usable & (np.abs(expected) > limit + bound)
    of_a_type = limit in LIMITS and bool((np.abs(actual[beyond]) == limit).all())
    if not beyond.any() or (limit <= SEEN * float(bound[usable].max()) and not of_a_type):
        return
    clamped = np.abs(np.clip(expected, -limit, limit) - actual) <= bound + 1e-6 * limit
    if bool(clamped[usable].all()):
        yield Finding("scale", f"weights are right; outputs beyond {limit:g} are clamped to it")


def type_findings(lab: Lab) -> Iterator[Finding]:
    """Yield that the caches are read as another type, the other kind of fp8 or integers, if that gives the output."""
    case, usable = lab.case, np.isfinite(lab.first.bound) & np.isfinite(lab.first.actual)
    if not is_fp8(case.dtypes.kv) or not usable.any():
        return
    actual = lab.first.actual[usable]
    for words, other in _read_otherwise(lab.experiment.first.tensors, case.dtypes.kv):
        read = attend(other, lab.experiment.target.rounding_model)["out"]
        value, bound = (each.cpu().numpy()[usable] for each in (read.value, read.bound.expand_as(read.value)))
        with np.errstate(invalid="ignore"):
            same = (np.abs(actual - value) <= bound) & np.isfinite(bound) | (actual == value)
        if same.all():  # no factor gives them then, other than by chance
            yield Finding("scale", words)
            return


def _read_otherwise(tensors: AttentionTensors, stored: DTypeName) -> Iterator[tuple[str, AttentionTensors]]:
    """Yield tensors whose caches are of another type, with what that is in words."""
    name: DTypeName = "float8_e5m2" if stored == "float8_e4m3fn" else "float8_e4m3fn"
    caches = {cache: bits_of(getattr(tensors, cache)) for cache in ("key_cache", "value_cache")}
    other = dataclasses.replace(tensors, **caches, kv_dtype=TORCH_DTYPES[name])  # type: ignore[arg-type] # by name
    yield f"{READ_AS}{name}, and hold {stored}", other
    if tensors.value_cache.dtype != torch.uint8 or max(each.numel() for each in caches.values()) > MOST_CONVERTED:
        return
    for words, names in (("V", ["value_cache"]), ("K", ["key_cache"]), ("K and V", [*caches])):
        integers = {each: caches[each].view(torch.uint8).float() for each in names}
        said = f"the bytes of {words} are read as integers from 0 to 255, and hold {stored}"
        yield said, dataclasses.replace(tensors, **integers)  # type: ignore[arg-type] # by name


def _size(numbers: Array) -> float:
    return float(np.sqrt(np.square(numbers).mean())) if numbers.size else 0.0
