"""Which offsets from a tensor's first element are elements of that tensor: its view, not its allocation."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from fuzz_attn.simulator.runtime.columns import Columns

Offsets = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


_NO_REST = np.zeros(1, np.int64)


class Layout:
    """The set of offsets that a shape and its strides reach.

    Adjacent dimensions are merged, so that a dense tensor is one run of `extent` elements and a row of a
    strided one is checked against its longest contiguous run.
    """

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.empty = 0 in shape
        pairs = [(stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1 and stride > 0]
        self._levels = _merge(sorted(pairs, reverse=True))
        self.extent = 0 if self.empty else 1 + sum(stride * (size - 1) for stride, size in self._levels)
        inner = self._levels[-1] if self._levels else (1, 1)
        self.dense = not self._levels or (len(self._levels) == 1 and inner[0] == 1)
        self._run = inner[1] if inner[0] == 1 else 1
        self._outer = self._levels[:-1] if inner[0] == 1 else self._levels
        self._own = None if self._nested() else self._membership(shape, strides)

    def _nested(self) -> bool:
        """Whether each stride steps over all that the smaller ones reach, so that division finds an element's index."""
        reach = 1
        for stride, size in reversed(self._levels):
            if stride < reach:
                return False
            reach += stride * (size - 1)
        return True

    def _membership(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> Mask:
        own = np.zeros(self.extent, np.bool_)
        np.lib.stride_tricks.as_strided(own, shape, strides)[...] = True
        return own

    def inside(self, starts: Offsets, width: int = 1) -> Mask:
        """For each start whether the `width` offsets from there on are all elements of the tensor."""
        valid: Mask = (starts >= 0) & (starts <= self.extent - width)
        if self.dense:
            return valid
        if self._own is not None:
            return valid & self._members(np.where(valid, starts, 0), width)
        rest = np.where(valid, starts, 0)
        for stride, size in self._outer:
            index = rest // stride
            valid &= index < size
            rest = rest - index * stride
        return valid & (rest + width <= self._run)

    def reached(self, starts: Offsets, columns: Columns, count: int, run: int) -> bool:
        """Whether rows from these starts on certainly lie inside with `count` runs of columns.

        It is told from the indices of starts and of columns along each dimension, whose sums must stay below its size.
        """
        if self.empty or int(starts.item(starts.argmin())) < 0:
            return False
        indices = _highest(tuple(self._levels), columns, count, run)
        if indices is None:
            return False
        rest = starts
        for (stride, size), highest in zip(self._levels, indices, strict=True):
            index = rest // stride if stride > 1 else rest
            if int(index.item(index.argmax())) + highest >= size:
                return False
            rest = rest - index * stride if stride > 1 else _NO_REST
        return not rest.any()

    def _members(self, starts: Offsets, width: int) -> Mask:
        assert self._own is not None
        result: Mask = self._own[starts[..., None] + np.arange(width)].all(axis=-1)
        return result


@functools.lru_cache(maxsize=4096)
def _highest(levels: tuple[tuple[int, int], ...], columns: Columns, count: int, run: int) -> tuple[int, ...] | None:
    """Return the highest index of the columns along each dimension, or None where some lie between elements."""
    rest = columns.offsets(count, run)
    highest = []
    for stride, _ in levels:
        index = rest // stride
        highest.append(int(index.max()))
        rest = rest - index * stride
    return None if rest.any() else tuple(highest)


def _merge(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(stride, size) from the widest to the narrowest, with neighbours that form one run merged."""
    merged: list[tuple[int, int]] = []
    for stride, size in pairs:
        if merged and merged[-1][0] == stride * size:
            merged[-1] = (stride, merged[-1][1] * size)
        else:
            merged.append((stride, size))
    return merged
