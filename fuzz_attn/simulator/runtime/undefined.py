"""Integer operations whose results are undefined for some operands: division by 0, shifts by the width or more.

A GPU returns some number for them and does not trap. So they matter only where what a launch does depends on that
number. To find that out, a launch that meets undefined results runs again with other numbers in their place
(`simulator.probes`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from fuzz_attn.simulator.runtime import arithmetic

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """Undefined results of one line: in which program first, how many, and which operation made them, in words."""

    program: int
    count: int
    words: str


@dataclass(slots=True)
class Undefined:
    """The undefined results of one run by the number of their line, and the numbers that take their places.

    `garbage` has a function that returns the number for the width of an integer; results of other lines are as numpy
    makes them.
    """

    seen: dict[int, Seen] = field(default_factory=dict)
    garbage: dict[int, Callable[[int], int]] = field(default_factory=dict)

    def replaced(self, site: int, lanes: Array, wrong: Array, values: Array, words: str) -> Array:
        """Return the results with garbage where they are undefined, and note these."""
        known = self.seen.get(site)
        row = int(np.unravel_index(int(wrong.argmax()), wrong.shape)[0]) if wrong.ndim else 0
        program = int(lanes[row]) if row < lanes.size else 0
        count = int(np.count_nonzero(wrong))
        self.seen[site] = (
            Seen(program, count, words) if known is None else Seen(known.program, known.count + count, known.words)
        )
        chosen = self.garbage.get(site)
        if chosen is None:
            return values
        result = np.array(np.broadcast_to(values, np.broadcast_shapes(values.shape, wrong.shape)))
        result[np.broadcast_to(wrong, result.shape)] = chosen(result.itemsize * 8)
        return result


class Noting(Protocol):
    """A run that notes undefined results."""

    undefined: Undefined


_DIVISIONS: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "arith.divsi": arithmetic.divide,
    "arith.remsi": np.fmod,
    "arith.divui": arithmetic.unsigned_divide,
    "arith.remui": arithmetic.unsigned_remainder,
}
_SHIFTS: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "arith.shli": arithmetic.shift_left,
    "arith.shrsi": np.right_shift,
    "arith.shrui": arithmetic.shift_right_logical,
}


def checked_division(run: Noting, site: int, lanes: Array, name: str, left: Array, right: Array) -> Array:
    """Return quotients or remainders, and note those that are undefined."""
    result = _DIVISIONS[name](left, right)
    if not right.size or int(right.min()) > 0:
        return result
    wrong = right == 0
    words = "divides by 0"
    if not wrong.any() and name == "arith.divsi":
        wrong = (right == -1) & (left == np.iinfo(left.dtype).min)
        words = "divides the smallest integer by -1"
    return run.undefined.replaced(site, lanes, wrong, result, words) if wrong.any() else result


def checked_shift(run: Noting, site: int, lanes: Array, name: str, left: Array, count: Array) -> Array:
    """Return shifted integers, and note those that are undefined."""
    result = _SHIFTS[name](left, count)
    width = left.itemsize * 8
    wrong = (count < 0) | (count >= width)
    if not wrong.any():
        return result
    return run.undefined.replaced(site, lanes, wrong, result, f"shifts by {int(count[wrong][0])} of {width} bits")
