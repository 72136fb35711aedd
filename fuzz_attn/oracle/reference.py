"""The reference: each exact output in float64, and the largest error that a correct kernel may make in it.

For a log-sum-exp, a kernel computes ``m + log(sum_j exp(z_j - m))`` with its own largest logit ``m``, in base 2 or e,
of all keys at once or of several segments whose results it adds in the same way. Its error has these parts, in natural
exponents:

- Errors of the logits, those of the exponentials among them. ``m`` cancels, so the result lies between the exact ones
  for all logits as small and as large as they may be; the distance to the latter is larger, as the exponential is
  convex. An error that all keys of a row share counts, unlike in the softmax.
- A segment's result is rounded once, and its logarithm has an error. Both are errors of all logits of the segment.
- The relative error of the sum, ``s``, moves its logarithm by at most ``-log(1 - s)``.
- The logarithm's own error, the sum with ``m``, and the conversion between bases.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeAlias

import torch

from fuzz_attn.case.recipes import LogSumExp
from fuzz_attn.inputs.storage import is_fp8_dtype
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle import roundings
from fuzz_attn.oracle.error_bound import (
    MAX_DRIFT,
    Weights,
    denominator_terms,
    logit_term,
    normaliser_units,
    probability_unit,
    smallest_bound,
    stored_bound,
    value_term,
    weights_of,
)
from fuzz_attn.oracle.logits import NO_SINK, SECOND_ORDER, Logits, logits_of, tanh_shift
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.oracle.roundings import FLUSHED, LOG_UNITS, OVERFLOW, UNIT, gamma
from fuzz_attn.oracle.row_blocks import RowBlock, maximum_of, row_blocks

PLAIN_MODEL = RoundingModel()
"""The default model: plain torch implementations, and kernels that round P to the type of q."""
LAST_UNITS: Final = 3.0
"""Units that the sum with the largest logit, the product with log(2) or log2(e) and that constant lose, of the result
or of the largest logit. One of them is the last rounding."""

OF_NO_KEY: Final = {"-inf": -math.inf, "inf": math.inf, "0": 0.0}
"""The log-sum-exp of a row that sees no key, by the word of a recipe."""


@dataclass(frozen=True)
class Expected:
    """What the elements of an output must be (:attr:`~fuzz_attn.inputs.output_tensors.OutputTensor.elements`).

    - ``value`` float64 is not rounded to the output's type, and finite unless it has ``exact_infinities``.
    - ``bound``, of the same shape, is the largest error: positive, and infinite where a correct kernel may overflow.
    - ``judged`` bool broadcasts to them: where it is False, an element must only be written and finite.
    - ``exact_infinities``: infinite values are expected too, and have to be met exactly.

    Only live elements count; in the attention output the others have 0 and an infinite bound.
    """

    value: torch.Tensor
    bound: torch.Tensor
    judged: torch.Tensor
    exact_infinities: bool = False

    def taken(self, axis: int, index: torch.Tensor) -> Expected:
        """Return what the elements at some indices of an axis must be."""
        size, parts = self.value.shape[axis], (self.value, self.bound, self.judged)
        value, bound, judged = (part.index_select(axis, index) if part.shape[axis] == size else part for part in parts)
        return Expected(value, bound, judged, self.exact_infinities)

    def joined(self, tokens: int, heads: int) -> Expected:
        """Return the same of ``[tokens, KV heads, group, ...]`` with one axis of heads, and both at these places."""
        parts = (part.flatten(1, 2) for part in (self.value, self.bound, self.judged))
        value, bound, judged = (part.movedim((0, 1), (tokens, heads)) for part in parts)
        return Expected(value, bound, judged, self.exact_infinities)


Reference: TypeAlias = dict[str, Expected]
"""What outputs must be, by their names; those without an entry are not judged."""


@dataclass(frozen=True)
class BlockReference:
    """The reference of one block and its parts; rows as in :class:`~fuzz_attn.oracle.logits.Logits`.

    ``output`` is the weighted average of V, ``expected`` is scaled and clamped as it is stored. ``judged`` ``[..., 1]``
    is False in rows in which the roundings of the logits may move most of the weight to other keys.
    """

    logits: Logits
    weights: Weights
    output: torch.Tensor
    expected: torch.Tensor
    bound: torch.Tensor
    judged: torch.Tensor


@torch.inference_mode()
def attend(
    tensors: AttentionTensors, model: RoundingModel = PLAIN_MODEL, blocks: Iterable[RowBlock] | None = None
) -> Reference:
    """Return each exact output and its error bound for a target with this rounding model, by the output's name.

    Only keys that some row sees are read. Of the outputs only type and shape are read. The returned tensors are
    inference tensors, to be read and not changed. ``blocks`` are the row blocks of the tensors, if they exist already.
    """
    num_kv_heads, (num_heads, head_size) = tensors.num_kv_heads, tensors.output.shape[1:]
    rows, form = (sum(tensors.query_lens), num_kv_heads, num_heads // num_kv_heads), tensors.lse
    out = _unknown((*rows, head_size), (*rows, 1), tensors)
    lse = None if form is None else _unknown(rows, (1, 1, 1), tensors, exact_infinities=True)
    for block in row_blocks(tensors) if blocks is None else blocks:
        part = attend_block(block, tensors, model)
        _put(part.expected, out.value, block.tokens)
        _put(part.bound, out.bound, block.tokens)
        _put(part.judged, out.judged, block.tokens)
        if form is not None and lse is not None:
            value, bound = log_sum_exp(part.logits, block, form, tensors, model)
            _put(value, lse.value, block.tokens)
            _put(bound, lse.bound, block.tokens)
    keyless = _keyless(tensors)
    if keyless:
        out.value[keyless], out.bound[keyless] = 0.0, FLUSHED
        if form is not None and lse is not None:
            lse.value[keyless], lse.bound[keyless] = OF_NO_KEY[form.empty], FLUSHED
    found = {"out": out.joined(0, 1)}
    if form is not None and lse is not None:
        found["lse"] = lse.joined(*((0, 1) if form.order == "tokens" else (1, 0)))
    return found


def _keyless(tensors: AttentionTensors) -> list[int]:
    """Return the tokens that are in no block and whose rows the target writes all the same."""
    starts = accumulate(tensors.query_lens, initial=0)
    answers = tensors.answers or (True,) * len(tensors.query_lens)
    found = []
    for start, query, context, answered in zip(starts, tensors.query_lens, tensors.context_lens, answers, strict=False):
        seeing = tensors.visibility.rows_with_keys(query, context) if answered else range(query)
        found += [start + row for row in range(query) if row not in seeing] if len(seeing) < query else []
    return found


def _unknown(
    shape: tuple[int, ...], judged: tuple[int, ...], tensors: AttentionTensors, *, exact_infinities: bool = False
) -> Expected:
    """Return what an output of some rows must be before any is known; 0 of infinite bound if not all are answered."""
    value = tensors.query.new_empty(shape, dtype=torch.float64)
    judged_rows = value.new_ones(judged, dtype=torch.bool)
    found = Expected(value, torch.empty_like(value), judged_rows, exact_infinities)
    if not all(tensors.answers):
        value.zero_()
        found.bound.fill_(torch.inf)
    return found


def _put(part: torch.Tensor, whole: torch.Tensor, tokens: torch.Tensor) -> None:
    """Copy the rows of a block to their tokens; on the host by numpy, which takes a third of torch's time."""
    rows = part.transpose(1, 2)
    if whole.is_cpu:
        whole.numpy()[tokens.numpy()] = rows.numpy()
    else:
        whole[tokens] = rows


