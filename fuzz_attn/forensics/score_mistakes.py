"""Score mistakes: those in one term, slopes and elements of biases included, that would give the weights."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.forensics.attended_keys import recovered
from fuzz_attn.forensics.explanation import OR, Finding, Reason, factor, is_plausible
from fuzz_attn.forensics.lab import Array, Lab
from fuzz_attn.forensics.score_terms import Comparison, Terms, centred, comparison_of, first_row

ENOUGH: Final = 2
"""So many numbers of the weights must be left to speak against a mistake that gives them, else it may be chance."""
ALL_FREEDOM: Final = 10**6
"""Numbers that stand for a mistake which others could always take the place of."""
MOST_HEADS: Final = 8
MOST_COLUMNS: Final = 64
MUCH_MORE: Final = 10.0
NOTHING_LEFT: Final = 1e-3
"""Share of the errors that may be roundings of the weights."""
LARGEST_SHIFT: Final = 20.0
"""A sink beyond so many units of the right one weighs nothing, or all."""


class Mistake(NamedTuple):
    """A mistake that gives the weights: words that go on from its subject, and how many numbers were fitted for it."""

    reason: Reason
    words: str
    fitted: int = 0
    subject: str = ""
    """The first row with wrong weights, unless it says another."""


def score_findings(seen: Comparison) -> Iterator[Finding]:
    """Yield what is wrong with the scores, as far as it gives the recovered weights.

    Every mistake that gives them is named. One whose number is only fitted to the weights is not, where another needs
    none. It is vague where several mistakes do, and where there are too few weights to exclude others.
    """
    if not seen.usable.any():
        return
    questions = (_sinks, _slopes, _biases, _softcaps, _factors)
    found = list(dict.fromkeys(mistake for question in questions for mistake in question(seen)))
    exact = [mistake for mistake in found if not mistake.fitted] or found
    if exact:
        left = _freedom(seen) - max(mistake.fitted for mistake in exact)
        words = OR.join(mistake.words for mistake in exact)
        subject = exact[0].subject or f"{first_row(seen)}:"
        yield Finding(exact[0].reason, f"{subject} {words}", vague=len(exact) > 1 or left < ENOUGH)


def _freedom(seen: Comparison) -> int:
    """Return how many numbers the weights are: one less than keys in a row without a sink, whose sum is known."""
    visible = (seen.terms.visible & seen.usable[..., None]).sum(axis=-1)
    known = 0 if np.isfinite(seen.terms.sinks).any() else 1
    return int((visible - known * (visible > 0)).sum())


def _all(reason: Reason, what: str, others: dict[str, Array], seen: Comparison) -> Iterator[Mistake]:
    """Yield each mistake that gives the weights, without those that leave much more of the errors than another."""
    left = {words: seen.left(weights) for words, weights in others.items() if seen.explains(weights)}
    for words, share in left.items():
        if share <= max(MUCH_MORE * min(left.values()), NOTHING_LEFT):
            yield Mistake(reason, f"{what} {words}")


def _slopes(seen: Comparison) -> Iterator[Mistake]:
    """Yield what is wrong with the slopes, as far as it gives the weights."""
    terms, heads = seen.terms, seen.case.heads
    if seen.case.alibi is None:
        return
    number = np.arange(heads.num_query_heads)
    others = {
        "have the wrong sign": -terms.slopes,
        "are not applied": np.zeros_like(terms.slopes),
        "are looked up by the KV head": terms.slopes[number // heads.num_queries_per_kv],
        **{
            f"are read as {name}, and are {seen.case.alibi.dtype}": numbers
            for name, numbers in terms.reread.items()
        },
    }  # fmt: skip
    weights = {words: replace(terms, slopes=slopes).weights() for words, slopes in others.items()}
    away = np.abs(terms.distance)
    weights["have the wrong sign for the new tokens, behind the context"] = replace(terms, distance=-away).weights()
    weights["have the wrong sign for keys of the context"] = replace(terms, distance=away).weights()
    if np.isfinite(terms.sinks).any():
        shifted = terms.logits() + terms.slopes[:, None] * terms.context
        if seen.explains(terms.weights(shifted)):
            yield Mistake("slope", "ALiBi is counted from the sequence's first key")
    from_first = terms.distance + terms.context
    parts = {"the context": np.where(terms.packed, terms.distance, from_first)}
    parts["the new tokens"] = np.where(terms.packed, from_first, terms.distance)
    counted = {
        f"{part} is counted from the sequence's first key": replace(terms, distance=distance).weights()
        for part, distance in parts.items()
        if not (distance == from_first).all()
    }
    found = [*_all("slope", "the slopes", weights, seen), *_all("slope", "ALiBi of", counted, seen)]
    yield from found or _fitted(seen)


def _fitted(seen: Comparison) -> Iterator[Mistake]:
    """Yield the slope that a head uses, if other slopes give the weights."""
    terms, fitted = seen.terms, _fitted_slopes(seen)
    if seen.explains(replace(terms, slopes=fitted).weights()):
        head = int(np.argmax(np.abs(fitted - terms.slopes) * seen.usable.any(0)))
        words = f"uses a slope of {fitted[head]:.4g}, should use {terms.slopes[head]:.4g}"
        yield Mistake("slope", words, int(seen.usable.any(0).sum()), f"head {head}")


def _fitted_slopes(seen: Comparison) -> Array:
    """Return the slopes that the weights imply, by least squares of the logarithms of the weights."""
    terms, fitted = seen.terms, seen.terms.slopes.copy()
    rest = replace(terms, slopes=np.zeros_like(terms.slopes)).logits()
    for head in range(len(fitted)):
        x, y = centred(seen, head, terms.distance, rest)
        if (x**2).sum() > 0:
            fitted[head] = float((x * y).sum() / (x**2).sum())
    return fitted


def _biases(seen: Comparison) -> Iterator[Mistake]:
    """Yield what is wrong with the query-query bias, as far as it gives the weights."""
    terms = seen.terms
    if terms.matrix is None:
        return
    column = terms.distance.astype(np.int64)
    others = {
        "is not applied": np.zeros_like(terms.bias),
        "is transposed": _looked_up(terms, column, terms.query),
        "is counted from the sequence's first key": _looked_up(
            terms, terms.query, column + terms.context.astype(np.int64)
        ),
        **_misread(terms, column),
        **_left_out(terms, column),
    }
    weights = {words: replace(terms, bias=bias).weights() for words, bias in others.items()}
    yield from _all("bias", "the query-query bias", weights, seen)


def _looked_up(terms: Terms, row: Array, column: Array) -> Array:
    """Return the elements of the bias's matrix at some rows and columns, 0 outside of it."""
    assert terms.matrix is not None
    rows, columns = terms.matrix.shape
    inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
    return np.where(inside, terms.matrix[np.where(inside, row, 0), np.where(inside, column, 0)], 0.0)


