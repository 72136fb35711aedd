"""Logits: the exact scores of a row block in float64, the errors that a correct kernel's may have, and which have none.

Nothing here depends on how a case was made, only on its numbers.

- A key whose logit lies ``NEGLIGIBLE`` below the largest one has a weight below half the smallest denormal of float32.
  Every float32 exponential returns 0 for it, also if it is computed in several rescalings.
- A logit is exactly 0 where all products of query and key are 0 and no bias is added. ``exp(0)`` is 1, in every base.
  If all other visible keys of a row are negligible, all its weights are 0 or 1 and its denominator is a count, which
  float32 sums exactly in any order.
- Then the numerator is a sum of values. An adder that loses at most ``unit`` of its largest operand drops only bits
  below ``2 unit`` times that operand. If all values that a row sees are multiples of a grid at least ``2 unit`` times
  the sum of their magnitudes, nothing is dropped, in any order. Partial sums stay exact when they are scaled by a power
  of two.
- Where segments are merged by their logarithms, all of this holds within each segment with a key of weight 1. What the
  merge rounds is no more than a factor of each of its sums.

Each error term is one function, whose docstring names the roundings that it covers. Errors are absolute and in natural
exponents: an error of ``d`` in a logit multiplies its weight by ``exp(d)``. An error that all keys of a row share
cancels in the softmax.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import torch

from fuzz_attn.inputs.storage import is_fp8_dtype
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle import roundings
from fuzz_attn.oracle.rounding_model import EXP_UNITS, RoundingModel
from fuzz_attn.oracle.roundings import OVERFLOW, SCORE_ROUNDINGS, UNDERFLOW, UNIT, Rounding, grown, unit_roundoff
from fuzz_attn.oracle.row_blocks import RowBlock, every, has_zero, largest_seen, maximum_of, minimum_of, some

NEGLIGIBLE: Final = 110.0
"""``exp(-110)`` is 2^-158.7, far below half of the smallest denormal, 2^-150."""

_MANTISSA: Final = 2**52 - 1
"""The bits of a float64 that hold its mantissa, without the implicit 1."""


def significant_keys(
    exponent: torch.Tensor, exact: torch.Tensor, top: torch.Tensor, error: torch.Tensor, rise: torch.Tensor
) -> torch.Tensor | None:
    """Return bool: which visible keys may have a weight other than 0; None if that is all of them.

    ``exponent`` is the logit relative to ``top``, the largest one of its row, masked keys included. ``exact`` is the
    logit itself, -inf where masked. ``error`` may move it, and the largest one may move by ``rise``.
    """
    if minimum_of(exponent) >= -NEGLIGIBLE:
        return None
    return exact + error >= top - (rise + NEGLIGIBLE)


def rows_of_equal_weights(
    zero: torch.Tensor, significant: torch.Tensor, sink: torch.Tensor, top: torch.Tensor, shift: float
) -> torch.Tensor | None:
    """Return bool ``[..., 1]``: the rows whose weights are all exactly 0 or 1, None if there are none.

    ``zero`` marks the keys whose logit is exactly 0 however it is computed, apart from a ``shift`` of at most this size
    that all of them share: the error of a soft cap's tanh at 0. The sink does not share it.
    """
    possible = (top == 0.0) & ((sink < -NEGLIGIBLE - shift) if shift else (sink == 0.0) | (sink < -NEGLIGIBLE))
    if not some(possible):
        return None
    rows = possible & (zero | ~significant).all(-1, keepdim=True)
    return rows if some(rows) else None


def exact_columns(block: RowBlock, total: torch.Tensor, unit: float) -> torch.Tensor:
    """Return bool ``[B, num_kv_heads, Q, head_size]``: the columns of V whose sums over a row's keys are exact.

    ``total`` is the sum of the magnitudes that a row sees, of the same shape. Only the keys between the first and the
    last one that a row sees count, so its result does not depend on other rows.
    """
    needed = total * (2 * unit)
    if _multiples(block.values, needed.amax(-2, keepdim=True)):
        return torch.ones_like(total, dtype=torch.bool)
    grid = -largest_seen(block, -lowest_bit(block.values)).transpose(1, 2)
    return grid >= needed


def _multiples(numbers: torch.Tensor, least: torch.Tensor) -> bool:
    """Return whether all numbers are multiples of a power of two that is larger than ``least``.

    This is cheaper than to find the lowest bit of each number.
    """
    scaled = numbers * torch.ldexp(torch.ones_like(least), -torch.frexp(least).exponent)
    return every(least.isfinite()) and every(scaled == scaled.round())


def lowest_bit(numbers: torch.Tensor) -> torch.Tensor:
    """Return the largest power of two of which each float64 number is a multiple; infinite for 0."""
    bits = numbers.view(torch.int64)
    others = (bits - 1).bitwise_and_(bits).view(torch.float64)  # without its last 1
    lowest = torch.where(bits & _MANTISSA == 0, numbers, numbers - others).abs_()
    return lowest.masked_fill_(numbers == 0.0, torch.inf)


SECOND_ORDER: Final = 1 + 2.0**-16
"""Accounts for the roundings of errors: up to 256 roundings in float32 act on numbers that already have an error."""

NO_SINK: Final = -1e30
"""Stands for a sink of -inf, so that differences with it stay finite; its weight is still exactly 0."""


@dataclass(frozen=True)
class Logits:
    """Scores of a block ``[B, num_kv_heads, Q, group, K]`` in float64; rows are its axes 0 to 3.

    - ``exact`` is -inf where masked; ``error`` is finite everywhere.
    - ``sink`` and ``sink_error`` ``[..., 1]`` are the same for the sink; ``sink`` is ``NO_SINK`` without one.
    - ``top`` ``[..., 1]`` is the largest logit, including the sink.
    - ``rescales`` is how often a kernel may rescale the accumulator after a row's first visible key, by another factor
      than 0 or 1.
    - ``terms`` is the number of terms in a row's sums that may be rounded: its significant keys and ``rescales``.
    - ``significant`` bool marks the keys that may have a weight other than 0; None if all visible keys may.
    - ``equal_rows`` bool ``[..., 1]`` marks the rows whose weights are all exactly 0 or 1 before they are normalised;
      None if there are none.
    - ``cancelling`` ``[..., 1]`` is by how much the errors of rescalings count too much in ``exp(error)``
      (:func:`cancelling_error`).
    - ``overflows`` bool ``[..., 1]`` marks rows whose scores may overflow float32; None if there are none.
    """

    exact: torch.Tensor
    error: torch.Tensor
    sink: torch.Tensor
    sink_error: torch.Tensor
    top: torch.Tensor
    rescales: torch.Tensor
    terms: torch.Tensor
    cancelling: torch.Tensor
    overflows: torch.Tensor | None
    significant: torch.Tensor | None = None
    equal_rows: torch.Tensor | None = None


def logits_of(block: RowBlock, tensors: AttentionTensors, model: RoundingModel) -> Logits:
    """Return the exact logits of a block and the largest errors that the rounding model allows."""
    scale = score_scale(tensors)
    queries, keys = block.queries.flatten(2, 3), block.keys.transpose(-1, -2)
    shape = (*block.queries.shape[:4], block.keys.shape[2])
    scores = (queries @ keys).mul_(scale).view(shape)
    products = (queries.abs() @ keys.abs()).view(shape)
    error = _scores_error(block, scores, products, tensors, model)
    rounding = roundings.rounding_to(model.scores, tensors)
    error = rounding.after(scores, error, SCORE_ROUNDINGS, max(1.0, abs(scale)))
    if tensors.softcap:
        scores, error = _capped(scores, error, tensors.softcap, model)
        error = rounding.after(scores, error, SCORE_ROUNDINGS, max(1.0, tensors.softcap))
    scores, error, biases = _biased(block, tensors, scores, error, rounding)
    exact = scores.masked_fill(block.hidden, -torch.inf)
    num_visible, reach = (each[:, None, :, None, None] for each in (block.num_visible, block.reach))
    rescales = torch.minimum(num_visible, (reach / model.tile_size).ceil_().add_(1.0))
    sink = _sinks(tensors, block)
    top = torch.maximum(exact.amax(-1, keepdim=True), sink)
    sink_error = _rounded_sink_error(sink, torch.zeros_like(top), rounding)
    error, sink_error = roundings.softmax_errors(
        (error, sink_error), (exact, sink), top, (num_visible, rescales), tensors, model
    )
    exponent, rise = scores - top, _rise(exact, error, top, sink, sink_error)
    error = exp_error(exponent, rise, rescales, model.exp_units).add_(error).mul_(SECOND_ORDER)
    own = exp_error(sink - top, rise, rescales + 1.0, model.exp_units)
    sink_error = own.add_(sink.abs(), alpha=UNIT).add_(sink_error)
    narrow = roundings.row_overflows(block, scores, top, scale, tensors, model)
    logits = Logits(
        exact=exact,
        error=error,
        sink=sink,
        sink_error=sink_error.mul_(SECOND_ORDER),
        top=top,
        rescales=rescales,
        terms=num_visible + rescales,
        cancelling=cancelling_error(rescales, model.exp_units),
        overflows=_either(_overflows(products, block.hidden, max(1.0, abs(scale))), narrow),
    )
    logits = _with_significant_keys(logits, exponent, rise, model.exp_units)
    if not model.normalises_last or roundings.rounds_on_the_way(model) or not some(top == 0.0):
        return logits
    zero = (products == 0.0) if biases is None else (products + biases == 0.0)
    return _with_equal_rows(logits, zero, ~block.hidden, tanh_shift(tensors.softcap, model), model)


def anchored(logits: Logits) -> Logits:
    """Return the logits with errors relative to the largest logit of each row, whose own error becomes 0.

    A shift that a whole row shares cancels in the softmax, so the error of the largest logit may be added to all
    others.
    """
    place = logits.exact.argmax(-1, keepdim=True)
    at_sink = logits.sink >= logits.exact.gather(-1, place)
    own = torch.where(at_sink, logits.sink_error, logits.error.gather(-1, place))
    error = logits.error + own
    error = torch.where(at_sink, error, error.scatter(-1, place, 0.0))
    sink_error = torch.where(at_sink, 0.0, logits.sink_error + own)
    return replace(logits, error=error, sink_error=sink_error, cancelling=torch.zeros_like(logits.cancelling))


def score_scale(tensors: AttentionTensors) -> float:
    """Return the factor of the dot products: the softmax scale, times the scales of q and k if q is fp8."""
    scale = tensors.softmax_scale
    if is_fp8_dtype(tensors.query.dtype):
        for factor in (tensors.q_scale, tensors.k_scale):
            scale *= 1.0 if factor is None else float(factor)
    return scale


def product_units(tensors: AttentionTensors, model: RoundingModel) -> float:
    """Return the relative error of each product of a scaled dot product.

    It covers the product itself (with FMA or without; q may be scaled in float32 before it, so it is never exact), the
    product with the scale, the scale's own roundings (fp8 scales are folded in, and log2(e) in kernels that work in
    base 2), and where the model allows it operands cut to fewer bits, or in parts, and K left unrounded after
    dequantisation.
    """
    query, operand = tensors.query.dtype, roundings.query_dtype(tensors, model)
    total = 1 + grown(6 if is_fp8_dtype(query) else 4, UNIT)
    total *= (1 + roundings.operand_unit(operand, model)) ** 2
    if not model.rounds_dequantised and tensors.kv_dtype != query:
        total *= 1 + unit_roundoff(query)
    return total - 1


def addition_units(queries: torch.Tensor, tensors: AttentionTensors, model: RoundingModel) -> torch.Tensor:
    """Return the error of the additions of a row's dot products, relative to the largest of their partial sums.

    ``queries`` are ``[..., head_size]``, the result is ``[..., 1]``. An adder that rounds to nearest adds 0 exactly, so
    a row with ``n`` numbers other than 0 has ``n - 1`` additions that round. One that truncates may cut its other
    operand.
    """
    operand = roundings.query_dtype(tensors, model)
    unit, passes = accumulation_unit(operand, tensors, model), roundings.passes(operand, model)
    if unit > UNIT or passes > 1:
        return queries.new_full((*queries.shape[:-1], 1), grown(queries.shape[-1] * passes, unit))
    if has_zero(queries):
        additions = (queries != 0.0).sum(-1, keepdim=True, dtype=torch.float64).sub_(1.0).clamp_min_(0.0)
    else:
        additions = queries.new_full((*queries.shape[:-1], 1), queries.shape[-1] - 1.0)
    return additions.mul_(math.log1p(unit)).expm1_()


def _scores_error(
    block: RowBlock, scores: torch.Tensor, sizes: torch.Tensor, tensors: AttentionTensors, model: RoundingModel
) -> torch.Tensor:
    """Return the error of scaled dot products whose exact values are ``scores``; ``sizes`` are ``sum |q| |k|``.

    Let each product have a relative error of at most ``r``, and let ``m = |scale| sum |q| |k|``. In any order of
    summation each partial sum is a sum of some products. Without errors it is at most the larger of the sum of the
    positive products and that of the negative ones, which is ``(m + |score|) / 2``; with their errors it is at most
    ``r m`` more. Each addition loses at most ``unit`` of its largest operand or its result, so all of them lose at
    most the ``additions`` ``(1 + unit)^n - 1`` times the largest partial sum.

    Where products are parts of split operands, or rounded to a narrow type, ``m`` replaces ``(m + |score|) / 2``.
    """
    scale = abs(score_scale(tensors))
    products, additions = product_units(tensors, model), addition_units(block.queries, tensors, model)
    underflow: float | torch.Tensor = block.keys.shape[-1] * UNDERFLOW * max(1.0, scale)
    least = roundings.least_of_unrounded(tensors, model)
    if least:
        lost = block.queries.abs().sum(-1, keepdim=True).mul_(least * scale * (1 + products))
        underflow = lost * (1 + additions) + underflow
    operand = roundings.query_dtype(tensors, model)
    if roundings.passes(operand, model) == 1 and not roundings.rounds_dots(model):
        units = (additions * (products + 0.5)).add_(products).mul_(scale)
        return (sizes * units).addcmul_(scores.abs(), additions, value=0.5).add_(underflow)
    units = (1 + products) * (1 + additions) - 1
    magnitudes = sizes * scale
    error = (magnitudes * units).add_(underflow)
    return roundings.dot_error(error, magnitudes, block.keys, scale, units, tensors, model)


def accumulation_unit(operands: torch.dtype, tensors: AttentionTensors, model: RoundingModel) -> float:
    """Return the relative error of one addition inside a dot product of operands of this type."""
    slack = model.accumulate_slack
    if is_fp8_dtype(operands):
        slack = max(model.fp8_dot_slack, model.tensor_core_slack)
    elif operands.itemsize == 2 or model.input_precision != "ieee":
        slack = max(slack, model.tensor_core_slack)
    return slack * unit_roundoff(roundings.dtype_of(model.accumulate, tensors))


def softcap_error(
    scores: torch.Tensor, capped: torch.Tensor, error: torch.Tensor, softcap: float, model: RoundingModel
) -> torch.Tensor:
    """Return the error of ``c tanh(s / c)`` for a score ``s`` with an error.

    The error of ``s``, and of the division (2 units with a reciprocal), passes through tanh, whose slope on the
    interval is largest at the end nearest to 0. tanh itself has an absolute error, or with ``tanh_units`` one of that
    many units of its result. The product with ``c`` (and log2(e)) has a relative error.
    """
    sizes = scores.abs()
    incoming = error.add(sizes, alpha=2 * UNIT)
    nearest = sizes.sub_(incoming).clamp_min_(0.0).div_(softcap)
    slope = nearest.tanh_().square_().neg_().add_(1.0)
    units = model.tanh_units
    absolute, relative = (model.tanh_error * softcap, 2.0) if units is None else (0.0, 2.0 + units)
    passed = incoming.mul_(slope).mul_(1 + relative * UNIT)
    return passed.add_(absolute).add_(capped.abs(), alpha=relative * UNIT)


def tanh_shift(softcap: float, model: RoundingModel) -> float:
    """Return by how much a soft cap may move a score of 0: a tanh with an absolute error need not be 0 there."""
    return model.tanh_error * softcap if softcap and model.tanh_units is None else 0.0


def addition_error(addend: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Return the error of adding a bias to a score: of the bias (slope times distance, or log2(e)) and of the sum."""
    return total.abs().add_(addend.abs(), alpha=2).mul_(UNIT)


