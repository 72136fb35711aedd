"""Logits: the terms of the scores of each row, and the weights that mistakes in one of them would give."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.forensics.cells import Array, by_row
from fuzz_attn.forensics.explanation import Finding
from fuzz_attn.forensics.lab import Lab
from fuzz_attn.forensics.recovery import Recovered
from fuzz_attn.forensics.words import factor, rows_of_case
from fuzz_attn.oracle.logits import score_scale
from fuzz_attn.oracle.row_blocks import row_blocks

LITTLE_LEFT: Final = 0.05
"""Share of the errors of the weights that an explanation may leave."""
READABLE: Final = 1e-4
"""A weight below this share of its row is not used for fits."""


@dataclass(frozen=True)
class Terms:
    """The terms of the scores ``[num_tokens, num_query_heads, num_keys]``; keys are positions in the row's sequence.

    ``score`` is the scaled dot product, ``distance`` counts from the context length, ``slopes`` and ``sinks`` have one
    number for each head. ``packed`` marks the keys that are read from the packed tensors. ``query`` counts each row's
    query token in its sequence, ``matrix`` is the query-query bias.
    """

    score: Array
    distance: Array
    bias: Array
    visible: Array
    slopes: Array
    sinks: Array
    softcap: float
    packed: Array
    context: Array
    query: Array
    matrix: Array | None

    def logits(self) -> Array:
        """Return the logits, -inf where masked."""
        score = self.softcap * np.tanh(self.score / self.softcap) if self.softcap else self.score
        return np.where(self.visible, score + self.slopes[:, None] * self.distance + self.bias, -np.inf)

    def weights(self, logits: Array | None = None) -> Array:
        """Return the weights; 0 in rows that see no key."""
        logits = self.logits() if logits is None else logits
        sinks = np.broadcast_to(self.sinks[:, None], (*logits.shape[:2], 1))
        top = np.maximum(logits.max(axis=-1, keepdims=True, initial=-np.inf), sinks)
        top = np.where(np.isfinite(top), top, 0.0)
        exponentials = np.exp(logits - top)
        total = exponentials.sum(axis=-1, keepdims=True) + np.exp(sinks - top)
        weights: Array = exponentials / np.where(total > 0, total, 1.0)
        return weights


def terms_of(lab: Lab) -> Terms:
    """Return the terms of the scores of the case."""
    tensors, case = lab.experiment.first.tensors, lab.case
    shape = (case.num_tokens, case.heads.num_query_heads, max(case.max_seq_len, 1))
    score, bias, visible = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=np.bool_)
    distance, packed, context = np.zeros(shape), np.zeros(shape, dtype=np.bool_), np.zeros(shape)
    query = np.zeros(shape, dtype=np.int64)
    for block in row_blocks(tensors):
        products = (block.queries.flatten(2, 3) @ block.keys.transpose(-1, -2)).view(*block.queries.shape[:4], -1)
        dots = (products * score_scale(tensors)).permute(0, 2, 1, 3, 4).flatten(2, 3).cpu().numpy()
        for span in range(len(block.tokens)):
            keys, seen = block.key_position[span].cpu().numpy(), block.visible[span].cpu().numpy()
            for number, token in enumerate(block.tokens[span].tolist()):
                own = keys[seen[number]]
                visible[token][:, own] = True
                score[token][:, own] = dots[span, number][:, seen[number]]
                if block.qq_bias is not None:
                    bias[token][:, own] = block.qq_bias[span, number].cpu().numpy()[seen[number]]
    for row in rows_of_case(case):
        tokens_before = case.sequences[row.sequence].context_len
        distance[row.token, row.head] = np.arange(shape[2]) - tokens_before
        context[row.token, row.head], query[row.token, row.head] = tokens_before, row.query
        packed[row.token, row.head] = case.reads_packed[row.sequence] & (np.arange(shape[2]) >= tokens_before)
    heads = case.heads.num_query_heads
    return Terms(
        score, distance, bias, visible,
        _of_heads(tensors.alibi_slopes, heads, 0.0), _of_heads(tensors.sinks, heads, -np.inf),
        tensors.softcap, packed, context, query,
        None if tensors.qq_bias is None else tensors.qq_bias.double().cpu().numpy(),
    )  # fmt: skip


def _of_heads(tensor: torch.Tensor | None, heads: int, otherwise: float) -> Array:
    return np.full(heads, otherwise) if tensor is None else tensor.double().cpu().numpy()


@dataclass(frozen=True)
class Comparison:
    """The recovered weights by key position, beside the terms that should give them.

    ``usable`` are the rows with wrong weights that can be compared.
    """

    case: AttentionCase
    terms: Terms
    actual: Array
    expected: Array
    usable: Array

    @property
    def error(self) -> float:
        """The sum of all errors of the weights."""
        return float(np.abs(self.actual - self.expected)[self.usable].sum())

    def explains(self, weights: Array) -> bool:
        """Return whether other weights leave little of the errors."""
        return self.left(weights) <= LITTLE_LEFT

    def left(self, weights: Array) -> float:
        """Return the share of the errors that other weights leave."""
        return float(np.abs(self.actual - weights)[self.usable].sum()) / max(self.error, 1e-30)


def comparison_of(lab: Lab, found: Recovered) -> Comparison:
    """Return the recovered weights by key position."""
    terms = terms_of(lab)
    actual, expected = np.zeros_like(terms.score), np.zeros_like(terms.score)
    usable = np.zeros(terms.score.shape[:2], dtype=np.bool_)
    wrong = by_row(found.wrong)
    for row in rows_of_case(lab.case):
        own = found.cells.keys_of(row.sequence, row.kv_head)
        seen = np.flatnonzero(terms.visible[row.token, row.head, : len(own)] & (own >= 0))
        place = (row.token, row.head)
        actual[row.token, row.head, seen] = found.actual[row.token, row.head, own[seen]]
        expected[row.token, row.head, seen] = found.expected[place][own[seen]]
        distinct = len(set(own[seen].tolist())) == len(seen)
        usable[place] = wrong[place] and distinct and bool(np.isfinite(actual[place]).all())
    return Comparison(lab.case, terms, actual, expected, usable)


def score_findings(seen: Comparison) -> Iterator[Finding]:
    """Yield what is wrong with the scores, as far as it gives the recovered weights."""
    if not seen.usable.any():
        return
    for question in (_sinks, _slopes, _biases, _softcaps, _factors):
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
            yield Finding("sink", f"{_of_rows(seen)}: the sink {words}")
            return
    shifted = terms.logits() + terms.slopes[:, None] * terms.context
    if seen.explains(terms.weights(shifted)):
        yield Finding("slope", f"{_of_rows(seen)}: ALiBi is counted from the sequence's first key")
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


def _slopes(seen: Comparison) -> Iterator[Finding]:
    terms, heads = seen.terms, seen.case.heads
    if seen.case.alibi is None:
        return
    number = np.arange(heads.num_query_heads)
    others = {
        "have the wrong sign": -terms.slopes,
        "are not applied": np.zeros_like(terms.slopes),
        "are looked up by the KV head": terms.slopes[number // heads.num_queries_per_kv],
    }
    for words, slopes in others.items():
        if seen.explains(replace(terms, slopes=slopes).weights()):
            yield Finding("slope", f"{_of_rows(seen)}: the slopes {words}")
            return
    fitted = _fitted_slopes(seen)
    if seen.explains(replace(terms, slopes=fitted).weights()):
        head = int(np.argmax(np.abs(fitted - terms.slopes) * seen.usable.any(0)))
        yield Finding("slope", f"head {head} uses a slope of {fitted[head]:.4g}, should use {terms.slopes[head]:.4g}")


def _fitted_slopes(seen: Comparison) -> Array:
    """Return the slopes that the weights imply, by least squares of the logarithms of the weights."""
    terms, fitted = seen.terms, seen.terms.slopes.copy()
    rest = replace(terms, slopes=np.zeros_like(terms.slopes)).logits()
    for head in range(len(fitted)):
        x, y = _centred(seen, head, terms.distance, rest)
        if (x**2).sum() > 0:
            fitted[head] = float((x * y).sum() / (x**2).sum())
    return fitted


def _centred(seen: Comparison, head: int, regressor: Array, rest: Array) -> tuple[Array, Array]:
    """Return a regressor and the logarithms of a head's weights less the rest, without the mean of each row."""
    xs, ys = [np.zeros(0)], [np.zeros(0)]
    for token in np.flatnonzero(seen.usable[:, head]):
        weights = seen.actual[token, head]
        used = seen.terms.visible[token, head] & (weights > READABLE * max(float(weights.max()), 1e-30))
        if used.sum() > 1:
            x, y = regressor[token, head, used], np.log(weights[used]) - rest[token, head, used]
            xs.append(x - x.mean())
            ys.append(y - y.mean())
    return np.concatenate(xs), np.concatenate(ys)


