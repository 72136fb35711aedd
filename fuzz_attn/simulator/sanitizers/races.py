"""Races between the programs of one launch: which of them wrote and read each element of a storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_NONE = -1
_SEVERAL = -2
# Groups of rows that are compared with each other; a kernel that stores more often gets the maps.
_MOST_GROUPS = 32


class RaceTracker:
    """Writers and readers of the elements of one storage during one launch.

    A launch usually stores to a buffer a few times, in rows that do not overlap. The sorted starts of the rows show
    this, so only they are kept. The first access for which they are not enough builds maps of writers and readers from
    them. Atomics are ordered by the hardware and are not tracked.

    Elements are numbered as in the storage. With a ``stride`` only the first ``width`` elements from each of its
    multiples on are accessed, and the maps hold no others: a storage may span far more addresses than memory.
    """

    def __init__(self, size: int, stride: int = 0, width: int = 0) -> None:
        self._stride, self._width = stride, width
        self._size = -(-size // stride) * width if stride else size
        self._rows: list[tuple[Array, int, Callable[[], Array]]] = []
        self._writer: Array | None = None
        self._reader: Array | None = None

    def store_rows(self, starts: Array, width: int, programs: Callable[[], Array]) -> bool:
        """Return whether rows of `width` elements overlap no other access of this launch; if so, record them.

        False also means that it is not known. `programs` returns the program that stores each row, if it is needed.
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
            self._writer = np.full(self._size, _NONE, np.int32)
            for starts, width, programs in self._rows:
                self._writer[self._places(starts[:, None] + np.arange(width))] = programs()[:, None]
        return self._writer

    def _places(self, offsets: Array) -> Array:
        """Return where the maps hold the elements at these offsets."""
        return offsets // self._stride * self._width + offsets % self._stride if self._stride else offsets

    def store(self, offsets: Array, programs: Array) -> tuple[Array, Array]:
        """Return which stores meet an earlier access by another program, and which a store of the same operation."""
        writer, offsets = self._writers(), self._places(offsets)
        before = writer[offsets]
        earlier = (before != _NONE) & (before != programs)
        writer[offsets] = programs
        together = writer[offsets] != programs
        if self._reader is not None:
            seen = self._reader[offsets]
            earlier |= (seen != _NONE) & (seen != programs)
        return earlier, together

    def load(self, offsets: Array, programs: Array) -> Array:
        """Return which loads read an element that another program wrote before."""
        if self._reader is None:
            self._reader = np.full(self._size, _NONE, np.int32)
        offsets = self._places(offsets)
        seen = self._reader[offsets]
        self._reader[offsets] = np.where((seen == _NONE) | (seen == programs), programs, _SEVERAL)
        shared = self._reader[offsets]
        self._reader[offsets] = np.where((shared != programs) & (shared >= 0), _SEVERAL, shared)
        before = self._writers()[offsets]
        clash: Array = (before != _NONE) & (before != programs)
        return clash
