"""Roundings: the error of one operation in a floating-point type, and those that a rounding model allows.

The error of one operation is in the notation of Higham's textbook. The roundings of a model come on top of those of a
kernel that computes in float32: each of these functions takes an error bound and returns the one that includes its
roundings. Without such roundings it returns what it was given. No term is of first order: a rounding applies to the
number with all of its earlier errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Final

import torch

from fuzz_attn.inputs.storage import is_fp8_dtype
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.rounding_model import EXP_UNITS, InputPrecision, RoundedTo, RoundingModel
from fuzz_attn.oracle.row_blocks import RowBlock, some

UNIT: Final = 2.0**-24
"""Unit roundoff of float32: the largest relative error of an operation that rounds to nearest."""

TF32_UNIT: Final = 2.0**-10
"""Relative error of a float32 operand that is cut to tf32: tensor cores drop its 13 low bits without rounding (measured
on an H200, `tests/simulator/test_against_gpu.py`). A compiler that rounds first loses half of this."""

FLUSHED: Final = 2.0**-126
"""Smallest normal float32: the absolute error of an ``exp`` that flushes denormals to zero."""

UNDERFLOW: Final = 2.0**-149
"""Smallest denormal float32: twice the absolute error of a product or quotient that underflows gradually."""

OVERFLOW: Final = 2.0**127
"""Half of the float32 range: sums of magnitudes below it do not overflow in any order of summation."""

_EXPONENT: Final = 0x7FF0000000000000
"""The exponent bits of a float64."""
ENDLESS: Final = 1e30
"""Stands for an infinite relative error, so that its product with 0 stays finite."""

FARTHEST: Final = -1e30
"""Stands for a logit of -inf, so that differences with it stay finite."""

LOG2_E: Final = 1.45
"""A little more than log2(e)."""

SCORE_ROUNDINGS: Final = 4
"""Roundings of a score between its dot and the soft cap or the softmax: the dot, the scale, their product, and the
product with log2(e) or the division by the cap. As many behind the soft cap: tanh, the cap, their product, log2(e).
As many of a bias: slope, distance, product, log2(e)."""

LOG_UNITS: Final = 6.0
"""Units that a logarithm may lose, of itself or of 1 where it is smaller: CUDA's ``lg2.approx`` loses 4 (2^-22), and
the product with log(2) and that constant 2 more."""

HIGH_AND_LOW: Final[dict[InputPrecision, tuple[int, float]]] = {
    "ieee": (1, 0.0),
    "tf32": (1, TF32_UNIT),
    "tf32x3": (3, 1.5 * 2.0**-20 * (1 + 2.0**-9)),
    "bf16x3": (3, 1.5 * 2.0**-16 * (1 + 2.0**-7)),
    "bf16x6": (6, 2.0**-23 * (1 + 2.0**-7)),
}
"""How many products replace one of float32 operands, and the relative error that each operand contributes.

With ``h`` the error of the first part of an operand, 2^-8 for bfloat16 rounded to nearest and 2^-10 for tf32 cut, two
parts leave ``h^2`` of it. Three products leave that of both operands, and the product of both second parts: ``3 h^2``.
Three parts leave ``h^3``. Six products also leave two products of a second and a third part: ``4 h^3``. The last
factors account for products of errors."""


@cache
def unit_roundoff(dtype: torch.dtype) -> float:
    """Return half the spacing of the type at 1: the largest relative error of rounding to nearest."""
    return torch.finfo(dtype).eps / 2


@cache
def half_denormal(dtype: torch.dtype) -> float:
    """Return half the smallest denormal of the type: the largest absolute error of rounding below the normal range."""
    info = torch.finfo(dtype)
    return info.smallest_normal * info.eps / 2


def cast_unit(dtype: torch.dtype) -> float:
    """Return the relative error of a cast from float32 to the type; 0 for float32 itself."""
    return 0.0 if dtype == torch.float32 else unit_roundoff(dtype)


def grown(times: int, unit: float) -> float:
    """Return ``(1 + u)^n - 1``, the relative error after ``n`` roundings none of which is divided by; always finite."""
    return math.expm1(times * math.log1p(unit))


def half_spacing(largest: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the largest error of rounding a float32 of at most these float64 magnitudes to the type.

    This is half the spacing in the magnitude's binade; the relative error would give twice as much just below a power
    of two.
    """
    binade = (largest.view(torch.int64) & _EXPONENT).view(torch.float64)
    return binade.mul_(cast_unit(dtype)).clamp_min_(half_denormal(dtype))