def _biases(seen: Comparison) -> Iterator[Finding]:
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
    }
    for words, bias in others.items():
        if seen.explains(replace(terms, bias=bias).weights()):
            yield Finding("bias", f"{_of_rows(seen)}: the query-query bias {words}")
            return


def _looked_up(terms: Terms, row: Array, column: Array) -> Array:
    """Return the elements of the bias's matrix at some rows and columns, 0 outside of it."""
    assert terms.matrix is not None
    rows, columns = terms.matrix.shape
    inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
    return np.where(inside, terms.matrix[np.where(inside, row, 0), np.where(inside, column, 0)], 0.0)


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
            yield Finding("soft cap", f"{_of_rows(seen)}: the soft cap of {cap:g} {words}")
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
                    yield Finding("scale", f"{_of_rows(seen)}: the scales of K and V are swapped")
                    return
                sure = not words or number in _factors_by_name(seen.case).values() or _freedom(seen) > 2
                if sure and seen.explains(changed.weights()):
                    named = _named(number, seen.case)
                    yield Finding("scale", f"{_of_rows(seen)}: the scores{words} have a wrong scale (factor {named})")
                    return


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
    pairs = [_centred(seen, head, score, rest) for head in range(terms.score.shape[1])]
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


def _named(number: float, case: AttentionCase) -> str:
    names = (name for name, known in _factors_by_name(case).items() if abs(known - number) <= 0.01 * abs(known))
    name = next(names, "")
    return factor(number) + (f", {name}" if name else "")


def _of_rows(seen: Comparison) -> str:
    """Return the first row whose weights are wrong, in words."""
    row = next(row for row in rows_of_case(seen.case) if seen.usable[row.token, row.head])
    return f"{row.words}, head {row.head}"
