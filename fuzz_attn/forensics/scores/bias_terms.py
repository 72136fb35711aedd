"""Bias terms: mistakes in the slopes, or in the elements of the query-query bias, that would give the weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fuzz_attn.forensics.cells import Array
from fuzz_attn.forensics.explanation import Finding, Reason
from fuzz_attn.forensics.scores.terms import Comparison, Terms, centred, first_row


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
