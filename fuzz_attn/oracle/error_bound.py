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

from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle import arithmetic
from fuzz_attn.oracle.exactness import exact_columns
from fuzz_attn.oracle.logits import Logits, accumulation_unit, anchored
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.oracle.roundings import (
    UNIT,
    cast_unit,
    gamma,
    half_denormal,
    half_spacing,
    unit_roundoff,
)
from fuzz_attn.oracle.row_blocks import RowBlock

MAX_DRIFT: Final = 0.5
"""Share of a row's total weight that logit errors may move; where they may move more, the row is ill-conditioned."""

BEYOND: Final = 20.0
"""Exponent at which perturbed weights are clamped: far beyond ``MAX_DRIFT``, and small enough not to overflow."""

MAX_DEVIATIONS: Final = 2**17
"""Elements of the temporary ``[rows, keys, head_size]`` of :func:`deviation`: 1 MiB, which fits a core's cache."""

NEGLIGIBLE_DRIFT: Final = 1 / 64
"""Share of P's own rounding below which a coarser bound on the effect of logit errors is good enough."""


@dataclass(frozen=True)
class Weights:
    """Softmax weights of a block, rows x keys as in :class:`~fuzz_attn.oracle.logits.Logits`; 0 where masked.

    ``exact`` are the weights, with the sink in the denominator. ``drift_by_key`` is how much logit errors may raise
    each unnormalised weight, ``sink_drift`` ``[..., 1]`` the same for the sink, and ``drift`` ``[..., 1]`` the sum of
    all.
    """

    exact: torch.Tensor
    drift_by_key: torch.Tensor
    drift: torch.Tensor
    sink_drift: torch.Tensor

    @cached_property
    def renormalised(self) -> torch.Tensor:
        """The factor by which all weights may grow when the denominator shrinks: ``1 / (1 - drift)``."""
        return self.drift.clamp_max(MAX_DRIFT).neg_().add_(1.0).reciprocal_()

    @cached_property
    def largest_drift(self) -> float:
        """The largest ``drift`` of a row; NaN if there is one."""
        return float(self.drift.max())


def weights_of(logits: Logits) -> Weights:
    """Return the exact weights and how far logit errors may move them.

    Rows with a drift beyond ``MAX_DRIFT`` are computed again with errors relative to their largest logit: a row that
    one key dominates is well-conditioned, however large its logit.
    """
    weights = _weights(logits)
    if weights.largest_drift <= MAX_DRIFT:
        return weights
    lost = weights.drift > MAX_DRIFT
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
    return Weights(exact, drift_by_key, drift_by_key.sum(-1, keepdim=True) + sink_drift, sink_drift)


