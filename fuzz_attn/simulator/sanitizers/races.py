"""Races between the programs of one launch: who wrote and who read each element of what it stores to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_NOBODY = -1
_SEVERAL = -2
# So many groups of rows are compared with each other; a kernel that stores more often gets the maps.
_MOST_GROUPS = 32


class RaceTracker:
    """Writers and readers of the elements of one storage during one launch.

    A launch usually stores to a buffer a few times, in rows that do not overlap: that is told from the sorted
    starts of the rows, which are only remembered. The first access that this does not settle builds the maps of
    writers and readers from what was remembered. Atomics are ordered by the hardware and take no part.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._rows: list[tuple[Array, int, Callable[[], Array]]] = []
        self._writer: Array | None = None
        self._reader: Array | None = None

    def store_rows(self, starts: Array, width: int, programs: Callable[[], Array]) -> bool:
        """Whether rows of `width` elements certainly meet no other row or access of this launch; if so, they are noted.

        `programs` says which program stores each row, if that is ever asked.
        """
        if self._writer is not None or self._reader is not None or len(self._rows) >= _MOST_GROUPS:
            return False
        groups = [*self._rows, (starts, width, programs)]
        if not self._rows or len({group[1] for group in groups}) == 1:
            ordered = np.concatenate([group[0] for group in groups]) if self._rows else starts.copy()
            ordered.sort()
            gaps = ordered[1:] - ordered[:-1]
            apart = not gaps.size or int(gaps[gaps.argmin()]) >= width
        else:
            firsts = np.concatenate([group[0] for group in groups])
            ends = np.concatenate([group[0] + group[1] for group in groups])
            order = np.argsort(firsts)
            apart = bool((firsts[order][1:] >= ends[order][:-1]).all())
        if apart:
            self._rows = groups
        return apart

    def _writers(self) -> Array:
        if self._writer is None:
            self._writer = np.full(self._size, _NOBODY, np.int32)
            for starts, width, programs in self._rows:
                self._writer[starts[:, None] + np.arange(width)] = programs()[:, None]
        return self._writer

    def store(self, offsets: Array, programs: Array) -> tuple[Array, Array]:
        """Return which stores meet an earlier access of another program, and which one of the same operation."""
        writer = self._writers()
        before = writer[offsets]
        earlier = (before != _NOBODY) & (before != programs)
        writer[offsets] = programs
        together = writer[offsets] != programs
        if self._reader is not None:
            seen = self._reader[offsets]
            earlier |= (seen != _NOBODY) & (seen != programs)
        return earlier, together

    def load(self, offsets: Array, programs: Array) -> Array:
        """Which of the loads meet an element that another program wrote before."""
        if self._reader is None:
            self._reader = np.full(self._size, _NOBODY, np.int32)
        seen = self._reader[offsets]
        self._reader[offsets] = np.where((seen == _NOBODY) | (seen == programs), programs, _SEVERAL)
        shared = self._reader[offsets]
        self._reader[offsets] = np.where((shared != programs) & (shared >= 0), _SEVERAL, shared)
        before = self._writers()[offsets]
        clash: Array = (before != _NOBODY) & (before != programs)
        return clash
