"""Score terms: those of each row, and the weights that they give, beside the weights that the kernel used.

A feature of the case may be taken away, to see whether the weights become right then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import torch

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.errors import ProbeError
from fuzz_attn.forensics.attended_keys import Recovered, recovered
from fuzz_attn.forensics.explanation import Finding, Reason, Row, rows_of_case
from fuzz_attn.forensics.lab import Array, Lab, beyond, by_row, distinct, without_scores, without_sinks
from fuzz_attn.inputs.tensors import AttentionTensors
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
    query token in its sequence, ``matrix`` is the query-query bias and ``strides`` are its own. ``reread`` has the
    slopes that reading them as another type would give, by its name.
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
    strides: tuple[int, int]
    reread: dict[str, Array]

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
        (0, 0) if tensors.qq_bias is None else (tensors.qq_bias.stride(0), tensors.qq_bias.stride(1)),
        _reread(tensors.alibi_slopes),
    )  # fmt: skip


def _of_heads(tensor: torch.Tensor | None, heads: int, otherwise: float) -> Array:
    return np.full(heads, otherwise) if tensor is None else tensor.double().cpu().numpy()


def _reread(slopes: torch.Tensor | None) -> dict[str, Array]:
    """Return slopes read as another type from the same address, 0 behind their end."""
    found: dict[str, Array] = {}
    for dtype in () if slopes is None else (torch.float32, torch.float16, torch.bfloat16):
        if slopes is not None and dtype != slopes.dtype:
            read = slopes.cpu().contiguous().view(torch.uint8)
            read = read[: len(read) // dtype.itemsize * dtype.itemsize].view(dtype)[: len(slopes)].double()
            found[str(dtype).removeprefix("torch.")] = np.pad(read.numpy(), (0, len(slopes) - len(read)))
    return {name: numbers for name, numbers in found.items() if np.isfinite(numbers).all()}


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


def comparison_of(lab: Lab, found: Recovered, terms: Terms | None = None) -> Comparison:
    """Return the recovered weights by key position, beside the terms of the case or others."""
    terms = terms_of(lab) if terms is None else terms
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


def first_row(seen: Comparison) -> str:
    """Return the first row whose weights are wrong, in words."""
    row = next(row for row in rows_of_case(seen.case) if seen.usable[row.token, row.head])
    return f"{row.words}, head {row.head}"


def centred(seen: Comparison, head: int, regressor: Array, rest: Array) -> tuple[Array, Array]:
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


Change: TypeAlias = Callable[[AttentionTensors], AttentionTensors]


def ablation_findings(lab: Lab, found: Recovered, seen: Comparison) -> Iterator[Finding]:
    """Yield the feature without which the weights are right."""
    wrong = found.wrong
    row = next((row for row in rows_of_case(lab.case) if wrong[row.token, row.head].any()), None)
    if row is None:
        return
    cells = _probed(wrong[row.token, row.head], found, lab)
    lost = not np.isfinite(found.actual[row.token, row.head]).any()
    for reason, words, change in _features(lab):
        try:
            without = recovered(lab, change(lab.cleared()), cells)
        except ProbeError:
            continue
        if without is not None and not (without.far if found.far.any() else without.wrong).any():
            # A scale that values have wrongly is a factor of their weights here.
            whose = "its weights, or the scale of its values," if reason == "scale" else "its weights"
            what = f"{row.words}, head {row.head}: {whose} are {'NaN' if lost else 'wrong'}, and right {words}"
            if reason == "soft cap":
                what += f" (its largest score is {_largest_score(seen, row) / lab.case.softcap:.4g} times that)"
            if reason == "scale" and not beyond(found.actual, without.expected, without.bound)[..., cells].any():
                what = f"{row.words}, head {row.head}: its weights are those {words}"
            yield Finding(reason, what)
            return


def _largest_score(seen: Comparison, row: Row) -> float:
    """Return the largest size of a score of a row before the soft cap."""
    place = (row.token, row.head)
    return float(np.abs(seen.terms.score[place])[seen.terms.visible[place]].max(initial=0.0))


def softcap_findings(lab: Lab, found: list[Finding]) -> Iterator[Finding]:
    """Yield that rows attend wrong keys because of the soft cap only, if so."""
    if lab.case.softcap and found:
        tensors = dataclasses.replace(without_scores(lab.cleared()), softcap=0.0)
        without = recovered(lab, tensors)
        if without is not None and not without.far.any():
            words = (
                f"{found[0].words}; right without the soft cap of {lab.case.softcap:g}: it is applied after the mask"
            )
            yield Finding("soft cap", words)


def _probed(wrong: Array, found: Recovered, lab: Lab) -> Array:
    """Return as many cells as one launch probes, wrong ones first."""
    order = np.argsort(~wrong, kind="stable")
    return np.sort(order[: lab.case.heads.head_size_v])


def _features(lab: Lab) -> Iterator[tuple[Reason, str, Change]]:
    case = lab.case
    if case.sinks is not None:
        yield "sink", "without the sinks", without_sinks
    if case.alibi is not None:
        slopes = lab.experiment.first.tensors.alibi_slopes
        if slopes is not None and bool((slopes.double() < 0).any()):
            yield "slope", "with the sizes of its slopes, of which some are negative", _positive_slopes
        yield "slope", "without the slopes", _without_slopes
    if case.qq_bias is not None:
        yield "bias", "without the values of the query-query bias", _without_bias
    if case.softcap:
        yield (
            "soft cap",
            f"without the soft cap of {case.softcap:g}",
            lambda tensors: dataclasses.replace(tensors, softcap=0.0),
        )
    if case.scales.k != 1.0:
        yield "scale", f"without k_scale ({case.scales.k:g})", lambda tensors: _filled(tensors, "k_scale")
    if case.scales.q != 1.0:
        yield "scale", f"without q_scale ({case.scales.q:g})", lambda tensors: _filled(tensors, "q_scale")
    default = case.heads.head_size**-0.5
    if case.softmax_scale != default:
        yield (
            "scale",
            f"with a softmax_scale of {default:g}, the default, in place of {case.softmax_scale:g}",
            lambda t: dataclasses.replace(t, softmax_scale=default),
        )


def _positive_slopes(tensors: AttentionTensors) -> AttentionTensors:
    if tensors.alibi_slopes is not None:
        tensors.alibi_slopes.abs_()
    return tensors


def _without_slopes(tensors: AttentionTensors) -> AttentionTensors:
    if tensors.alibi_slopes is not None:
        tensors.alibi_slopes.zero_()
    return tensors


def _without_bias(tensors: AttentionTensors) -> AttentionTensors:
    if tensors.qq_bias is not None:
        own = distinct(tensors.qq_bias)
        own.masked_fill_(own.isfinite(), 0.0)
    return tensors


def _filled(tensors: AttentionTensors, name: str) -> AttentionTensors:
    scale = getattr(tensors, name)
    if scale is not None:
        scale.fill_(1.0)
    return tensors
