"""Layout: which offsets from a tensor's first element are elements of the tensor, not only of its allocation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Layout:
    """The set of offsets that a shape and its strides reach.

    Adjacent dimensions are merged: a dense tensor becomes one run of `extent` elements, and a row of a strided tensor
    is checked against the longest contiguous run.
    """

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.empty = 0 in shape
        pairs = [(stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1 and stride > 0]
        self.levels = _merge(sorted(pairs, reverse=True))
        self.extent = 0 if self.empty else 1 + sum(stride * (size - 1) for stride, size in self.levels)
        inner = self.levels[-1] if self.levels else (1, 1)
        self.dense = not self.levels or (len(self.levels) == 1 and inner[0] == 1)
        self._run = inner[1] if inner[0] == 1 else 1
        self._outer = self.levels[:-1] if inner[0] == 1 else self.levels
        self._own = None if self._nested() else self._membership(shape, strides)

    def _nested(self) -> bool:
        """Return whether each stride exceeds all that the smaller ones reach, so that division finds an index."""
        reach = 1
        for stride, size in reversed(self.levels):
            if stride < reach:
                return False
            reach += stride * (size - 1)
        return True

    def _membership(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> Mask:
        own = np.zeros(self.extent, np.bool_)
        np.lib.stride_tricks.as_strided(own, shape, strides)[...] = True
        return own

    def inside(self, starts: Offsets, width: int = 1) -> Mask:
        """Return for each start whether all of the `width` offsets from there on are elements of the tensor."""
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

    def _members(self, starts: Offsets, width: int) -> Mask:
        assert self._own is not None
        result: Mask = self._own[starts[..., None] + np.arange(width)].all(axis=-1)
        return result


def _merge(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return pairs of stride and size, from the largest stride down, with those that form one run merged."""
    merged: list[tuple[int, int]] = []
    for stride, size in pairs:
        if merged and merged[-1][0] == stride * size:
            merged[-1] = (stride, merged[-1][1] * size)
        else:
            merged.append((stride, size))
    return merged
