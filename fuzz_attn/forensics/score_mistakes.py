"""Score mistakes: those in one term, slopes and elements of biases included, that would give the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.forensics.explanation import Finding, Reason, factor
from fuzz_attn.forensics.lab import Array
from fuzz_attn.forensics.score_terms import Comparison, Terms, centred, first_row


def slope_findings(seen: Comparison) -> Iterator[Finding]:
    """Yield what is wrong with the slopes, as far as it gives the weights; vague where two mistakes would."""
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
    finding = _alike("slope", "the slopes", weights, seen) or _fitted(seen)
    if finding is not None:
        yield finding


def _alike(reason: Reason, what: str, others: dict[str, Array], seen: Comparison) -> Finding | None:
    """Return all mistakes that give the weights as one finding, which is vague where they are several."""
    found = [words for words, weights in others.items() if seen.explains(weights)]
    if not found:
        return None
    return Finding(reason, f"{first_row(seen)}: {what} {', or '.join(found)}", vague=len(found) > 1)


def _fitted(seen: Comparison) -> Finding | None:
    """Return the slope that a head uses, if other slopes give the weights."""
    terms, fitted = seen.terms, _fitted_slopes(seen)
    if not seen.explains(replace(terms, slopes=fitted).weights()):
        return None
    head = int(np.argmax(np.abs(fitted - terms.slopes) * seen.usable.any(0)))
    return Finding("slope", f"head {head} uses a slope of {fitted[head]:.4g}, should use {terms.slopes[head]:.4g}")


def _fitted_slopes(seen: Comparison) -> Array:
    """Return the slopes that the weights imply, by least squares of the logarithms of the weights."""
    terms, fitted = seen.terms, seen.terms.slopes.copy()
    rest = replace(terms, slopes=np.zeros_like(terms.slopes)).logits()
    for head in range(len(fitted)):
        x, y = centred(seen, head, terms.distance, rest)
        if (x**2).sum() > 0:
            fitted[head] = float((x * y).sum() / (x**2).sum())
    return fitted


def bias_findings(seen: Comparison) -> Iterator[Finding]:
    """Yield what is wrong with the query-query bias, as far as it gives the weights; vague where two mistakes would."""
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
    }
    weights = {words: replace(terms, bias=bias).weights() for words, bias in others.items()}
    finding = _alike("bias", "the query-query bias", weights, seen)
    if finding is not None:
        yield finding


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


def _at(terms: Terms, offset: Array, chosen: Array) -> Array:
    """Return the elements of the bias at offsets from its first one, 0 for those between or around its elements."""
    assert terms.matrix is not None
    rows, columns = np.indices(terms.matrix.shape)
    place = rows * terms.strides[0] + columns * terms.strides[1]
    memory = np.zeros(int(place.max(initial=0)) + 1)
    memory[place] = terms.matrix
    inside = chosen & (offset >= 0) & (offset < len(memory))
    return np.where(inside, memory[np.where(inside, offset, 0)], 0.0)


def score_findings(seen: Comparison) -> Iterator[Finding]:
    """Yield what is wrong with the scores, as far as it gives the recovered weights."""
    if not seen.usable.any():
        return
    for question in (_sinks, slope_findings, bias_findings, _softcaps, _factors):
        yield from question(seen)


def _sinks(seen: Comparison) -> Iterator[Finding]:
    terms, heads = seen.terms, seen.case.heads
    if not np.isfinite(terms.sinks).any():
        return
    group = heads.num_queries_per_kv
    number = np.arange(heads.num_query_heads)
    others: dict[str, Array] = {
        "is not counted": np.full_like(terms.sinks, -np.inf),
        "is that of the head with its KV head's number": terms.sinks[number // group],
        "counts as exp(sink) relative to itself": 2 * terms.sinks,
    }
    others |= {f"is counted {n} times": terms.sinks + math.log(n) for n in range(2, 33)}
    for words, sinks in others.items():
        if seen.explains(replace(terms, sinks=sinks).weights()):
            yield Finding("sink", f"{first_row(seen)}: the sink {words}")
            return
    shifted = terms.logits() + terms.slopes[:, None] * terms.context
    if seen.explains(terms.weights(shifted)):
        yield Finding("slope", f"{first_row(seen)}: ALiBi is counted from the sequence's first key")
        return
    yield from _fitted_sinks(seen)


def _fitted_sinks(seen: Comparison) -> Iterator[Finding]:
    """Yield the sink that the sums of the weights imply, for each head."""
    terms = seen.terms
    ratio = seen.actual.sum(-1) / np.maximum(seen.expected.sum(-1), 1e-30)
    logits = terms.logits()
    top = np.where(np.isfinite(logits), logits, -np.inf).max(-1)
    keys = np.exp(logits - top[..., None]).sum(-1)
    fitted = terms.sinks.copy()
    for head in range(len(fitted)):
        rows = np.flatnonzero(seen.usable[:, head])
        if len(rows):
            total = keys[rows, head] / np.clip(ratio[rows, head] * seen.expected[rows, head].sum(-1), 1e-30, None)
            rest = np.median(np.log(np.maximum(total - keys[rows, head], 1e-30)) + top[rows, head])
            fitted[head] = float(rest)
    if seen.explains(replace(terms, sinks=fitted).weights()):
        head = int(np.flatnonzero(seen.usable.any(0))[0])
        used = f"{fitted[head]:.4g}" if fitted[head] > -50 else "none"
        yield Finding("sink", f"head {head} uses a sink of {used}, should use {terms.sinks[head]:.4g}")


def _softcaps(seen: Comparison) -> Iterator[Finding]:
    terms, cap = seen.terms, seen.terms.softcap
    if not cap:
        return
    added = terms.slopes[:, None] * terms.distance + terms.bias
    late = np.where(terms.visible, cap * np.tanh((terms.score + added) / cap), -np.inf)
    divided = np.where(terms.visible, np.tanh(terms.score / cap) + added, -np.inf)
    others: dict[str, Any] = {
        "is not applied": replace(terms, softcap=0.0).weights(),
        "is applied after the biases": terms.weights(late),
        "is not multiplied back: the scores stay within 1": terms.weights(divided),
    }
    for words, weights in others.items():
        if seen.explains(weights):
            yield Finding("soft cap", f"{first_row(seen)}: the soft cap of {cap:g} {words}")
            return


def _factors(seen: Comparison) -> Iterator[Finding]:
    """Yield the factor on the scores that gives the weights, of all keys, of the cached or of the packed ones."""
    terms = seen.terms
    everywhere = np.ones_like(terms.packed)
    parts = {"": everywhere, " of the cached keys": ~terms.packed, " of the new keys": terms.packed}
    for words, part in parts.items():
        if (part & terms.visible).any():
            fitted = _fitted_factor(seen, part)
            for number in (*_known(seen.case), *([fitted] if abs(fitted - 1) > 0.02 and _freedom(seen) > 2 else [])):
                if not math.isfinite(number):
                    continue
                changed = replace(terms, score=np.where(part, number * terms.score, terms.score))
                if _swapped(seen, number) and seen.explains(seen.case.scales.k * changed.weights()):
                    yield Finding("scale", f"{first_row(seen)}: the scales of K and V are swapped")
                    return
                sure = not words or number in _factors_by_name(seen.case).values() or _freedom(seen) > 2
                if sure and seen.explains(changed.weights()):
                    yield _wrong_scale(number, words, seen)
                    return


def _wrong_scale(number: float, words: str, seen: Comparison) -> Finding:
    """Return the finding of a factor on the scores, vague where it is that of more than one wrong softmax scale."""
    names = _names(number, seen.case)
    named = factor(number) + (f", {', or '.join(names)}" if names else "")
    what = f"{first_row(seen)}: the scores{words} have a wrong scale (factor {named})"
    return Finding("scale", what, vague=len(names) > 1)


def _freedom(seen: Comparison) -> int:
    """Return how many weights more than rows there are, which a fitted factor must explain."""
    visible = (seen.terms.visible & seen.usable[..., None]).sum(axis=-1)
    return int((visible - (visible > 0)).sum())


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
        found["1 / sqrt(head size) for softmax_scale"] = size**-0.5 / case.softmax_scale
        found["1 / sqrt(query heads) for softmax_scale"] = case.heads.num_query_heads**-0.5 / case.softmax_scale
    return {name: number for name, number in found.items() if abs(number - 1) > 1e-6}


def _known(case: AttentionCase) -> tuple[float, ...]:
    return (*_factors_by_name(case).values(), 0.0, -1.0)


def _names(number: float, case: AttentionCase) -> list[str]:
    """Return what a factor is: the first scale of q or k that it can be, or else all softmax scales."""
    known = {name: value for name, value in _factors_by_name(case).items() if abs(value - number) <= 0.01 * abs(value)}
    names = list(known)
    return names if all("softmax_scale" in name for name in names) else names[:1]
