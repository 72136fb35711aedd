"""The comparison: judges a target's output against the oracle's reference, element by element.

One word says where in the output the wrong elements are, a part of a failure's signature.
"""

from __future__ import annotations

from typing import Final

import torch

from fuzz_attn.inputs.tensor_types import is_fp8_dtype
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.conditions import maximum_of, some
from fuzz_attn.oracle.reference import Reference
from fuzz_attn.oracle.verdict import Element, Kind, Verdict, Where


def where_wrong(wrong: torch.Tensor, tensors: AttentionTensors) -> Where:
    """Return the narrowest word that describes all wrong elements ``[num_tokens, num_query_heads, head_size]``.

    In order: the columns past the largest power of two, the last row of each sequence, the rows whose window hides a
    key, one sequence of several, some heads, some columns, every token (``everywhere``), anything else (``scattered``).
    A word that describes every element of the batch is skipped.
    """
    columns, heads = wrong.any(0).any(0), wrong.any(2).any(0)
    tokens = wrong.any(2).any(1)
    sequences, rows = sequence_of_tokens(tensors.query_lens)
    query_lens = torch.tensor(tensors.query_lens)
    position = rows + torch.tensor(tensors.context_lens)[sequences]
    head_size = wrong.shape[2]
    first_padded = 1 << (head_size.bit_length() - 1)
    narrow: list[tuple[Where, bool]] = [
        ("padded_head", first_padded < head_size and not bool(columns[:first_padded].any())),
        ("tail_rows", _confined(tokens, rows == query_lens[sequences] - 1)),
        ("window_rows", tensors.window > 0 and _confined(tokens, tensors.visibility.cuts(position))),
        ("one_sequence", _confined(tokens, sequences == sequences[tokens][0])),
        ("some_heads", not bool(heads.all())),
        ("some_columns", not bool(columns.all())),
        ("everywhere", bool(tokens.all())),
    ]
    return next((name for name, holds in narrow if holds), "scattered")


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

_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def judge(tensors: AttentionTensors, reference: Reference) -> Verdict:
    """Return the verdict of the property ``oracle`` on ``tensors.output`` after a launch.

    Only rows of sequences that the target answers count. An element is wrong if it still holds the output's poison, if
    it is NaN or Inf and its bound is finite, or if it differs from the reference by more than the bound. The last does
    not apply to ill-conditioned rows.
    """
    expected, bound = reference.expected, reference.bound
    actual = tensors.output[: expected.shape[0]]
    if not expected.numel():
        return Verdict("oracle")
    ratio, answered = _ratio(actual.double(), reference), tensors.answered_tokens
    if answered is not None:
        ratio.masked_fill_(~answered[:, None, None], 0.0)
    worst = maximum_of(ratio)
    if worst <= 1.0:
        return Verdict("oracle", ratio=worst, elements=expected.numel())
    unwritten = is_unwritten(actual, tensors.output_poison)
    if is_fp8_dtype(actual.dtype):  # an fp8 NaN has the bits of the poison, and may come from a correct overflow
        unwritten &= bound.isfinite()
    if answered is not None:
        unwritten &= answered[:, None, None]
    wrong = (unwritten | ~(ratio <= 1.0)) & (unwritten | bound.isfinite())
    if not some(wrong):
        return Verdict("oracle", ratio=_largest(ratio), elements=expected.numel())
    return _failure(tensors, reference, wrong, unwritten, ratio)


def is_unwritten(actual: torch.Tensor, poison: int) -> torch.Tensor:
    """Return bool: whether each element still has the bits of the output's poison."""
    width = 8 * actual.dtype.itemsize
    signed = poison - (1 << width) if width > 8 and poison >> (width - 1) else poison
    return actual.view(_BITS[actual.dtype.itemsize]) == signed


def _ratio(actual: torch.Tensor, reference: Reference) -> torch.Tensor:
    """Return ``|error| / bound``: NaN for NaN, infinite for Inf, 0 for finite elements of ill-conditioned rows."""
    ratio = (actual - reference.expected).abs_().div_(reference.bound)
    if some(reference.ill_conditioned):
        ratio.masked_fill_(reference.ill_conditioned[..., None] & actual.isfinite(), 0.0)
    return ratio


def _largest(ratio: torch.Tensor) -> float | None:
    """Return the largest finite ratio, or None if no ratio is finite."""
    finite = ratio[ratio.isfinite()]
    return float(finite.max()) if finite.numel() else None


def _failure(
    tensors: AttentionTensors,
    reference: Reference,
    wrong: torch.Tensor,
    unwritten: torch.Tensor,
    ratio: torch.Tensor,
) -> Verdict:
    actual = tensors.output[: wrong.shape[0]].double()
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
        where=where_wrong(wrong.cpu(), tensors),
        wrong=total,
        elements=wrong.numel(),
        worst=_worst(tensors, reference, wrong, ratio),
    )


def _message(total: int, elements: int, counts: dict[str, int], largest: float | None) -> str:
    phrases = {"unwritten": "never written", "nan": "NaN", "inf": "infinite"}
    parts = [f"{count} {phrases[kind]}" for kind, count in counts.items() if count]
    if largest is not None and largest > 1.0:
        parts.append(f"worst {largest:.3g} times the bound")
    return f"{total} of {elements} elements wrong, {', '.join(parts)}"


def _worst(
    tensors: AttentionTensors, reference: Reference, wrong: torch.Tensor, ratio: torch.Tensor
) -> tuple[Element, ...]:
    """Return the worst elements: non-finite ones first, then by falling ratio; equal ones in memory order."""
    rank = torch.where(wrong, ratio.nan_to_num(torch.inf, torch.inf), -1.0).flatten()
    order = rank.sort(descending=True, stable=True).indices[: min(WORST, int(wrong.sum()))].tolist()
    sequences, rows = sequence_of_tokens(tensors.query_lens)
    elements = []
    for flat in order:
        token, head, column = (int(index) for index in torch.unravel_index(torch.tensor(flat), wrong.shape))
        place = (token, head, column)
        elements.append(
            Element(
                *place,
                sequence=int(sequences[token]),
                query_index=int(rows[token]),
                actual=repr(float(tensors.output[place])),
                expected=repr(float(reference.expected[place])),
                bound=repr(float(reference.bound[place])),
            )
        )
    return tuple(elements)
