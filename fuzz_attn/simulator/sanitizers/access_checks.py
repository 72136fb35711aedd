"""Access checks: bounds, uninitialised elements, and races with other programs.

They know a tensor argument as a buffer, whose layout says which offsets from its first element are elements of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fuzz_attn.simulator.findings import FindingKind, Reporter
from fuzz_attn.simulator.sanitizers.races import RaceTracker

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


Array = npt.NDArray[Any]


class Buffer:
    """The elements of one tensor argument, `flat`, counted from the tensor's first element, and what is watched.

    `layout` holds the offsets that are elements of the tensor. `written` is its shadow of initialised elements, and
    `tracker` records accesses to its storage, in which the tensor begins at the element `shift`; a launch sets each
    of them only where it needs the check. Buffers with the same `storage`, an address and the size of an element, may
    share elements.
    """

    def __init__(self, name: str, flat: Array, layout: Layout) -> None:
        self.name = name
        self.flat = flat
        self.layout = layout
        self.extent = layout.extent
        self.written: Array | None = None
        self.tracker: RaceTracker | None = None
        self.shift = 0
        self.storage: tuple[int, int] | None = None


def discard_outside(
    buffer: Buffer, run: Reporter, kind: FindingKind, site: int, lanes: Array, offsets: Array, mask: Array | None
) -> tuple[Array, Array]:
    """Report active offsets outside of the tensor; return offsets, 0 in place of these, and the mask without them."""
    outside = ~buffer.layout.inside(offsets)
    if mask is not None:
        outside &= mask
    if outside.any():
        position = _first(outside)
        index = int(offsets[position])
        verb = "loads" if kind is FindingKind.OUT_OF_BOUNDS_LOAD else "stores to"
        reason = "which its strides do not reach" if 0 <= index < buffer.extent else f"which has {buffer.extent}"
        message = f"{verb} element {index} of {buffer.name}, {reason}"
        bounds = (0, buffer.extent)
        run.report(kind, site, lanes, position[0], buffer.name, index, bounds, message, int(outside.sum()))
    return np.where(outside, 0, offsets), ~outside if mask is None else mask & ~outside


def check_written(buffer: Buffer, run: Reporter, site: int, lanes: Array, positions: Array, mask: Array | None) -> None:
    """Report loads of elements that nothing has written."""
    if buffer.written is None:
        return
    bad = ~buffer.written[positions]
    if mask is not None:
        bad &= mask
    if bad.any():
        position = _first(bad)
        index = int(positions[position])
        message = f"loads element {index} of {buffer.name}, which nothing has written"
        kind, bounds = FindingKind.UNINITIALISED_READ, (0, buffer.extent)
        run.report(kind, site, lanes, position[0], buffer.name, index, bounds, message, int(bad.sum()))


def track_load(buffer: Buffer, run: Reporter, site: int, lanes: Array, positions: Array, mask: Array | None) -> None:
    """Report loads of elements that another program of the launch has stored to."""
    if buffer.tracker is None:
        return
    shape = np.broadcast_shapes(positions.shape, (lanes.size,) + (1,) * (positions.ndim - 1))
    chosen = None if mask is None else np.broadcast_to(mask, shape)
    everywhere = np.broadcast_to(positions, shape)
    flat = everywhere.reshape(-1) if chosen is None else everywhere[chosen]
    programs = programs_of(lanes, shape, chosen)()
    clash = buffer.tracker.load(flat + buffer.shift, programs)
    if clash.any():
        first = int(clash.argmax())
        _report_race(buffer, run, site, int(programs[first]), int(flat[first]), int(clash.sum()), "loads")


def inspect_rows(
    buffer: Buffer,
    run: Reporter,
    site: int,
    lanes: Array,
    starts: Array,
    positions: Array,
    width: int,
    mask: Array | None,
) -> None:
    """Do both checks of a load for rows of `width` elements; `positions` are the starts where `mask` holds."""
    grid = np.zeros(starts.shape, np.int64)
    if mask is None:
        grid[...] = positions.reshape(starts.shape)
    else:
        grid[mask] = positions
    columns = grid[..., None] + np.arange(width)
    wanted = None if mask is None else np.broadcast_to(mask[..., None], columns.shape)
    check_written(buffer, run, site, lanes, columns, wanted)
    track_load(buffer, run, site, lanes, columns, wanted)


def store_tracked(buffer: Buffer, run: Reporter, site: int, positions: Array, programs: Array, values: Array) -> None:
    """Store `values`, and report those that change what another program, or another element of the tile, stores.

    Of the elements of one tile that go to one place, any may be stored last on a GPU. Equal bits do no harm.
    """
    assert buffer.tracker is not None
    earlier, together = buffer.tracker.store(positions + buffer.shift, programs)
    before = buffer.flat[positions] if earlier.any() else None
    buffer.flat[positions] = values
    if before is None and positions.size == 1:
        return
    lost = _differ(buffer.flat[positions], values)
    if before is None and not lost.any():
        return
    own = lost & ~together
    if own.any():
        _report_conflict(buffer, run, site, programs, positions, own)
    # Storing a value over itself, or the same value by two programs at once, has no effect.
    harmful = lost & together
    if before is not None:
        harmful |= earlier & _differ(before, values)
    if harmful.any():
        first = int(harmful.argmax())
        _report_race(buffer, run, site, int(programs[first]), int(positions[first]), int(harmful.sum()), "stores to")


def programs_of(lanes: Array, shape: tuple[int, ...], mask: Array | None) -> Callable[[], Array]:
    """Return a function that returns the program of each element of `shape` where `mask` holds, flat."""

    def programs() -> Array:
        everywhere = np.broadcast_to(lanes.reshape((-1,) + (1,) * (len(shape) - 1)), shape)
        return everywhere.reshape(-1) if mask is None else everywhere[mask]

    return programs


def _report_race(buffer: Buffer, run: Reporter, site: int, program: int, index: int, count: int, verb: str) -> None:
    message = f"{verb} element {index} of {buffer.name}, which another program of the launch uses too"
    bounds = (0, buffer.extent)
    run.report(FindingKind.RACE, site, np.array([program]), 0, buffer.name, index, bounds, message, count)


def _report_conflict(buffer: Buffer, run: Reporter, site: int, programs: Array, positions: Array, lost: Array) -> None:
    first = int(lost.argmax())
    index, bounds = int(positions[first]), (0, buffer.extent)
    message = f"two elements of one tile store different bits to element {index} of {buffer.name}"
    kind = FindingKind.CONFLICTING_STORE
    run.report(kind, site, programs, first, buffer.name, index, bounds, message, int(lost.sum()))


def _first(mask: Array) -> tuple[int, ...]:
    return tuple(int(axis) for axis in np.unravel_index(int(mask.argmax()), mask.shape))


def _differ(left: Array, right: Array) -> Array:
    """Return where two arrays of one type differ in any bit."""
    bits = np.dtype(f"u{left.itemsize}")
    different: Array = left.view(bits) != np.ascontiguousarray(right).view(bits)
    return different
