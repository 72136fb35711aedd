"""Exactness: which weights are exactly 0 or 1 in every correct kernel, and which sums of values are exact.

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
"""

from __future__ import annotations

from typing import Final

import torch

from fuzz_attn.oracle.conditions import every, minimum_of, some
from fuzz_attn.oracle.row_blocks import RowBlock, largest_seen

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