def _misread(terms: Terms, column: Array) -> dict[str, Array]:
    """Return the bias that wrong addresses in its memory would give, where they differ from the right ones."""
    assert terms.matrix is not None
    (outer, inner), columns = terms.strides, terms.matrix.shape[1]
    new = column >= 0
    found = {}
    if outer != columns * inner:
        found["is read as if its rows were adjacent"] = _at(terms, (terms.query * columns + column) * inner, new)
    if inner != 1:
        found["is read as if its columns were adjacent"] = _at(terms, terms.query * outer + column, new)
    if terms.context.any():
        every = np.ones_like(new)
        found["is also read for keys of the context"] = _at(terms, terms.query * outer + column * inner, every)
    return found


def _left_out(terms: Terms, column: Array) -> dict[str, Array]:
    """Return the bias without one of its columns that some row sees, or without all from one on.

    The only column of a bias may be left out as the first or as the last one.
    """
    assert terms.matrix is not None
    seen = np.unique(column[terms.visible & (column >= 0)])[:MOST_COLUMNS].tolist()
    ends = {"the first": 0, "the last": terms.matrix.shape[1] - 1}
    found = {
        f"is not added in column {each}{place}": np.where(column == each, 0.0, terms.bias)
        for each in seen
        for place in [f", {words}" for words, end in ends.items() if each == end] or [""]
    }
    return found | {f"is not added from column {n} on": np.where(column >= n, 0.0, terms.bias) for n in seen[1:-1]}


def _at(terms: Terms, offset: Array, chosen: Array) -> Array:
    """Return the elements of the bias at offsets from its first one, 0 for those between or around its elements."""
    assert terms.matrix is not None
    rows, columns = np.indices(terms.matrix.shape)
    place = rows * terms.strides[0] + columns * terms.strides[1]
    memory = np.zeros(int(place.max(initial=0)) + 1)
    memory[place] = terms.matrix
    inside = chosen & (offset >= 0) & (offset < len(memory))
    return np.where(inside, memory[np.where(inside, offset, 0)], 0.0)


