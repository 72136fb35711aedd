"""The comparison: judges a target's outputs against the oracle's reference, element by element.

One word says where in an output the wrong elements are, a part of a failure's signature.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import torch

from fuzz_attn.inputs.output_tensors import OutputTensor
from fuzz_attn.inputs.storage import is_fp8_dtype
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.reference import Expected, Reference
from fuzz_attn.oracle.row_blocks import every, maximum_of, some
from fuzz_attn.oracle.verdict import Element, Kind, Verdict, Where


def where_wrong(wrong: torch.Tensor, axes: tuple[str, ...], tensors: AttentionTensors) -> Where:
    """Return the narrowest word that describes all wrong elements of an output with these axes.

    In order: the columns past the largest power of two, the last row of each sequence, the rows whose window hides a
    key, one sequence of several, some heads, some columns, every token (``everywhere``), anything else (``scattered``).
    A word that describes every element of the batch is skipped, and so is one about an axis that the output lacks.
    """
    columns, heads, tokens = (_along(axis, wrong, axes) for axis in ("column", "head", "token"))
    first_padded = 1 << (len(columns).bit_length() - 1)
    narrow: list[tuple[Where, bool]] = [
        ("padded_head", first_padded < len(columns) and not bool(columns[:first_padded].any())),
        *(_of_rows(tokens, tensors) if "token" in axes else ()),
        ("some_heads", not bool(heads.all())),
        ("some_columns", not bool(columns.all())),
        ("everywhere", bool((tokens if "token" in axes else wrong).all())),
    ]
    return next((name for name, holds in narrow if holds), "scattered")


def _along(axis: str, wrong: torch.Tensor, axes: tuple[str, ...]) -> torch.Tensor:
    """Return for each index of an axis whether an element there is wrong; one True for an axis that is not there."""
    if axis not in axes:
        return wrong.new_ones(1)
    by_index = wrong.movedim(axes.index(axis), 0)
    return by_index.reshape(len(by_index), -1).any(1)


def _of_rows(tokens: torch.Tensor, tensors: AttentionTensors) -> Iterator[tuple[Where, bool]]:
    """Yield the words for wrong tokens that depend on their sequence, and whether each holds."""
    sequences, rows = sequence_of_tokens(tensors.query_lens)
    visibility = tensors.visibility
    position = visibility.position(rows, torch.tensor(tensors.context_lens)[sequences])
    yield "tail_rows", _confined(tokens, rows == torch.tensor(tensors.query_lens)[sequences] - 1)
    yield "window_rows", visibility.may_cut and _confined(tokens, visibility.cuts(position))
    yield "one_sequence", _confined(tokens, sequences == sequences[tokens][0])


def sequence_of_tokens(query_lens: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sequence of each token and its row in that sequence, int64 on the CPU."""
    lengths = torch.tensor(query_lens, dtype=torch.int64)
    sequences = torch.repeat_interleave(torch.arange(len(query_lens)), lengths)
    starts = lengths.cumsum(0) - lengths
    return sequences, torch.arange(len(sequences)) - starts[sequences]


def _confined(tokens: torch.Tensor, place: torch.Tensor) -> bool:
    """Return whether all wrong tokens are in a place that is not the whole batch."""
    return not bool((tokens & ~place).any()) and not bool(place.all())


WORST: Final = 8
"""Number of elements that a verdict lists."""


def judge(tensors: AttentionTensors, reference: Reference) -> Verdict:
    """Return the verdict of the property ``oracle`` on the outputs of a reference after a launch: the first that fails.

    Only live elements count. An element is wrong if it still holds the output's poison, if it is NaN or Inf and its
    bound is finite, or if it differs from the expected value by more than the bound. The last does not apply where the
    value is not judged.
    """
    passed = []
    for name, expected in reference.items():
        verdict = _judged(tensors, tensors.outputs[name], expected)
        if not verdict.passed:
            return verdict if len(tensors.outputs) == 1 else _named(verdict, name)
        passed.append(verdict)
    if len(passed) == 1:
        return passed[0]
    ratios = [verdict.ratio for verdict in passed if verdict.ratio is not None]
    return Verdict("oracle", ratio=max(ratios, default=None), elements=sum(verdict.elements for verdict in passed))


def _named(verdict: Verdict, output: str) -> Verdict:
    return msgspec.structs.replace(verdict, output=output, message=f"{output}: {verdict.message}")