def deviation(weights: torch.Tensor, values: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """Return ``sum_j w_j |v_jd - o_d|`` of weights ``[..., R, K]``, values ``[..., K, D]``, outputs ``[..., R, D]``.

    The only term that is not a matrix product; computed in pieces that fit the cache.
    """
    num_rows, (num_keys, size) = output.shape[-2], values.shape[-2:]
    room = MAX_DEVIATIONS * num_keys // max(1, values.numel())
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


def logit_term(weights: Weights, block: RowBlock, output: torch.Tensor, cast: float) -> torch.Tensor:
    """Return how far the output may move when every logit has its largest error.

    Exactly, ``o' - o = sum_j (w'_j - w_j) (v_j - o) / sum_j w'_j``, where ``|w'_j - w_j| <= w_j (exp(delta_j) - 1)``
    and ``sum w' >= 1 - drift``. The sink is one more key whose value is 0. Where the term is small beside the ``cast``
    of P, ``|v_j| + |o|`` replaces ``|v_j - o|``: this is much cheaper and raises the bound by a few percent.
    """
    drift = weights.drift_by_key.flatten(2, 3)
    if weights.largest_drift <= NEGLIGIBLE_DRIFT * cast:
        moved, at_zero = drift @ block.value_sizes, weights.drift
    else:
        moved, at_zero = deviation(drift, block.values, output.flatten(2, 3)), weights.sink_drift
    return moved.view_as(output).addcmul_(output.abs(), at_zero).mul_(weights.renormalised)


def value_term(
    weights: Weights, logits: Logits, block: RowBlock, tensors: AttentionTensors, model: RoundingModel
) -> torch.Tensor:
    """Return the error of the sum ``sum_j p_j v_j``.

    It covers the cast of P (the larger of its relative error and half a denormal), ``v`` cut to fewer bits or left
    unrounded, exponentials flushed to 0 at each rescaling, one product per key, the additions in any order, the
    rescalings, v's scale on partial sums, a division of P before its cast (4 units), and products that underflow; and
    the roundings of the model's narrow types. Only significant keys are rounded; where all weights are exactly 0 or 1
    the cast rounds nothing, and sums on a coarse grid are exact (:mod:`fuzz_attn.oracle.exactness`).
    """
    probability = probability_dtype(tensors, model)
    largest = (weights.exact + weights.drift_by_key).mul_(weights.renormalised).clamp_max_(1.0)
    summed = sum_units(logits.terms, tensors, model)
    rest = (1 + summed).mul_(1 + value_unit(tensors, model)).sub_(1)
    share = largest * rest
    cast = probability_unit(tensors, model)
    if cast:
        lost = largest.mul_(cast).clamp_min_(half_denormal(probability)).mul_(1 + rest)
        share.add_(lost if logits.equal_rows is None else lost.masked_fill_(logits.equal_rows, 0.0))
    if logits.significant is not None:
        share.masked_fill_(~logits.significant, 0.0)
    flushed = (logits.rescales + 2).mul_(arithmetic.lost_exponential(tensors, model))
    share.add_(flushed).masked_fill_(block.hidden, 0.0)
    moved = (share.flatten(2, 3) @ block.value_sizes).view(*share.shape[:4], block.values.shape[-1])
    if logits.equal_rows is not None and not value_unit(tensors, model) and scales_exactly(tensors):
        unit = accumulation_unit(probability, tensors, model)
        exact = logits.equal_rows & exact_columns(block.values, block.value_sizes, unit)
        least = flushed * block.value_sizes.sum(-2)[:, :, None, None]
        moved = torch.where(exact, least, moved)
    return moved.add_(arithmetic.lost_products(logits.terms + 4, summed, tensors, model))


def sum_units(terms: torch.Tensor, tensors: AttentionTensors, model: RoundingModel) -> torch.Tensor:
    """Return the relative error of sums of products of P and V with this many terms.

    It covers the additions, a division of P before its cast (4 units), one product, and the roundings of products and
    of partial sums to narrow types.
    """
    probability = probability_dtype(tensors, model)
    terms = terms * arithmetic.passes(probability, model) + 5
    units = gamma(terms, accumulation_unit(probability, tensors, model)).clamp_max_(arithmetic.ENDLESS)
    narrow = arithmetic.product_unit(tensors, model)
    return units.mul_(1 + narrow).add_(narrow) if narrow else units


def probability_dtype(tensors: AttentionTensors, model: RoundingModel) -> torch.dtype:
    """Return the type that P is cast to."""
    return arithmetic.dtype_of(model.probability, tensors)


def probability_unit(tensors: AttentionTensors, model: RoundingModel) -> float:
    """Return the relative error of P's cast: 0 for float32, unless the dot cuts it."""
    dtype = probability_dtype(tensors, model)
    return arithmetic.operand_unit(dtype, model) or cast_unit(dtype)


def value_unit(tensors: AttentionTensors, model: RoundingModel) -> float:
    """Return the relative error of V as operand of the dot: cut to fewer bits, or not rounded after dequantisation."""
    query = tensors.query.dtype
    unit = arithmetic.operand_unit(probability_dtype(tensors, model), model)
    if not model.rounds_dequantised and tensors.kv_dtype != query and query.itemsize > 1:
        unit += unit_roundoff(query)
    return unit


def scales_exactly(tensors: AttentionTensors) -> bool:
    """Return whether products of sums with v's scale are exact.

    For fp8 queries a kernel may scale the partial sums of its segments before it adds them.
    """
    if tensors.query.dtype.itemsize > 1 or tensors.v_scale is None:
        return True
    mantissa, _ = math.frexp(float(tensors.v_scale))
    return abs(mantissa) in (0.0, 0.5)


def normaliser_units(tensors: AttentionTensors, logits: Logits, model: RoundingModel) -> torch.Tensor:
    """Return the relative error of all factors of a whole row.

    It covers the sum of the denominator in any order with its rescalings and the sink, the division by it (4 units if
    approximate, or a reciprocal and a product), v's scale, and the product with the reciprocal of the output's scale.
    Where all weights are 0 or 1 the denominator is exact.
    """
    terms = logits.terms
    if logits.equal_rows is not None:
        terms = terms.expand_as(logits.equal_rows).masked_fill(logits.equal_rows, 0.0)
    scaling = 4 + (tensors.query.dtype.itemsize == 1) + 2 * (tensors.output.dtype.itemsize == 1)
    units = gamma(terms + (1 + scaling), UNIT)
    cast = probability_unit(tensors, model)
    return arithmetic.denominator_units(units, logits.terms, logits.rescales, cast, tensors, model)


def stored_bound(expected: torch.Tensor, error: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the value to store, before its last rounding, and the bound that includes that rounding.

    fp8 is clamped to its finite range first: clamping is monotone, so the clamped ends of the interval bound the
    result. Other types overflow to infinity; where a correct kernel may overflow, the bound is infinite.
    """
    limit = torch.finfo(dtype).max
    if dtype.itemsize == 1:
        upper, lower = (expected + error).clamp_(-limit, limit), (expected - error).clamp_(-limit, limit)
        expected = expected.clamp(-limit, limit)
        error = torch.maximum(upper.sub_(expected), expected - lower)
    largest = expected.abs().add_(error)
    bound = half_spacing(largest, dtype).add_(error)
    if dtype.itemsize > 1 and not bool(largest.max() < limit):
        bound = bound.masked_fill(~(largest < limit), torch.inf)
    return expected, bound


def _drift(exponent: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    return (exponent + error).clamp_max_(BEYOND).exp_() - exponent.exp()