def gamma(operations: torch.Tensor, unit: float) -> torch.Tensor:
    """Return ``n u / (1 - n u)``, the relative error after ``n`` roundings; infinite where ``n u`` reaches 1."""
    product = operations * unit
    return product.div_(product.neg().add_(1.0).clamp_min_(0.0))


@dataclass(frozen=True)
class Rounding:
    """Rounding a float32 to another type; all 0 for float32 itself.

    ``unit`` is the relative error, ``absolute`` the error below the normal range. Numbers from ``limit`` on, half of
    the type's range, may overflow.
    """

    unit: float
    absolute: float
    limit: float

    def after(
        self, size: torch.Tensor, error: torch.Tensor, times: int, reach: float | torch.Tensor = 1.0
    ) -> torch.Tensor:
        """Return the error of a number with an error, after some roundings; ``size`` may have any sign.

        ``reach`` is by how much later products enlarge the absolute errors.
        """
        if not self.unit:
            return error
        grows = grown(times, self.unit)
        return error + (size.abs() + error) * grows + times * (1 + grows) * reach * self.absolute


_EXACT: Final = Rounding(0.0, 0.0, torch.inf)


def rounding_to(name: RoundedTo, tensors: AttentionTensors) -> Rounding:
    """Return the rounding to a type of a rounding model."""
    return _EXACT if name == "float32" else _rounding_to(dtype_of(name, tensors))


def dtype_of(name: RoundedTo, tensors: AttentionTensors) -> torch.dtype:
    """Return a type of a rounding model: ``query`` is the type of q, bfloat16 for fp8, ``cache`` that of K and V."""
    if name == "query":
        return torch.bfloat16 if is_fp8_dtype(tensors.query.dtype) else tensors.query.dtype
    if name == "cache":
        return tensors.kv_dtype
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def query_dtype(tensors: AttentionTensors, model: RoundingModel) -> torch.dtype:
    """Return the type of q as operand of its dot: another one than its own where the model rounds q."""
    return tensors.query.dtype if model.query == "float32" else dtype_of(model.query, tensors)


def rounding_of_query(tensors: AttentionTensors, model: RoundingModel) -> Rounding:
    """Return the rounding of q itself; a type that holds every q rounds nothing."""
    dtype = query_dtype(tensors, model)
    return _rounding_to(torch.float32 if _holds(dtype, tensors.query.dtype) else dtype)