def exp_error(
    exponent: torch.Tensor, rise: torch.Tensor, rescales: torch.Tensor, units: float = EXP_UNITS
) -> torch.Tensor:
    """Return the relative error of ``exp(exponent)`` and its rescalings, as an error of the logit.

    The subtraction of the maximum and the product with a rounded log2(e) lose 2.25 units of the exponent. It contains
    the errors of two logits: that of the key, for which :data:`SECOND_ORDER` accounts, and that of the maximum, at most
    ``rise``. Over all rescalings ``exp(m_old - m_new)`` the exponents sum to the same total. Each of the
    ``rescales + 1`` exponentials loses ``units``. Numerator and denominator use the same exponentials, so there is no
    further error.
    """
    lost = rescales.add(1.0).mul_(roundings.lost_by_one(units * UNIT))
    return exponent.abs().mul_(2.5 * UNIT).add_(lost.add(rise, alpha=2.5 * UNIT))


def cancelling_error(rescales: torch.Tensor, units: float = EXP_UNITS) -> torch.Tensor:
    """Return by how much ``exp(error) - 1`` of a key counts the errors of rescalings too much.

    A rescaling of an accumulator multiplies the weights of all keys in it by the same ``1 + e``. To first order this
    moves the output by ``e sum_j p_j (v_j - o)`` over these keys. Over all keys of the row, the sink included, this sum
    is 0, so over some it is at most half of ``sum_j p_j |v_j - o|``. ``exp(error)`` counts all of it.

    In all segments together, ``n`` rescalings are by another factor than 0 or 1: one for each tile but the first, or
    one fewer and one for each segment. Let ``exp(a) - 1`` bound each ``|e|``, and let ``b = exp(n a) - 1``. One after
    the other, each rescaling meets weights that earlier ones have changed by at most ``b``. So together they move the
    output by at most ``n (exp(a) - 1) (1/2 + b) sum_j p_j |v_j - o|``. With ``c`` the other errors of a key,
    ``exp(error) - 1`` is ``(exp(c) - 1) (1 + b) + b``, whose last ``b`` may become that.
    """
    each = roundings.lost_by_one(units * UNIT) * SECOND_ORDER
    together = (rescales * each).clamp_max_(1.0).expm1_()
    return (together - rescales * math.expm1(each) * (together + 0.5)).clamp_min_(0.0)