def _sinks(seen: Comparison) -> Iterator[Mistake]:
    terms, heads = seen.terms, seen.case.heads
    if not np.isfinite(terms.sinks).any():
        return
    number = np.arange(heads.num_query_heads)
    others = {
        "is not counted": np.full_like(terms.sinks, -np.inf),
        "is that of the head with its KV head's number": terms.sinks[number // heads.num_queries_per_kv],
        "counts as exp(sink) relative to itself": 2 * terms.sinks,
        **{f"is that of head {head}": np.full_like(terms.sinks, terms.sinks[head]) for head in number[:MOST_HEADS]},
    }
    weights = {words: replace(terms, sinks=sinks).weights() for words, sinks in others.items()}
    found = list(_all("sink", "the sink", weights, seen))
    several = (n for n in range(2, 33) if seen.explains(replace(terms, sinks=terms.sinks + math.log(n)).weights()))
    if not found and (times := next(several, None)) is not None:
        found = [Mistake("sink", f"the sink is counted {times} times", 1)]
    yield from found or _fitted_sinks(seen)


def _fitted_sinks(seen: Comparison) -> Iterator[Mistake]:
    """Yield the sink that the sums of the weights imply, for each head; or how much the keys weigh beside it.

    A sink of one row stands for any mistake that its keys share, so it is only called wrong if more rows need it.
    """
    terms = seen.terms
    ratio = seen.actual.sum(-1) / np.maximum(seen.expected.sum(-1), 1e-30)
    logits = terms.logits()
    top = np.where(np.isfinite(logits), logits, -np.inf).max(-1)
    keys = np.exp(logits - top[..., None]).sum(-1)
    fitted, even = terms.sinks.copy(), True
    rows_of_heads = [np.flatnonzero(seen.usable[:, head]) for head in range(len(fitted))]
    for head, rows in enumerate(rows_of_heads):
        if len(rows):
            total = keys[rows, head] / np.clip(ratio[rows, head] * seen.expected[rows, head].sum(-1), 1e-30, None)
            rest = np.log(np.maximum(total - keys[rows, head], 1e-30)) + top[rows, head]
            fitted[head] = float(np.median(rest))
            shift = abs(fitted[head] - terms.sinks[head])
            even &= float(np.ptp(rest)) <= 0.02 * min(shift, LARGEST_SHIFT) + 2e-3
    if even and seen.explains(replace(terms, sinks=fitted).weights()):
        head = int(np.flatnonzero(seen.usable.any(0))[0])
        used = f"{fitted[head]:.4g}" if fitted[head] > -50 else "none"
        if max(map(len, rows_of_heads)) > 1:
            words = f"uses a sink of {used}, should use {terms.sinks[head]:.4g}"
            yield Mistake("sink", words, len(fitted), f"head {head}")
            return
        times = float(np.exp(terms.sinks[head] - fitted[head]))
        if is_plausible(times):
            words = f"the keys weigh {factor(times)} times as much as they should beside the sink"
            yield Mistake("sink", words, ALL_FREEDOM)


def softcap_order_findings(lab: Lab, seen: Comparison) -> Iterator[Finding]:
    """Yield that the soft cap comes before the softmax scale; a launch with twice that tells it from another cap."""
    cap, scale = seen.terms.softcap, lab.case.softmax_scale
    if not cap or scale in (0.0, 1.0) or not seen.usable.any() or not seen.explains(_capped(seen.terms, cap * scale)):
        return
    found = recovered(lab, dataclasses.replace(lab.cleared(), softmax_scale=2.0 * scale))
    if found is None or not found.wrong.any():
        return
    other = comparison_of(lab, found, replace(seen.terms, score=2.0 * seen.terms.score))
    words = (
        f"the soft cap of {cap:g} is applied before the softmax scale"
        if other.explains(_capped(other.terms, 2.0 * cap * scale))
        else f"the soft cap acts as one of {cap * scale:g}, should be {cap:g}"
    )
    yield Finding("soft cap", f"{first_row(seen)}: {words}", vague=_freedom(seen) + _freedom(other) < ENOUGH)


def _capped(terms: Terms, cap: float) -> Array:
    """Return the weights with another soft cap."""
    return replace(terms, softcap=cap).weights()


def _softcaps(seen: Comparison) -> Iterator[Mistake]:
    terms, cap = seen.terms, seen.terms.softcap
    if not cap:
        return
    added = terms.slopes[:, None] * terms.distance + terms.bias

    def capped(outer: float, inner: float) -> Array:
        logits = outer * np.tanh(terms.score / inner) + added
        return terms.weights(np.where(terms.visible, logits, -np.inf))

    late = np.where(terms.visible, cap * np.tanh((terms.score + added) / cap), -np.inf)
    others = {
        "is not applied": replace(terms, softcap=0.0).weights(),
        **({"is applied after the biases": terms.weights(late)} if added.any() else {}),
        "is not multiplied back: the scores stay within 1": capped(1.0, cap),
        "does not divide the scores": capped(cap, 1.0),
        **{
            f"divides the scores as one of {cap * times:g} would": capped(cap, cap * times)
            for times in (2.0, 0.5, math.log(2.0), math.log2(math.e))
        },
    }
    yield from _all("soft cap", f"the soft cap of {cap:g}", others, seen)


def _factors(seen: Comparison) -> Iterator[Mistake]:
    """Yield the factor on the scores that gives the weights, of all keys, of the cached or of the packed ones."""
    terms = seen.terms
    if not seen.actual[seen.usable].any():  # with weights of 0 alone, any factor that is large enough gives them
        return
    everywhere = np.ones_like(terms.packed)
    parts = {"": everywhere, " of the cached keys": ~terms.packed, " of the new keys": terms.packed}
    for words, part in parts.items():
        if (part & terms.visible).any():
            fitted = _fitted_factor(seen, part)
            differs = abs(fitted - 1) > 0.02 and is_plausible(fitted) and _freedom(seen) > 2
            for number in (*_known(seen.case), *([fitted] if differs else [])):
                if not math.isfinite(number):
                    continue
                changed = replace(terms, score=np.where(part, number * terms.score, terms.score))
                of_values = np.where(part, seen.case.scales.k, 1.0)
                if _swapped(seen, number) and seen.explains(of_values * changed.weights()):
                    yield Mistake("scale", "the scales of K and V are swapped")
                    return
                by_name = number in _factors_by_name(seen.case).values()
                sure = not words or by_name or _freedom(seen) > 2
                if sure and seen.explains(changed.weights()):
                    yield from _wrong_scale(number, words, seen, 0 if number in _known(seen.case) else 1)
                    return


def _wrong_scale(number: float, words: str, seen: Comparison, fitted: int) -> Iterator[Mistake]:
    """Yield the mistake of a factor on the scores, once for each wrong softmax scale that it would be."""
    names = _names(number, seen.case) or [""]
    if "new" in words:
        names = [name.replace("k_scale: it is applied twice", "k_scale: they are not quantised") for name in names]
    for name in names:
        named = factor(number) + (f", {name}" if name else "")
        yield Mistake("scale", f"the scores{words} have a wrong scale (factor {named})", fitted)


def _swapped(seen: Comparison, number: float) -> bool:
    """Return whether a factor on the scores is the one of swapped scales, where v's is 1."""
    return seen.case.scales.k not in (0.0, 1.0) and math.isclose(number, 1 / seen.case.scales.k)


def _fitted_factor(seen: Comparison, part: Array) -> float:
    terms = seen.terms
    if terms.softcap:
        return 1.0
    score = np.where(part, terms.score, 0.0)
    rest = replace(terms, score=np.where(part, 0.0, terms.score)).logits()
    pairs = [centred(seen, head, score, rest) for head in range(terms.score.shape[1])]
    x, y = np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])
    return float((x * y).sum() / (x**2).sum()) if (x**2).sum() > 0 else 1.0