@cache
def _holds(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Return whether a type has every number of another one."""
    one, two = torch.finfo(dtype), torch.finfo(other)
    return one.eps <= two.eps and one.max >= two.max and half_denormal(dtype) <= half_denormal(other)


@cache
def _rounding_to(dtype: torch.dtype) -> Rounding:
    if dtype == torch.float32:
        return _EXACT
    return Rounding(cast_unit(dtype), half_denormal(dtype), torch.finfo(dtype).max / 2)


def rounds_on_the_way(model: RoundingModel) -> bool:
    """Return whether anything but P and the output may be rounded to a narrow type, so that no sum is surely exact."""
    names = (
        model.query,
        model.scaled_query,
        model.products,
        model.accumulate,
        model.scores,
        model.softmax,
        model.partials,
        model.lse,
    )
    return any(name != "float32" for name in names) or model.exp_units != EXP_UNITS


def rounds_dots(model: RoundingModel) -> bool:
    """Return whether q, products or partial sums of a dot are rounded to a narrow type."""
    return any(name != "float32" for name in (model.query, model.scaled_query, model.products, model.accumulate))


def lost_by_one(unit: float) -> float:
    """Return the error of a logit whose exponential has a relative error of at most ``unit``.

    This is ``-log(1 - unit)``, as the logarithm falls faster than it rises. From a unit of 1 on it stands for an error
    that makes a row ill-conditioned.
    """
    return -math.log1p(-min(unit, 1 - UNIT))


def passes(operands: torch.dtype, model: RoundingModel) -> int:
    """Return how many products a dot adds for each product of its operands."""
    return HIGH_AND_LOW[model.input_precision][0] if operands == torch.float32 else 1


def operand_unit(operands: torch.dtype, model: RoundingModel) -> float:
    """Return the relative error of each operand of a dot: float32 may be cut to fewer bits."""
    return HIGH_AND_LOW[model.input_precision][1] if operands == torch.float32 else 0.0


def dot_error(
    error: torch.Tensor,
    magnitudes: torch.Tensor,
    keys: torch.Tensor,
    scale: float,
    units: torch.Tensor,
    tensors: AttentionTensors,
    model: RoundingModel,
) -> torch.Tensor:
    """Return the error of a scaled dot product in a narrow type, from its error in float32.

    It covers the rounding of q itself, q scaled in its type (the scale, the product, and half a denormal for each of
    them), the rounding of each product, and the products and sums below the normal range of the types in which they are
    kept. ``magnitudes`` is ``|scale| sum |q| |k|``, ``keys`` is ``[B, num_kv_heads, K, head_size]``, and ``units``
    ``[..., 1]`` the relative error of sums.
    """
    query, product, total = (
        rounding_to(name, tensors) for name in (model.scaled_query, model.products, model.accumulate)
    )
    cast = rounding_of_query(tensors, model)
    if cast.unit:
        sizes = keys.abs().sum(-1)[:, :, None, None]
        error = error * (1 + cast.unit) + magnitudes * cast.unit + sizes * (abs(scale) * cast.absolute * (1 + units))
    if query.unit:
        factor = max(query.unit, query.absolute / max(abs(scale), UNDERFLOW))
        unit = (1 + factor) * (1 + query.unit) - 1
        sizes = keys.abs().sum(-1)[:, :, None, None]
        error = error * (1 + unit) + magnitudes * unit + sizes * (query.absolute * (1 + units))
    if product.unit:
        error = error * (1 + product.unit) + magnitudes * product.unit
    if product.unit or total.unit:
        lost = (product.absolute + total.absolute) * (1 + units)
        error = error + keys.shape[-1] * lost * max(1.0, abs(scale))
    return error


def softmax_errors(
    errors: tuple[torch.Tensor, torch.Tensor],
    logits: tuple[torch.Tensor, torch.Tensor],
    top: torch.Tensor,
    counts: tuple[torch.Tensor, torch.Tensor],
    tensors: AttentionTensors,
    model: RoundingModel,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the errors of the keys' logits and of the sink whose softmax or whose segments' sums are rounded.

    ``logits`` are those of the keys, -inf where masked, and of the sink, ``top`` the largest of a row. ``counts`` are
    the visible keys and the rescalings of a row.
    """
    softmax, lse = rounding_to(model.softmax, tensors), rounding_to(model.lse, tensors)
    if not softmax.unit and not lse.unit and not model.merges_logarithms:
        return errors
    largest = torch.maximum(errors[0].masked_fill(logits[0].isinf(), 0.0).amax(-1, keepdim=True), errors[1])
    most = torch.maximum(top.abs(), (top + counts[0].log1p()).abs())
    changed = []
    for error, logit, rescales in zip(errors, logits, (counts[1], counts[1] + 1), strict=True):
        finite = logit.clamp_min(FARTHEST)
        rounded = _softmax_error(error, finite - top, largest, rescales, softmax)
        sizes = torch.maximum(finite.abs(), most)
        if model.merges_logarithms:
            rounded = rounded + sizes * UNIT + LOG_UNITS * UNIT * counts[0].log1p().clamp_min(1.0)
        changed.append(lse.after(sizes, rounded, 1) if lse.unit else rounded)
    return changed[0], changed[1]


def _softmax_error(
    error: torch.Tensor, exponent: torch.Tensor, largest: torch.Tensor, rescales: torch.Tensor, rounding: Rounding
) -> torch.Tensor:
    """Return the error of a logit with the roundings of an exponential in a narrow type.

    It covers the difference from the maximum (of which ``largest`` is the largest error), log2(e) and its product, and
    the rounding of each of the ``rescales + 1`` exponentials.
    """
    if not rounding.unit:
        return error
    difference = exponent.abs() + error + largest
    return (
        error
        + difference * grown(3, rounding.unit)
        + 3 * rounding.absolute
        + (rescales + 1) * lost_by_one(rounding.unit)
    )


def product_unit(tensors: AttentionTensors, model: RoundingModel) -> float:
    """Return the relative error of each term ``p_j v_j`` that is rounded to narrow types.

    It covers the rounding of the product, the rounding of the sums of each segment, and a normalised P that was
    computed in the softmax's type (a reciprocal and a product).
    """
    names = (model.products, model.partials, model.softmax, model.softmax)
    units = [rounding_to(name, tensors).unit for name in names]
    total = 1.0
    for unit in units:
        total *= 1 + unit
    return total - 1


def lost_exponential(tensors: AttentionTensors, model: RoundingModel) -> float:
    """Return the absolute error of an exponential below the normal range of its type."""
    return max(FLUSHED, rounding_to(model.softmax, tensors).absolute)


def leaves_unrounded(tensors: AttentionTensors, model: RoundingModel) -> bool:
    """Return whether the target keeps dequantised K and V unrounded, which the reference rounds to the type of q."""
    query = tensors.query.dtype
    return not model.rounds_dequantised and tensors.kv_dtype != query and not is_fp8_dtype(query)


def least_of_unrounded(tensors: AttentionTensors, model: RoundingModel) -> float:
    """Return the absolute error of a dequantised number that the target leaves unrounded, below the normal range."""
    return half_denormal(tensors.query.dtype) if leaves_unrounded(tensors, model) else 0.0


def lost_products(
    terms: torch.Tensor, summed: torch.Tensor | float, tensors: AttentionTensors, model: RoundingModel
) -> torch.Tensor:
    """Return the error of a sum whose terms are below the normal range of their types, with the error of the sum.

    It covers each product and each partial sum, the sums of segments, whose shares of the row add up to 1, and the low
    parts of split operands.
    """
    lost = terms * UNDERFLOW
    narrow = 2 * sum(rounding_to(name, tensors).absolute for name in (model.products, model.accumulate))
    whole = 2 * rounding_to(model.partials, tensors).absolute
    if passes(dtype_of(model.probability, tensors), model) > 1:
        whole += FLUSHED
    return lost + (terms * narrow + whole) * (1 + summed) if narrow or whole else lost


def denominator_units(
    units: torch.Tensor,
    terms: torch.Tensor,
    rescales: torch.Tensor,
    cast: float,
    tensors: AttentionTensors,
    model: RoundingModel,
) -> torch.Tensor:
    """Return the relative error of the factors of a row whose denominator sums or keeps rounded weights.

    It covers weights rounded to P's type (``cast`` is its unit, half a denormal each), and in the softmax's type three
    roundings at each rescaling and exponentials that underflow. Before them the denominator is above 1/2.
    """
    softmax, probability = rounding_to(model.softmax, tensors), rounding_to(model.probability, tensors)
    rounded = cast if model.rounded_denominator else 0.0
    if not rounded and not softmax.unit:
        return units
    kept = (3 * rescales + 3) * torch.tensor(softmax.unit).double().log1p()
    lost = terms * ((rescales + 2) * softmax.absolute + (probability.absolute if rounded else 0.0))
    error = (1 + rounded + 2 * lost) * kept.exp() - 1
    return ((units + error) / (1 - error).clamp_min_(0.0)).clamp_max_(ENDLESS)


def output_error(
    expected: torch.Tensor, error: torch.Tensor, tensors: AttentionTensors, model: RoundingModel
) -> torch.Tensor:
    """Return the error of a scaled output that is rounded to another type before it is stored.

    Without scales this is one rounding, as exact as the last one. With scales it is one rounding for the average and
    for each product. Where the type may overflow, the error is infinite.
    """
    rounding = rounding_to(model.output, tensors)
    if not rounding.unit:
        return error
    scales = [abs(scale) for scale in output_scales(tensors)]
    if not scales:
        largest = expected.abs() + error
        error = error + half_spacing(largest, dtype_of(model.output, tensors))
    else:
        reach = math.prod(max(1.0, scale) for scale in scales)
        error = rounding.after(expected.abs(), error, 1 + len(scales), reach)
        largest = (expected.abs() + error) * (reach / max(math.prod(scales), UNDERFLOW))
    return error.masked_fill(~(largest < 2 * rounding.limit), torch.inf)


def output_scales(tensors: AttentionTensors) -> list[float]:
    """Return the factors of the average of V: v's scale if q is fp8, and 1 / the output's scale if that is fp8."""
    scales = []
    if is_fp8_dtype(tensors.query.dtype) and tensors.v_scale is not None:
        scales.append(float(tensors.v_scale))
    if is_fp8_dtype(tensors.output.dtype) and tensors.out_scale is not None:
        scales.append(1 / float(tensors.out_scale))
    return scales


def row_overflows(
    block: RowBlock,
    scores: torch.Tensor,
    top: torch.Tensor,
    scale: float,
    tensors: AttentionTensors,
    model: RoundingModel,
) -> torch.Tensor | None:
    """Return bool ``[..., 1]``: whether a number on the way to the weights of a row may overflow a narrow type.

    These are the partial sums of a dot, the dot, the ``scores`` with their biases, q, q times ``scale`` and log2(e),
    the denominator, which is at most the number of visible keys and a sink, and the logarithm of the sum of
    exponentials of a segment, in base 2 or e. That of a segment is above the lowest visible score and below the
    largest logit ``top``, apart from the logarithm of a count. None if none may.
    """
    names = (model.accumulate, model.products, model.scores, model.softmax, model.scaled_query, model.lse)
    limits = {name: rounding_to(name, tensors).limit for name in names}
    cast = rounding_of_query(tensors, model).limit
    if min(cast, *limits.values()) == torch.inf:
        return None
    queries, keys = block.queries.flatten(2, 3), block.keys.transpose(-1, -2)
    sums = (queries.abs() @ keys.abs()).view_as(scores) * max(1.0, abs(scale))
    dots = torch.maximum((queries @ keys).view_as(scores).abs(), scores.abs())
    found = _reaches(sums, block.hidden, min(limits[model.accumulate], limits[model.products]))
    found |= _reaches(dots, block.hidden, min(limits[model.scores], limits[model.softmax]))
    count = block.num_visible[:, None, :, None, None] + 1
    found |= ~(count < limits[model.softmax])
    farthest = torch.maximum(_largest_visible(scores.abs(), block.hidden), top) + count.log()
    found |= ~(farthest * LOG2_E < limits[model.lse])
    largest = block.queries.abs().amax(-1, keepdim=True)
    found |= ~(largest * (abs(scale) * LOG2_E) < limits[model.scaled_query]) | ~(largest < cast)
    return found if some(found) else None


def _largest_visible(sizes: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return sizes.masked_fill(hidden, 0.0).amax(-1, keepdim=True)


def _reaches(sizes: torch.Tensor, hidden: torch.Tensor, limit: float) -> torch.Tensor:
    return ~(_largest_visible(sizes, hidden) < limit)


def value_limit(tensors: AttentionTensors, model: RoundingModel) -> float:
    """Return the magnitude that sums of values may reach before a narrow type overflows; infinite without one."""
    names = (model.accumulate, model.products, model.partials)
    return min(rounding_to(name, tensors).limit for name in names)