def attend_block(block: RowBlock, tensors: AttentionTensors, model: RoundingModel) -> BlockReference:
    """Return the reference of one block of rows."""
    logits = logits_of(block, tensors, model)
    weights = weights_of(logits)
    output = _average(block, logits, weights)
    moved = logit_term(weights, block, output, probability_unit(tensors, model))
    summed = value_term(weights, logits, block, (output, moved), tensors, model)
    units = normaliser_units(tensors, logits, model)
    error = (output.abs() + moved).mul_(units).add_(summed).mul_(units.mul(2.0).add_(1.0)).add_(moved)
    factor = output_factor(tensors)
    scaled, error = (output, error) if factor == 1.0 else (output * factor, error.mul_(abs(factor)))
    error = roundings.output_error(scaled, error, tensors, model)
    expected, bound = stored_bound(scaled, error, tensors.output.dtype)
    limit = min(OVERFLOW, roundings.value_limit(tensors, model))
    expected, bound = _sanitised(expected, bound, logits, block, limit)
    judged = weights.drift <= MAX_DRIFT
    if block.empty is not None:  # such a row is 0, with and without a sink
        rows = block.empty[:, None, :, None, None]
        expected, bound = expected.masked_fill(rows, 0.0), bound.masked_fill(rows, smallest_bound(tensors.output.dtype))
        judged = judged | rows
    return BlockReference(logits, weights, output, expected, bound, judged)


