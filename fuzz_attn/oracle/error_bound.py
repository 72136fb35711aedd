"""The error bound: the largest error that a correct kernel may make in each output element.

A correct kernel computes logits with errors of at most ``delta_j`` (:mod:`fuzz_attn.oracle.logits`). It sums
``p_j v_j`` and ``p_j`` in float32, in any order and with rescalings in between, casts P, divides, scales and stores.
Every term is rigorous, not first-order: a perturbed weight is bounded by ``exp(x_j + delta_j)``, never by
``p_j (1 + delta_j)``.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch

from fuzz_attn.inputs.storage import is_fp8_dtype
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle import roundings
from fuzz_attn.oracle.logits import NO_SINK, Logits, accumulation_unit, anchored, exact_columns
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.oracle.roundings import (
    FLUSHED,
    UNIT,
    cast_unit,
    gamma,
    half_denormal,
    half_spacing,
    unit_roundoff,
)
from fuzz_attn.oracle.row_blocks import RowBlock, every, maximum_of, minimum_of, places_of, some, some_between

MAX_DRIFT: Final = 0.5
"""Share of a row's total weight that logit errors may move; where they may move more, the row is ill-conditioned."""

BEYOND: Final = 20.0
"""Exponent at which perturbed weights are clamped: far beyond ``MAX_DRIFT``, and small enough not to overflow."""

MAX_DEVIATIONS: Final = 2**17
"""Elements of the temporary ``[rows, keys, head_size]`` of :func:`deviation`: 1 MiB, which fits a core's cache."""

MOST_SPLITS: Final = 256.0
"""So many segments may have fewer keys than a tile: some kernels cut every sequence into a fixed number of them."""

NEGLIGIBLE_DRIFT: Final = 1 / 64
"""Share of P's own rounding below which coarser bounds on the effect of logit errors and on sums are good enough."""


@dataclass(frozen=True)
class Weights:
    """Softmax weights of a block, rows x keys as in :class:`~fuzz_attn.oracle.logits.Logits`; 0 where masked.

    ``exact`` are the weights, with the sink in the denominator. ``drift_by_key`` is how much logit errors may raise
    each unnormalised weight, ``sink_drift`` ``[..., 1]`` the same for the sink, and ``drift`` ``[..., 1]`` the sum of
    all. ``cancelling`` ``[..., 1]`` is the share of a weight by which its drift counts errors that cancel
    (:func:`fuzz_attn.oracle.logits.cancelling_error`).
    """

    exact: torch.Tensor
    drift_by_key: torch.Tensor
    drift: torch.Tensor
    sink_drift: torch.Tensor
    cancelling: torch.Tensor

    @cached_property
    def renormalised(self) -> torch.Tensor:
        """The factor by which all weights may grow when the denominator shrinks: ``1 / (1 - drift)``."""
        return self.drift.clamp_max(MAX_DRIFT).neg_().add_(1.0).reciprocal_()


def weights_of(logits: Logits) -> Weights:
    """Return the exact weights and how far logit errors may move them.

    Rows with a drift beyond ``MAX_DRIFT`` are computed again with errors relative to their largest logit: a row that
    one key dominates is well-conditioned, however large its logit.
    """
    weights = _weights(logits)
    lost = weights.drift > MAX_DRIFT
    if not some(lost):
        return weights
    relative = _weights(anchored(logits))
    pairs = ((getattr(relative, field.name), getattr(weights, field.name)) for field in dataclasses.fields(Weights))
    return Weights(*(torch.where(lost, second, first) for second, first in pairs))


def _weights(logits: Logits) -> Weights:
    # Relative to the largest logit: otherwise the weights of logits near -20,000 would sum to 1 only up to 1e-12.
    exponent, sink_exponent = logits.exact - logits.top, logits.sink - logits.top
    share = (exponent.exp().sum(-1, keepdim=True) + sink_exponent.exp()).log_()
    exact = exponent.sub_(share).exp()
    drift_by_key = exponent.add_(logits.error).clamp_max_(BEYOND).exp_().sub_(exact)
    sink_drift = _drift(sink_exponent - share, logits.sink_error)
    drift = drift_by_key.sum(-1, keepdim=True) + sink_drift
    return Weights(exact, drift_by_key, drift, sink_drift, logits.cancelling)


