"""Mask coverage: whether each mask of a kernel was all true, all false and mixed in some program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fuzz_attn.ttir.ir import Location

Array = npt.NDArray[Any]

ALL_TRUE, ALL_FALSE, MIXED, SEVERAL = 1, 2, 4, 8
"""Outcomes of a mask, and SEVERAL if it has several elements: a single element is never mixed."""
COMPLETE_SINGLE = ALL_TRUE | ALL_FALSE
COMPLETE = COMPLETE_SINGLE | MIXED


def cover(seen: list[int], slot: int, *factors: Array) -> None:
    """Add the outcomes of a mask, one for each program (row), to its slot; skip work for outcomes already seen.

    The mask is the conjunction of factors that do not share an axis: it is all true where each factor is, and partly
    true where each factor is at least partly true.
    """
    bits, partial, false_rows, true_rows = seen[slot], [], False, True
    for factor in factors:
        count, size = int(np.count_nonzero(factor)), factor.size
        if not count:
            seen[slot] = bits | ALL_FALSE if size else bits
            return
        if count != size:
            partial.append(factor)
            width = size // factor.shape[0]
            false_rows |= size - count >= width
            true_rows &= count >= width
    if not partial:
        seen[slot] = bits | ALL_TRUE
        return
    # Many masks lack one outcome for a whole campaign. In half of their uses the counts tell that it is not here.
    lacking = ~bits & COMPLETE
    if (lacking == ALL_FALSE and not false_rows) or (lacking == ALL_TRUE and not true_rows):
        return
    varying = [factor for factor in partial if factor.shape[0] > 1]
    always_mixed = len(varying) < len(partial)  # by a factor that is the same for all programs
    if not varying:
        seen[slot] = bits | MIXED
        return
    lacks_mixed = not bits & MIXED
    every = some = None
    if not always_mixed and (lacks_mixed or not bits & ALL_TRUE):
        every = _rows(np.logical_and, varying)
        bits |= ALL_TRUE if np.count_nonzero(every) else 0
    if lacks_mixed or not bits & ALL_FALSE:
        some = _rows(np.logical_or, varying)
        bits |= 0 if np.count_nonzero(some) == some.size else ALL_FALSE
    if lacks_mixed and some is not None and (some if every is None else some != every).any():
        bits |= MIXED
    seen[slot] = bits


def _rows(reduction: np.ufunc, factors: list[Array]) -> Array:
    """Return for each row whether the reduction holds in each factor."""
    result: Array = reduction.reduce(factors[0].reshape(factors[0].shape[0], -1), axis=1)
    for factor in factors[1:]:
        result = result & reduction.reduce(factor.reshape(factor.shape[0], -1), axis=1)
    return result


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """A mask or condition of a kernel: `kind` is load, store, select, branch, while or an atomic.

    `ordinal` distinguishes masks of the same kind and line by their order in the compiled kernel. A condition that is
    decided at compile time is not a mask of that compilation.
    """

    kernel: str
    file: str
    line: int
    kind: str
    ordinal: int = 0


class Masks:
    """The masks of all kernels that were run with coverage, with their outcomes in all compilations of the kernel.

    `seen` holds the bits of each mask: ALL_TRUE, ALL_FALSE, MIXED, and SEVERAL if it can be mixed. Generated code does
    not evaluate a complete mask again.
    """

    def __init__(self) -> None:
        self.seen: list[int] = []
        self._slots: dict[Site, int] = {}

    def slots(self, kernel: str, sites: Iterable[tuple[str, Location, bool]]) -> list[int]:
        """Return the indices in `seen` of the masks of one compiled kernel."""
        ordinals: dict[tuple[str, int, str], int] = {}
        slots = []
        for kind, location, several in sites:
            key = (location.file, location.line, kind)
            ordinal = ordinals[key] = ordinals.get(key, -1) + 1
            slot = self._slots.setdefault(Site(kernel, location.file, location.line, kind, ordinal), len(self.seen))
            if slot == len(self.seen):
                self.seen.append(0)
            self.seen[slot] |= SEVERAL * several
            slots.append(slot)
        return slots

    def items(self) -> Iterator[tuple[Site, int]]:
        """Yield each mask with its bits, in the order of `seen`."""
        return zip(self._slots, self.seen, strict=True)