def _capped(
    scores: torch.Tensor, error: torch.Tensor, softcap: float, model: RoundingModel
) -> tuple[torch.Tensor, torch.Tensor]:
    capped = (scores / softcap).tanh_().mul_(softcap)
    return capped, softcap_error(scores, capped, error, softcap, model)


def _rise(
    exact: torch.Tensor, error: torch.Tensor, top: torch.Tensor, sink: torch.Tensor, sink_error: torch.Tensor
) -> torch.Tensor:
    """Return by how much the largest logit of a row may move, ``[..., 1]``.

    It rises to at most the largest ``exact + error``, and falls by at most the error of one logit, which is no more. An
    absent sink stays far below, whatever its error.
    """
    highest = torch.maximum((exact + error).amax(-1, keepdim=True), sink + sink_error)
    return highest.sub_(top)


def _with_significant_keys(logits: Logits, exponent: torch.Tensor, rise: torch.Tensor, exp_units: float) -> Logits:
    """Return the logits with only those roundings counted that a significant key meets.

    A rescaling by exactly 1 or 0 rounds nothing. Any other one after a significant key comes from another significant
    key or from the sink, and one more may merge segments.
    """
    significant = significant_keys(exponent, logits.exact, logits.top, logits.error, rise)
    if significant is None:
        return logits
    count = significant.sum(-1, keepdim=True, dtype=torch.float64)
    rescales = torch.minimum(logits.rescales, count + 2)
    error = logits.error.sub_((logits.rescales - rescales).mul_(roundings.lost_by_one(exp_units * UNIT)))
    cancelling = cancelling_error(rescales, exp_units)
    return replace(
        logits,
        error=error,
        rescales=rescales,
        terms=count + rescales,
        cancelling=cancelling,
        significant=significant,
    )