def deviation(weights: torch.Tensor, values: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """Return ``sum_j w_j |v_jd - o_d|`` of weights ``[..., R, K]``, values ``[..., K, D]``, outputs ``[..., R, D]``.

    The only term that is not a matrix product; computed in pieces that fit the cache.
    """
    num_rows, (num_keys, size) = output.shape[-2], values.shape[-2:]
    room = MAX_DEVIATIONS * num_keys // max(1, values.numel())
    if room >= num_rows * num_keys:  # most blocks: one piece
        distance = (values[..., None, :, :] - output[..., None, :]).abs_()
        return (weights[..., None, :] @ distance)[..., 0, :]
    keys = max(1, min(num_keys, room))
    rows = max(1, min(num_rows, room // keys))
    buffer = values.new_empty(*values.shape[:-2], rows, keys, size)
    result = torch.empty_like(output)
    for row in (slice(first, first + rows) for first in range(0, num_rows, rows)):
        for key in (slice(first, first + keys) for first in range(0, num_keys, keys)):
            shares, wanted, found = weights[..., row, None, key], output[..., row, None, :], values[..., None, key, :]
            distance = buffer[..., : wanted.shape[-3], : found.shape[-2], :]
            torch.sub(found, wanted, out=distance)
            moved = (shares @ distance.abs_())[..., 0, :]
            result[..., row, :] = moved if key.start == 0 else result[..., row, :] + moved
    return result


def _deviation_where(
    needed: torch.Tensor, weights: torch.Tensor, values: torch.Tensor, output: torch.Tensor
) -> torch.Tensor:
    """Return :func:`deviation` of an output ``[..., G, T, D]`` where ``[..., G, T, 1]`` says so, anything elsewhere.

    About two in five rows need it, most of them in all sequences and heads: the others took 2% of a whole case.
    """
    flat = output.flatten(2, 3)
    rows = places_of(needed.flatten(2))
    if len(rows) == flat.shape[2]:
        return deviation(weights, values, flat).view_as(output)
    result = torch.zeros_like(flat)
    result[:, :, rows] = deviation(weights[:, :, rows], values, flat[:, :, rows])
    return result.view_as(output)


def logit_term(weights: Weights, block: RowBlock, output: torch.Tensor, cast: float) -> torch.Tensor:
    """Return how far the output may move when every logit has its largest error.

    Exactly, ``o' - o = sum_j (w'_j - w_j) (v_j - o) / sum_j w'_j``, where ``|w'_j - w_j| <= w_j (exp(delta_j) - 1)``
    and ``sum w' >= 1 - drift``. The sink is one more key whose value is 0. In rows where the term is small beside the
    ``cast`` of P, ``|v_j| + |o|`` replaces ``|v_j - o|``: this is much cheaper and raises the bound by a few percent.
    In others, half of the errors of rescalings cancel.
    """
    if maximum_of(weights.drift) == 0.0:  # in exact cases
        return torch.zeros_like(output)
    drift = weights.drift_by_key.flatten(2, 3)
    small = weights.drift <= NEGLIGIBLE_DRIFT * cast
    coarse = fine = None
    if some(small):
        coarse = (drift @ block.magnitudes).view_as(output).addcmul_(output.abs(), weights.drift)
    if coarse is None or not every(small):
        own = weights.drift_by_key.addcmul(weights.exact, weights.cancelling, value=-1).flatten(2, 3)
        fine = _deviation_where(~small, own, block.values, output)
        fine.addcmul_(output.abs(), weights.sink_drift)
    moved = fine if coarse is None else coarse if fine is None else torch.where(small, coarse, fine)
    assert moved is not None
    return moved.mul_(weights.renormalised)


def value_term(
    weights: Weights,
    logits: Logits,
    block: RowBlock,
    moved_output: tuple[torch.Tensor, torch.Tensor],
    tensors: AttentionTensors,
    model: RoundingModel,
) -> torch.Tensor:
    """Return the error of the sum ``sum_j p_j v_j``; ``moved_output`` are the output and its :func:`logit_term`.

    It covers the cast of P (the larger of its relative error and half a denormal), ``v`` cut to fewer bits or left
    unrounded, exponentials flushed to 0 at each rescaling, one product per key, the additions in any order, the
    rescalings, v's scale on partial sums, a division of P before its cast (4 units), and products that underflow; and
    the roundings of the model's narrow types. Only significant keys are rounded; where all weights are exactly 0 or 1
    the cast rounds nothing, and sums on a coarse grid are exact (:mod:`fuzz_attn.oracle.logits`).

    All but the additions change each term by a factor. A factor of a partial sum is one of each of its terms. So the
    additions sum changed terms. Each loses at most ``unit`` of its largest operand or its result, which are sums of
    some of these terms: at most :func:`largest_sums`, and as much more as all terms have changed.
    """
    unit = accumulation_unit(probability_dtype(tensors, model), tensors, model)
    summed = sum_units(logits.terms, tensors, model)
    flushed = (logits.rescales + 2.0).mul_(roundings.lost_exponential(tensors, model))
    exact = _exact_sums(weights, logits, block, flushed, unit, tensors, model)
    if exact is not None and every(exact[0]):
        moved = exact[1]
    else:
        moved = _rounded_sums(weights, logits, block, moved_output, (summed, flushed, unit), tensors, model)
        moved = moved if exact is None else torch.where(*exact, moved)
    least = roundings.least_of_unrounded(tensors, model)
    if least:
        moved = moved + least * (1.0 + summed) * _largest_weights(weights, logits).sum(-1, keepdim=True)
    return moved + roundings.lost_products(logits.terms + 4.0, summed, tensors, model)


def _exact_sums(
    weights: Weights,
    logits: Logits,
    block: RowBlock,
    flushed: torch.Tensor,
    unit: float,
    tensors: AttentionTensors,
    model: RoundingModel,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return which sums are exact, and what flushed exponentials change of these; None if no row's weights are.

    Where segments are merged by their logarithms, the sums of each segment are exact, and what a merge loses is added.
    """
    if logits.equal_rows is None or not counts_exactly(tensors, model):
        return None
    total = block.visible[:, None].double() @ block.magnitudes
    exact, lost = logits.equal_rows & exact_columns(block, total, unit)[:, :, :, None], flushed * total[:, :, :, None]
    if model.merges_logarithms:
        sizes = _summed(_largest_weights(weights, logits), block)
        lost = lost + sizes * sum_units(merging_terms(logits, model), tensors, model)
    return exact, lost


def _rounded_sums(
    weights: Weights,
    logits: Logits,
    block: RowBlock,
    moved_output: tuple[torch.Tensor, torch.Tensor],
    units: tuple[torch.Tensor, torch.Tensor, float],
    tensors: AttentionTensors,
    model: RoundingModel,
) -> torch.Tensor:
    """Return the error of sums that are rounded, without products that underflow.

    ``moved_output`` is that of :func:`value_term`. ``units`` are the error of the sums relative to the sum of all
    magnitudes, what the flushes of a row lose of each magnitude, and the error of one addition.
    """
    summed, flushed, unit = units
    large = rows_by_sign(summed, tensors, model)
    factors = summed if large is None else torch.where(large, sum_units(logits.rescales, tensors, model), summed)
    rest = factors.add(1.0).mul_(1.0 + value_unit(tensors, model)).sub_(1.0)
    sizes, moved = _changed_terms(weights, logits, block, rest, flushed, tensors, model)
    if large is not None:
        added = gamma(additions(logits, block, unit), unit).clamp_max_(roundings.ENDLESS).masked_fill(~large, 0.0)
        moved = moved.addcmul(largest_sums(sizes, weights, *moved_output).add_(moved), added)
    return moved


def _changed_terms(
    weights: Weights,
    logits: Logits,
    block: RowBlock,
    rest: torch.Tensor,
    flushed: torch.Tensor,
    tensors: AttentionTensors,
    model: RoundingModel,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``sum_j w_j |v_jd|`` for the largest weights, and by how much these terms change.

    ``rest`` is the relative error of each term, without the cast of P and without ``flushed``.
    """
    largest = _largest_weights(weights, logits)
    units = rest + probability_unit(tensors, model) * (1 + rest)
    if logits.equal_rows is not None:
        units = torch.where(logits.equal_rows, rest, units)
    units = units.clamp_min_(UNIT)
    small = _lost_by_small_weights(largest, rest, weights, logits, tensors, model)
    if small is None:
        # The product with ``units`` leaves the flushed part: this saves a matrix product.
        largest.add_(flushed / units).masked_fill_(block.hidden, 0.0)
    sizes = _summed(largest, block)
    moved = sizes * units
    if small is not None:
        moved += _summed(small.add_(flushed).masked_fill_(block.hidden, 0.0), block)
    return sizes, moved


def _largest_weights(weights: Weights, logits: Logits) -> torch.Tensor:
    """Return the largest weight that each key may have; 0 where it is not significant."""
    largest = (weights.exact + weights.drift_by_key).mul_(weights.renormalised).clamp_max_(1.0)
    return largest if logits.significant is None else largest.masked_fill_(~logits.significant, 0.0)


def merging_terms(logits: Logits, model: RoundingModel) -> torch.Tensor:
    """Return how many roundings a merge of segments adds to each of their sums, ``[..., 1]``.

    Each segment is added once, after at most one product with the exponential of a new maximum. A segment has a tile of
    keys or more; :data:`MOST_SPLITS` of them may have fewer.
    """
    most = logits.rescales.clamp_min(MOST_SPLITS)
    if model.most_segments:
        most = most.clamp_max(model.most_segments)
    return torch.minimum(logits.terms - logits.rescales, most) * 2.0


def _lost_by_small_weights(
    largest: torch.Tensor,
    rest: torch.Tensor,
    weights: Weights,
    logits: Logits,
    tensors: AttentionTensors,
    model: RoundingModel,
) -> torch.Tensor | None:
    """Return by how much half a denormal of P's type exceeds the relative error of its cast, for each key.

    P is normalised before its cast, or divided by the denominator after it, which divides half a denormal too. None if
    it exceeds it nowhere, and exponentials are flushed only below the normal range of float32.
    """
    cast, least = probability_unit(tensors, model), half_denormal(probability_dtype(tensors, model))
    rounded = cast > 0.0 and some_between(largest, 0.0, least / cast)
    if not rounded and roundings.lost_exponential(tensors, model) == FLUSHED:
        return None
    if not rounded:
        return torch.zeros_like(largest)
    halves = least * _largest_share(largest, weights, logits) if model.normalises_last else least
    lost = (halves - largest * cast).clamp_min_(0.0).mul_(1 + rest).masked_fill_(largest == 0.0, 0.0)
    return lost if logits.equal_rows is None else lost.masked_fill_(logits.equal_rows, 0.0)


def _largest_share(largest: torch.Tensor, weights: Weights, logits: Logits) -> torch.Tensor:
    """Return the most that a weight of 1 may be after the division, where P is at most 1: ``[..., 1]``.

    A kernel computes ``exp(z_j - m)`` below a maximum ``m`` of logits and rescales by exponentials of at most 1. So
    after the division, 1 is at most the weight of the largest logit, of a key or the sink, apart from errors of the
    exponentials. The ``largest`` weights are those of the keys with their errors.
    """
    sink = (1.0 - weights.exact.sum(-1, keepdim=True)).clamp_min_(0.0).add_(weights.sink_drift)
    share = torch.maximum(largest.amax(-1, keepdim=True), sink.mul_(weights.renormalised))
    sink_error = logits.sink_error.masked_fill(logits.sink <= NO_SINK, 0.0)
    errors = torch.maximum(logits.error.masked_fill(largest == 0.0, 0.0).amax(-1, keepdim=True), sink_error)
    return share.mul_(errors.clamp_max(BEYOND).exp_()).clamp_max_(1.0)


def _summed(weights: torch.Tensor, block: RowBlock) -> torch.Tensor:
    """Return ``sum_j w_j |v_jd|``."""
    return (weights.flatten(2, 3) @ block.magnitudes).view(*weights.shape[:4], block.values.shape[-1])


def rows_by_sign(summed: torch.Tensor, tensors: AttentionTensors, model: RoundingModel) -> torch.Tensor | None:
    """Return bool: the rows in which the additions are worth a bound by :func:`largest_sums`; None if none are.

    ``summed`` are the errors of their sums with a bound by the sum of all magnitudes, which is cheaper. It is good
    enough where they are small beside the cast of P. It is necessary where products are rounded to a narrow type, or
    parts of split operands, which need not have the signs of their values.
    """
    if roundings.passes(probability_dtype(tensors, model), model) > 1 or roundings.product_unit(tensors, model):
        return None
    large = summed > NEGLIGIBLE_DRIFT * probability_unit(tensors, model)
    return large if some(large) else None


def additions(logits: Logits, block: RowBlock, unit: float) -> torch.Tensor:
    """Return how many additions to each column of the sums may round.

    An adder that rounds to nearest adds 0 exactly, so that ``n`` terms other than 0 have ``n - 1`` additions that
    round, in any order. What is left of a key whose weight becomes 0 loses at most itself, which counts as flushed. An
    adder that truncates may cut its other operand.
    """
    if unit > UNIT:
        return logits.terms
    nonzero = logits.terms - logits.rescales
    if minimum_of(block.magnitudes) == 0.0:
        seen = block.visible[:, None].double() @ (block.values != 0.0).double()
        nonzero = torch.minimum(nonzero, seen[:, :, :, None])
    return (nonzero - 1.0).clamp_min_(0.0)


def largest_sums(sizes: torch.Tensor, weights: Weights, output: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    """Return the larger of the sum of the positive terms ``w_j v_jd`` and that of the negative ones.

    This is half of the sum of their magnitudes, ``sizes``, and half of ``|sum_j w_j v_jd|``. The weights are the
    largest ones, ``(p_j + drift_j) r`` with ``r = 1 / (1 - drift)``. So their sum differs from the output by at most
    ``r sum_j drift_j |v_jd| + (r - 1) sum_j p_j |v_jd|``. The first sum is at most ``moved / r + drift |o_d|``, and as
    some errors cancel in ``moved``, at most ``drift (sum_j p_j |v_jd| + |o_d|)`` more; ``r - 1`` is ``r drift``.
    """
    average = output.abs()
    difference = (average + sizes).mul_(weights.drift.mul(weights.renormalised).mul_(2.0))
    return torch.minimum(sizes, average.add_(moved).add_(difference)).add_(sizes).mul_(0.5)


def sum_units(terms: torch.Tensor, tensors: AttentionTensors, model: RoundingModel) -> torch.Tensor:
    """Return the relative error of sums of products of P and V with this many terms.

    It covers the additions, a division of P before its cast (4 units), one product, and the roundings of products and
    of partial sums to narrow types.
    """
    probability = probability_dtype(tensors, model)
    terms = terms * roundings.passes(probability, model) + 5
    units = gamma(terms, accumulation_unit(probability, tensors, model)).clamp_max_(roundings.ENDLESS)
    narrow = roundings.product_unit(tensors, model)
    return units.mul_(1 + narrow).add_(narrow) if narrow else units


def probability_dtype(tensors: AttentionTensors, model: RoundingModel) -> torch.dtype:
    """Return the type that P is cast to."""
    return roundings.dtype_of(model.probability, tensors)


def probability_unit(tensors: AttentionTensors, model: RoundingModel) -> float:
    """Return the relative error of P's cast: 0 for float32, unless the dot cuts it."""
    dtype = probability_dtype(tensors, model)
    return roundings.operand_unit(dtype, model) or cast_unit(dtype)


def value_unit(tensors: AttentionTensors, model: RoundingModel) -> float:
    """Return the relative error of V as operand of the dot: cut to fewer bits, or not rounded after dequantisation."""
    query = tensors.query.dtype
    unit = roundings.operand_unit(probability_dtype(tensors, model), model)
    if roundings.leaves_unrounded(tensors, model):
        unit += unit_roundoff(query)
    return unit


def counts_exactly(tensors: AttentionTensors, model: RoundingModel) -> bool:
    """Return whether rows of equal weights have exact sums where their values lie on a coarse grid."""
    rounded = roundings.rounds_on_the_way(model) or value_unit(tensors, model)
    return model.normalises_last and not rounded and scales_exactly(tensors)


def scales_exactly(tensors: AttentionTensors) -> bool:
    """Return whether products of sums with v's scale are exact.

    For fp8 queries a kernel may scale the partial sums of its segments before it adds them.
    """
    if not is_fp8_dtype(tensors.query.dtype) or tensors.v_scale is None:
        return True
    mantissa, _ = math.frexp(float(tensors.v_scale))
    return abs(mantissa) in (0.0, 0.5)


def normaliser_units(tensors: AttentionTensors, logits: Logits, model: RoundingModel) -> torch.Tensor:
    """Return the relative error of all factors of a whole row.

    It covers the sum of the denominator in any order with its rescalings and the sink, the division by it (4 units if
    approximate, or a reciprocal and a product), v's scale, and the product with the reciprocal of the output's scale.
    Where all weights are 0 or 1 the denominator is exact, or only those of segments are.
    """
    terms = denominator_terms(logits, model)
    scaling = 4 + is_fp8_dtype(tensors.query.dtype) + 2 * is_fp8_dtype(tensors.output.dtype)
    units = gamma(terms + (1 + scaling), UNIT)
    cast = probability_unit(tensors, model)
    return roundings.denominator_units(units, logits.terms, logits.rescales, cast, tensors, model)


def denominator_terms(logits: Logits, model: RoundingModel) -> torch.Tensor:
    """Return how many roundings the sum of a row's denominator has, ``[..., 1]``, or of one shape with such rows."""
    if logits.equal_rows is None:
        return logits.terms
    merged = merging_terms(logits, model) if model.merges_logarithms else torch.zeros_like(logits.terms)
    return torch.where(logits.equal_rows, merged, logits.terms)


def stored_bound(expected: torch.Tensor, error: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the value to store, before its last rounding, and the bound that includes that rounding.

    fp8 is clamped to its finite range first: clamping is monotone, so the clamped ends of the interval bound the
    result. Other types overflow to infinity; where a correct kernel may overflow, the bound is infinite.
    """
    limit = torch.finfo(dtype).max
    if is_fp8_dtype(dtype):
        upper, lower = (expected + error).clamp_(-limit, limit), (expected - error).clamp_(-limit, limit)
        expected = expected.clamp(-limit, limit)
        error = torch.maximum(upper.sub_(expected), expected - lower)
    largest = expected.abs().add_(error)
    bound = half_spacing(largest, dtype).add_(error)
    if not is_fp8_dtype(dtype) and not maximum_of(largest) < limit:
        bound = bound.masked_fill(~(largest < limit), torch.inf)
    return expected, bound


def smallest_bound(dtype: torch.dtype) -> float:
    """Return the bound of an output that is exactly 0 however a correct kernel rounds."""
    return float(half_spacing(torch.zeros(1, dtype=torch.float64), dtype))


def _drift(exponent: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    return (exponent + error).clamp_max_(BEYOND).exp_() - exponent.exp()