def _average(block: RowBlock, logits: Logits, weights: Weights) -> torch.Tensor:
    """Return the weighted average of V; where all weights are 0 or 1 it is a sum divided by a count.

    There the bound may be far below the rounding of a weight in float64.
    """
    if logits.equal_rows is None:
        return (weights.exact.flatten(2, 3) @ block.values).view(*block.queries.shape[:-1], -1)
    counted = (~block.hidden if logits.significant is None else logits.significant).double()
    count = counted.sum(-1, keepdim=True) + (logits.sink == 0.0)
    shares = torch.where(logits.equal_rows, counted, weights.exact)
    total = (shares.flatten(2, 3) @ block.values).view(*block.queries.shape[:-1], -1)
    return total.div_(torch.where(logits.equal_rows, count, 1.0))


def output_factor(tensors: AttentionTensors) -> float:
    """Return the factor of the average of V: v's scale if q is fp8, and 1 / the output's scale if that is fp8."""
    factor = 1.0
    if is_fp8_dtype(tensors.query.dtype) and tensors.v_scale is not None:
        factor = float(tensors.v_scale)
    if is_fp8_dtype(tensors.output.dtype) and tensors.out_scale is not None:
        factor /= float(tensors.out_scale)
    return factor


def _sanitised(
    expected: torch.Tensor, bound: torch.Tensor, logits: Logits, block: RowBlock, limit: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return expected without NaN, and the bound with infinity wherever an intermediate result may overflow.

    Sums of values do from ``limit`` on.
    """
    num_keys = block.values.shape[-2]
    large = not maximum_of(block.magnitudes) * num_keys < limit
    if logits.overflows is None and not large:
        return expected, bound
    unknown = ~bound.isfinite() | ~expected.isfinite()
    if logits.overflows is not None:
        unknown |= logits.overflows
    if large:
        visible = (logits.exact > -torch.inf).double().flatten(2, 3)
        unknown |= ~(visible @ block.magnitudes < limit).view_as(expected)
    return expected.masked_fill(unknown, 0.0), bound.masked_fill(unknown, torch.inf)


def log_sum_exp(
    logits: Logits, block: RowBlock, form: LogSumExp, tensors: AttentionTensors, model: RoundingModel
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-sum-exp of each row of a block and its bound, both ``[B, num_kv_heads, Q, group]``.

    No row is ill-conditioned: the bound is rigorous for logit errors of any size.
    """
    sink = logits.sink if form.with_sinks else torch.full_like(logits.sink, NO_SINK)
    terms, errors = _joined(logits.exact, sink), _joined(logits.error, logits.sink_error)
    exact = terms.logsumexp(-1)
    count = block.num_visible[:, None, :, None]
    logarithm = LOG_UNITS * UNIT * count.log1p().clamp_min(1.0)
    sizes = exact.abs()
    segments = torch.maximum(terms.clamp_min(NO_SINK).abs(), sizes[..., None]) * UNIT + logarithm[..., None]
    error = (terms + (errors + segments)).logsumexp(-1) - exact
    if logits.equal_rows is not None:
        error = error + tanh_shift(tensors.softcap, model) * logits.equal_rows[..., 0]
    error = error - (-_sum_units(logits, tensors, model)[..., 0]).log1p()
    converted = torch.maximum(sizes, logits.top[..., 0].abs()) * (LAST_UNITS * UNIT)
    error = (error + logarithm + converted) * SECOND_ORDER
    error = roundings.rounding_to(model.lse, tensors).after(exact, error, 1)
    if logits.overflows is not None:
        error = error.masked_fill(logits.overflows[..., 0], torch.inf)
    factor = 1.0 if form.base == "e" else 1.0 / math.log(2.0)
    value, bound = stored_bound(exact * factor, error * factor, torch.float32)
    if block.empty is None:
        return value, bound
    rows = block.empty[:, None, :, None]
    return value.masked_fill(rows, OF_NO_KEY[form.empty]), bound.masked_fill(rows, smallest_bound(torch.float32))


def _joined(keys: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """Return the logits of the keys and of the sink along one axis."""
    return torch.cat([keys, sink.expand(*keys.shape[:-1], 1)], -1)


def _sum_units(logits: Logits, tensors: AttentionTensors, model: RoundingModel) -> torch.Tensor:
    """Return the relative error of the sum, in any order, with its rescalings and the sink: below 1, ``[..., 1]``."""
    terms = denominator_terms(logits, model).expand(*logits.exact.shape[:-1], 1)
    units, cast = gamma(terms + 1.0, UNIT), probability_unit(tensors, model)
    found = roundings.denominator_units(units, logits.terms, logits.rescales, cast, tensors, model)
    return found.clamp_max(1.0)