def _with_equal_rows(
    logits: Logits, zero: torch.Tensor, visible: torch.Tensor, shift: float, model: RoundingModel
) -> Logits:
    """Return the logits without errors in the rows whose weights are exactly 0 or 1.

    Where segments are merged by their logarithms, the weights are so within each segment, and the errors remain: those
    of logarithms are among them. A segment of negligible keys has weights of its own. It must have none in the merge,
    which counts its keys: so they have to be twice as far below.
    """
    significant = visible if logits.significant is None else logits.significant
    if model.merges_logarithms:
        significant = ~(logits.exact + logits.error < logits.top - 2 * NEGLIGIBLE)
    rows = rows_of_equal_weights(zero, significant, logits.sink, logits.top, shift)
    if rows is None:
        return logits
    if model.merges_logarithms:
        return _with_merges_only(replace(logits, equal_rows=rows), rows, model)
    return replace(
        logits,
        error=logits.error.masked_fill(rows, 0.0),
        sink_error=logits.sink_error.masked_fill(rows, 0.0),
        cancelling=logits.cancelling.expand_as(rows).masked_fill(rows, 0.0),
        equal_rows=rows,
    )


def _with_merges_only(logits: Logits, rows: torch.Tensor, model: RoundingModel) -> Logits:
    """Return the logits with only those rescalings counted in some rows that may come from a merge of segments.

    Within a segment of such a row all rescalings are by 1 or 0, which rounds nothing.
    """
    if not model.most_segments:
        return logits
    merges = logits.rescales.clamp_max(model.most_segments)
    saved = (logits.rescales - merges) * rows
    lost = saved * roundings.lost_by_one(model.exp_units * UNIT)
    rescales = logits.rescales - saved
    return replace(
        logits,
        error=logits.error - lost,
        sink_error=logits.sink_error - lost,
        rescales=rescales,
        terms=logits.terms - saved,
        cancelling=cancelling_error(rescales, model.exp_units),
    )