def _judged(tensors: AttentionTensors, output: OutputTensor, expected: Expected) -> Verdict:
    """Return the verdict on one output."""
    if not expected.value.numel():
        return Verdict("oracle")
    actual, live = output.elements, output.live
    ratio = _ratio(actual.double(), expected)
    if live is not None:
        ratio.masked_fill_(~live, 0.0)
    worst = maximum_of(ratio)
    if worst <= 1.0:
        return Verdict("oracle", ratio=worst, elements=ratio.numel())
    unwritten, bounded = output.unwritten, expected.bound.isfinite()
    if is_fp8_dtype(actual.dtype):  # an fp8 NaN has the bits of the poison, and may come from a correct overflow
        unwritten &= bounded
    if live is not None:
        unwritten &= live
    wrong = (unwritten | ~(ratio <= 1.0)) & (unwritten | bounded)
    if not some(wrong):
        return Verdict("oracle", ratio=_largest(ratio), elements=ratio.numel())
    return _failure(tensors, output, expected, (wrong, unwritten, ratio))


def _ratio(actual: torch.Tensor, expected: Expected) -> torch.Tensor:
    """Return ``|error| / bound``: NaN for NaN, infinite for Inf, 0 for finite elements that are not judged."""
    ratio = (actual - expected.value).abs_().div_(expected.bound)
    if expected.exact_infinities:
        ratio.masked_fill_(expected.value.isinf() & (actual == expected.value), 0.0)
    if not every(expected.judged):
        ratio.masked_fill_(~expected.judged & actual.isfinite(), 0.0)
    return ratio


def _largest(ratio: torch.Tensor) -> float | None:
    """Return the largest finite ratio, or None if no ratio is finite."""
    finite = ratio[ratio.isfinite()]
    return float(finite.max()) if finite.numel() else None


def _failure(
    tensors: AttentionTensors,
    output: OutputTensor,
    expected: Expected,
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> Verdict:
    """Return the verdict on an output that is wrong: ``found`` are wrong and unwritten elements and their ratios."""
    wrong, unwritten, ratio = found
    actual = output.elements.double()
    nan, infinite = actual.isnan() & ~unwritten & wrong, actual.isinf() & wrong
    counts = {"unwritten": int(unwritten.sum()), "nan": int(nan.sum()), "inf": int(infinite.sum())}
    kinds: tuple[Kind, ...] = ("unwritten", "nan", "inf")
    largest = _largest(ratio)
    total = int(wrong.sum())
    return Verdict(
        "oracle",
        kind=next((kind for kind in kinds if counts[kind]), "mismatch"),
        message=_message(total, wrong.numel(), counts, largest),
        ratio=largest,
        where=where_wrong(wrong.cpu(), output.axes, tensors),
        wrong=total,
        elements=wrong.numel(),
        worst=tuple(_worst(tensors, output, expected, wrong, ratio)),
    )


def _message(total: int, elements: int, counts: dict[str, int], largest: float | None) -> str:
    phrases = {"unwritten": "never written", "nan": "NaN", "inf": "infinite"}
    parts = [f"{count} {phrases[kind]}" for kind, count in counts.items() if count]
    if largest is not None and largest > 1.0:
        parts.append(f"worst {largest:.3g} times the bound")
    return f"{total} of {elements} elements wrong, {', '.join(parts)}"


def _worst(
    tensors: AttentionTensors, output: OutputTensor, expected: Expected, wrong: torch.Tensor, ratio: torch.Tensor
) -> Iterator[Element]:
    """Yield the worst elements: non-finite ones first, then by falling ratio; equal ones in memory order."""
    places = wrong.nonzero()
    order = ratio.nan_to_num(torch.inf, torch.inf)[wrong].sort(descending=True, stable=True).indices[:WORST]
    sequences, rows = (each.tolist() for each in sequence_of_tokens(tensors.query_lens))
    elements = output.elements
    for place in map(tuple, places[order].tolist()):
        at = dict(zip(output.axes, place, strict=True))
        token = at.get("token", -1)
        yield Element(
            token,
            at.get("head", -1),
            at.get("column", -1),
            sequence=-1 if token < 0 else sequences[token],
            query_index=-1 if token < 0 else rows[token],
            actual=repr(float(elements[place])),
            expected=repr(float(expected.value[place])),
            bound=repr(float(expected.bound[place])),
        )
