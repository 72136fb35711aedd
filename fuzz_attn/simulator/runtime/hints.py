"""Hints to the compiler: whether what a kernel promises of a value holds for the elements that it has.

`tl.multiple_of(x, 16)` is a promise about the first element of each run of consecutive numbers, as the compiler takes
it: `tl.multiple_of(16 * i + tl.arange(0, 16), 16)` is true. `tl.max_contiguous(x, 16)` says that each group of 16
elements holds consecutive numbers, and `tl.max_constancy(x, 16)` that it holds one number. With several axes, a promise
is about each axis, and the first element of a run is first along all of them. The compiler uses hints to access several
elements at once, so a false one is reported where an element that it is not true of reaches an access.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fuzz_attn.simulator.runtime.ranges import Range, Taint

Array = npt.NDArray[Any]

_WIDEST_ACCESS: Final = 16
"""Bytes of the widest access of a thread. The alignment of a pointer beyond them changes no code."""


def times(sizes: tuple[int, ...]) -> str:
    """Return sizes as text, such as 4 x 16."""
    return " x ".join(map(str, sizes))


def hinted(
    source: Range,
    values: Array,
    lanes: Array,
    site: int,
    divisibility: tuple[int, ...],
    contiguity: tuple[int, ...],
    constancy: tuple[int, ...],
) -> Range:
    """Return the range of integers with hints: `source`, and a taint for elements that a hint is not true of."""
    found = _of_multiples(values, lanes, site, divisibility, run_starts(values))
    wrong = inconsecutive(values, contiguity)
    if wrong.any():
        claim = f"tl.max_contiguous promises groups of {times(contiguity)} consecutive numbers, but others are"
        found.append(Taint(lanes, wrong, site, claim, consecutive=True))
    wrong = unequal(values, constancy)
    if wrong.any():
        claim = f"tl.max_constancy promises groups of {times(constancy)} equal numbers, but others are"
        found.append(Taint(lanes, wrong, site, claim))
    return (source[0], source[1], (*source[2], *found)) if found else source


def hinted_pointer(
    offsets: Array,
    lanes: Array,
    site: int,
    divisibility: tuple[int, ...],
    contiguity: tuple[int, ...],
    constancy: tuple[int, ...],
    address: int,
    size: int,
) -> Range:
    """Return as `hinted` does the taints of a pointer `offsets` elements of `size` bytes behind an address.

    A pointer's divisibility counts bytes.
    """
    _, _, taints = hinted((0, 0, ()), offsets, lanes, site, (), contiguity, constancy)
    narrowed = tuple(math.gcd(number, _WIDEST_ACCESS) for number in divisibility)
    rests = (offsets * size + address) % _WIDEST_ACCESS
    aligned = _of_multiples(rests, lanes, site, narrowed, run_starts(offsets), "an address that ends in ")
    return (0, 0, (*taints, *aligned))


def _of_multiples(
    values: Array, lanes: Array, site: int, numbers: tuple[int, ...], starts: Array, what: str = ""
) -> list[Taint]:
    found = []
    for number in sorted({number for number in numbers if number > 1}):
        wrong = starts & (values % number != 0)
        if wrong.any():
            value = int(values[wrong][0])
            claim = f"tl.multiple_of promises multiples of {number}, but {what}{value} is"
            found.append(Taint(lanes, wrong, site, claim))
    return found


def run_starts(values: Array) -> Array:
    """Return where no element before along any axis of the tile is smaller by one; axis 0 counts programs."""
    starts = np.ones(values.shape, np.bool_)
    for axis in range(1, values.ndim):
        last = values.shape[axis] - 1
        follows = values.take(range(1, last + 1), axis) == values.take(range(last), axis) + 1
        _rest(starts, axis)[...] &= ~follows
    return starts


def _rest(values: Array, axis: int) -> Array:
    """Return a view of all but the first elements along an axis."""
    view: Array = values[(slice(None),) * axis + (slice(1, None),)]
    return view


def inconsecutive(values: Array, sizes: tuple[int, ...]) -> Array:
    """Return where an element is not the first one of its group plus its distance from it, along some axis."""
    wrong = np.zeros(values.shape, np.bool_)
    for axis, first, distance in _groups(values, sizes):
        wrong |= values != values.take(first, axis) + distance
    return wrong


def unequal(values: Array, sizes: tuple[int, ...]) -> Array:
    """Return where an element differs from the first one of its group along some axis."""
    wrong = np.zeros(values.shape, np.bool_)
    for axis, first, _ in _groups(values, sizes):
        wrong |= values != values.take(first, axis)
    return wrong


def _groups(values: Array, sizes: tuple[int, ...]) -> list[tuple[int, Array, Array]]:
    """Return each axis with groups, for its elements the place of their group's first one, and the distance from it."""
    found = []
    for axis, size in enumerate(sizes, 1):
        if axis < values.ndim and size > 1:
            places = np.arange(values.shape[axis])
            first = places - places % size
            distance = (places - first).reshape((-1,) + (1,) * (values.ndim - axis - 1))
            found.append((axis, first, distance))
    return found