def _biased(
    block: RowBlock, tensors: AttentionTensors, scores: torch.Tensor, error: torch.Tensor, rounding: Rounding
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return scores and errors after ALiBi, whose distances count from the context length, and the query-query bias.

    Biases and sums may be rounded to the type of the scores. The third tensor is the sum of the biases' magnitudes,
    None without biases.
    """
    sizes = None
    if tensors.alibi_slopes is not None:
        slopes = tensors.alibi_slopes.double().view(block.keys.shape[1], 1, -1, 1)
        distance = (block.key_position - block.context_len[:, None]).double()[:, None, None, None]
        alibi = slopes * distance
        scores = scores.add_(alibi)
        error = addition_error(alibi, scores).add_(error)
        error = rounding.after(alibi, error, SCORE_ROUNDINGS, distance.abs() + 1)
        error = rounding.after(scores, error, 1)
        sizes = alibi.abs()
    if block.qq_bias is not None:
        bias = block.qq_bias[:, None, :, None]
        scores = scores.add_(bias)
        error = addition_error(bias, scores).add_(error)
        error = rounding.after(bias, error, SCORE_ROUNDINGS)
        error = rounding.after(scores, error, 1)
        sizes = bias.abs() if sizes is None else sizes + bias.abs()
    return scores, error, sizes


def _sinks(tensors: AttentionTensors, block: RowBlock) -> torch.Tensor:
    """Return the sink of each head ``[num_kv_heads, 1, group, 1]``."""
    shape = (block.keys.shape[1], 1, block.queries.shape[3], 1)
    if tensors.sinks is None:
        return torch.full(shape, NO_SINK, dtype=torch.float64, device=block.keys.device)
    return tensors.sinks.double().view(shape).clamp_min(NO_SINK)


def _rounded_sink_error(sink: torch.Tensor, error: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """Return the error of the sink with its roundings to the type of the scores; an absent sink has none."""
    if not rounding.unit:
        return error
    return rounding.after(sink.abs().masked_fill(sink <= NO_SINK, 0.0), error, 2)


def _overflows(products: torch.Tensor, hidden: torch.Tensor, scale: float) -> torch.Tensor | None:
    """Return bool: whether a visible score of the row, scaled or not, may overflow float32. None if none may.

    ``products`` are ``sum |q| |k|`` before they are scaled: with a scale of 0 or near it, they overflow first.
    """
    limit = OVERFLOW / scale
    if maximum_of(products) < limit:
        return None
    return ~(products.masked_fill(hidden, 0.0).amax(-1, keepdim=True) < limit)


def _either(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    return one if other is None else other if one is None else one | other