def _factors_by_name(case: AttentionCase) -> dict[str, float]:
    scales, size = case.scales, case.heads.head_size
    found = {
        "1 / k_scale: k_scale is not applied": 1 / scales.k if scales.k else math.inf,
        "k_scale: it is applied twice": scales.k,
        "v_scale / k_scale: v's scale for k's": scales.v / scales.k if scales.k else math.inf,
        "1 / q_scale: q_scale is not applied": 1 / scales.q if scales.q else math.inf,
        "q_scale: it is applied twice": scales.q,
        "1 / (q_scale k_scale): neither is applied": 1 / (scales.q * scales.k) if scales.q * scales.k else math.inf,
        "log2(e): exponents to base 2": math.log2(math.e),
        "ln(2): exponents to base 2": math.log(2.0),
    }
    if case.softmax_scale:
        found["1 / softmax_scale: softmax_scale is not applied"] = 1 / case.softmax_scale
        found["softmax_scale: it is applied twice"] = case.softmax_scale
        sizes = {
            "head size": size,
            "query heads": case.heads.num_query_heads,
            "value size": case.heads.head_size_v,
            "padded head size": 1 << (size - 1).bit_length(),
        }
        for name, number in sizes.items():
            same = number == (1 if name == "query heads" else size) and name != "head size"
            if same:  # as another name says: the scale of the head size, or none
                continue
            found[f"1 / sqrt({name}) for softmax_scale"] = number**-0.5 / case.softmax_scale
    return {name: number for name, number in found.items() if abs(number - 1) > 1e-6}


def _known(case: AttentionCase) -> tuple[float, ...]:
    return (*_factors_by_name(case).values(), 0.0, -1.0)


def named_factor(number: float, case: AttentionCase) -> str:
    """Return a factor on all scores in words, with what it is."""
    return ", ".join((f"factor {factor(number)}", *([" or ".join(names)] if (names := _names(number, case)) else [])))


def _names(number: float, case: AttentionCase) -> list[str]:
    """Return what a factor is: the first scale of q or k that it can be, or else all softmax scales."""
    known = {name: value for name, value in _factors_by_name(case).items() if abs(value - number) <= 0.01 * abs(value)}
    names = list(known)
    return names if all("softmax_scale" in name for name in names) else names[:1]
