"""Value ranges of integers on their way into an address: they find 32-bit overflow without a look at every element.

Each such integer has a range (low, high, taints). Ranges are plain integers, computed by interval arithmetic in a
fraction of a microsecond. The elements themselves are compared only when a range leaves 32 bits. Elements that wrapped
become a *taint*: which elements of which programs, at which operation. The taint follows the value into the address,
where it counts only for elements that are accessed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_FEW = 48
"""Up to so many numbers, Python finds the smallest and the largest faster than numpy."""

LOW = -(2**31)
HIGH = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Taint:
    """Elements that overflowed: `mask` has a row for each program of `lanes` (or one for all).

    With a `claim` they did not overflow, but a hint to the compiler is not true of them; it says what is wrong. A hint
    of `consecutive` numbers says nothing of their multiples.
    """

    lanes: Array
    mask: Array
    site: int
    claim: str = ""
    consecutive: bool = False

    def rows(self, lanes: Array) -> Array:
        """Return the rows of the mask for the programs `lanes`, all of which ran when this was found."""
        if self.mask.shape[0] == 1:
            return self.mask
        order = np.argsort(self.lanes)
        return self.mask[order[np.searchsorted(self.lanes, lanes, sorter=order)]]


Range = tuple[int, int, tuple[Taint, ...]]

EVERYTHING: Range = (LOW, HIGH, ())


def add(left: Range, right: Range) -> Range:
    """Return the range of a sum."""
    return (left[0] + right[0], left[1] + right[1], left[2] + right[2])


def subtract(left: Range, right: Range) -> Range:
    """Return the range of a difference."""
    return (left[0] - right[1], left[1] - right[0], left[2] + right[2])


def multiply(left: Range, right: Range) -> Range:
    """Return the range of a product."""
    low, high, taints = left
    taints = taints + right[2]
    if taints:
        taints = _multiplied(left, right) + _multiplied(right, left)
    if low >= 0 and right[0] >= 0:
        return (low * right[0], high * right[1], taints)
    corners = (low * right[0], low * right[1], high * right[0], high * right[1])
    return (min(corners), max(corners), taints)


def _multiplied(tainted: Range, factor: Range) -> tuple[Taint, ...]:
    """Return the taints of a range that hold of its products with a factor."""
    if factor[:2] == (1, 1):
        return tainted[2]
    return tuple(taint for taint in tainted[2] if not taint.consecutive)


def divide(left: Range, right: Range) -> Range:
    """Return the range of a quotient that truncates."""
    taints = left[2] + right[2]
    if right[0] < 1:
        bound = max(abs(left[0]), abs(left[1]))
        return (-bound, bound, taints)
    low = left[0] // right[1] if left[0] >= 0 else -(-left[0] // right[0])
    high = left[1] // right[0] if left[1] >= 0 else -(-left[1] // right[1])
    return (low, high, taints)


def remainder(left: Range, right: Range) -> Range:
    """Return the range of a remainder with the sign of the dividend."""
    bound = max(abs(right[0]), abs(right[1])) - 1
    high = max(0, min(left[1], bound))
    low = min(0, max(left[0], -bound))
    return (low, high, left[2] + right[2])


def minimum(left: Range, right: Range) -> Range:
    """Return the range of the smaller of two."""
    return (min(left[0], right[0]), min(left[1], right[1]), left[2] + right[2])


def maximum(left: Range, right: Range) -> Range:
    """Return the range of the larger of two."""
    return (max(left[0], right[0]), max(left[1], right[1]), left[2] + right[2])


def union(left: Range, right: Range) -> Range:
    """Return the range of a value that is one or the other."""
    if left is right:
        return left
    return (min(left[0], right[0]), max(left[1], right[1]), tainted(left, right)[2])


def tainted(*sources: Range) -> Range:
    """Return a range whose bounds mean nothing, with all taints of the sources, each once."""
    if not any(source[2] for source in sources):
        return (0, 0, ())
    return (0, 0, tuple(dict.fromkeys(taint for source in sources for taint in source[2])))


def with_taints(own: Range, source: Range) -> Range:
    """Return a range with the taints of another one added."""
    return (own[0], own[1], own[2] + source[2])


def choose(mask: Any, lanes: Array, left: Range, right: Range) -> Range:
    """Return the range of a selection, without taints of elements that were not chosen."""
    taints: tuple[Taint, ...] = ()
    if left[2] or right[2]:
        chosen = np.asarray(mask)
        taints = _masked(left[2], chosen, lanes) + _masked(right[2], ~chosen, lanes)
    return (min(left[0], right[0]), max(left[1], right[1]), taints)


def _masked(taints: tuple[Taint, ...], mask: Array, lanes: Array) -> tuple[Taint, ...]:
    if not mask.ndim:
        mask = mask.reshape(1)
    return tuple(replace(taint, lanes=lanes, mask=taint.rows(lanes) & mask) for taint in taints)


def exact(values: Array, source: Range = (0, 0, ())) -> Range:
    """Return the range of the elements themselves, with the taints of `source`."""
    size = values.size
    if size > _FEW:
        return (int(values.item(values.argmin())), int(values.item(values.argmax())), source[2])
    if not size:
        return (0, 0, source[2])
    numbers = values.ravel().tolist()
    return (int(min(numbers)), int(max(numbers)), source[2])


def loop(low: Array, high: Array) -> Range:
    """Return the range of the counter of a loop from one of `low` to before one of `high`."""
    return (exact(low)[0], exact(high)[1] - 1, ())


def reshaped(source: Range, index: Any) -> Range:
    """Return `source` with its taints indexed as the value's elements are (`splat`, `expand_dims`)."""
    if not source[2]:
        return source
    taints = tuple(replace(taint, mask=taint.mask[index]) for taint in source[2])
    return (source[0], source[1], taints)


_WIDE = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def wrapped(operation: str, left: Any, right: Any, result: Array, lanes: Array, site: int, guess: Range) -> Range:
    """Return the exact range of a 32-bit `result` whose range left 32 bits; elements that wrapped are tainted."""
    if operation == "shl":
        ideal = np.left_shift(np.asarray(left).astype(np.int64), right)
    else:
        ideal = _WIDE[operation](np.asarray(left).astype(np.int64), np.asarray(right).astype(np.int64))
    mask = ideal != result
    taints = guess[2]
    if mask.any():
        taints = (*taints, Taint(lanes, np.atleast_1d(mask), site))
    return (int(result.min()), int(result.max()), taints)


def wrapped_sum(result: Array, lanes: Array, site: int, guess: Range, *terms: Any) -> Range:
    """Return what `wrapped` returns, for a 32-bit sum of terms."""
    ideal: Any = 0
    for term in terms:
        ideal = ideal + np.asarray(term).astype(np.int64)
    mask = np.atleast_1d(ideal != result)
    taints = (*guess[2], Taint(lanes, mask, site)) if mask.any() else guess[2]
    return (int(result.min()), int(result.max()), taints)
