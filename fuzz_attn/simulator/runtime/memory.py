"""Memory: loads and stores of a tensor argument at offsets from its first element, each access checked."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from fuzz_attn.simulator.findings import FindingKind, Reporter
from fuzz_attn.simulator.runtime.columns import Columns
from fuzz_attn.simulator.runtime.float_formats import CONTAINER, from_bits, narrowed, to_storage
from fuzz_attn.simulator.runtime.select import select
from fuzz_attn.simulator.sanitizers.accesses import (
    check_written,
    discard_outside,
    inspect_rows,
    programs_of,
    store_tracked,
    track_load,
)
from fuzz_attn.simulator.sanitizers.buffer import Buffer
from fuzz_attn.simulator.sanitizers.layout import Layout

Array = npt.NDArray[Any]


# A mask with less than one true element in four is followed element by element, and so is any small mask.
_SPARSE = 4
_SMALL = 2048

_UNSIGNED = np.dtype(np.uint64)


@functools.lru_cache(maxsize=4096)
def _row_type(size: int) -> np.dtype[Any]:
    """Return the type of a row of so many bytes."""
    return np.dtype(f"V{size}")


def _is_blank(other: Any) -> bool:
    """Return whether a tile of `other` (a number, an array or None) has only zero bits; a -0.0 has not."""
    return other is None or (not isinstance(other, np.ndarray) and other == 0 and math.copysign(1.0, other) > 0)


def spread_alike(offsets: Array, mask: Array) -> tuple[Array, Array]:
    """Return both arrays, broadcast to their common shape."""
    shape = np.broadcast_shapes(offsets.shape, mask.shape)
    if offsets.shape != shape:
        offsets = np.broadcast_to(offsets, shape)
    return offsets, mask if mask.shape == shape else np.broadcast_to(mask, shape)


def _chosen(starts: Array, mask: Array | None) -> tuple[Array, Array | None, Array, Array | None]:
    """Return starts and mask of rows in one shape, the starts where the mask holds, and their indices.

    Where the mask holds everywhere, it is None, and so are the indices.
    """
    if mask is None:
        return starts, None, starts.ravel(), None
    if mask.shape != starts.shape:
        starts, mask = spread_alike(starts, mask)
    chosen = mask.ravel().nonzero()[0]
    if chosen.size == mask.size:
        return starts, None, starts.ravel(), None
    return starts, mask, starts.ravel()[chosen], chosen


def address_of(memory: Memory) -> Array:
    """Return the address of a tensor's first element."""
    return np.array([memory.address], np.int64)


class Memory(Buffer):
    """A tensor argument as a running kernel accesses it, in the number format `element`.

    Every access takes the run to report to, the number of its source line, the programs that run (`lanes`), and where
    it goes: arrays whose axis 0 counts these programs, or has size 1 for all of them. `address` is that of the tensor's
    first element.
    """

    def __init__(self, name: str, flat: Array, element: str, layout: Layout) -> None:
        super().__init__(name, flat, layout)
        self.element = element
        self.container = CONTAINER[element]
        self.address = 0
        self._windows: dict[object, Array] = {}

    def load(self, run: Reporter, site: int, lanes: Array, offsets: Array, mask: Array | None, other: Any) -> Array:
        """Return the elements at `offsets` where `mask` holds, `other` (0 when None) elsewhere."""
        if mask is not None:
            if mask.shape != offsets.shape:
                offsets, mask = spread_alike(offsets, mask)
            active = int(np.count_nonzero(mask))
            if active == mask.size:
                mask = None
            elif (active * _SPARSE < mask.size or mask.size <= _SMALL) and self.written is None is self.tracker:
                return self._load_chosen(run, site, lanes, offsets, mask, other)
            else:
                offsets = np.where(mask, offsets, 0)
        if not self._valid(offsets, 1):
            kind = FindingKind.OUT_OF_BOUNDS_LOAD
            offsets, mask = discard_outside(self, run, kind, site, lanes, offsets, mask)
        if self.layout.empty:
            return np.full(offsets.shape, 0 if other is None else other, self.container)
        if self.written is not None:
            check_written(self, run, site, lanes, offsets, mask)
        if self.tracker is not None:
            track_load(self, run, site, lanes, offsets, mask)
        values = from_bits(self.flat.take(offsets), self.element)
        return values if mask is None else select(mask, values, 0 if other is None else other, self.container)

    def _load_chosen(self, run: Reporter, site: int, lanes: Array, offsets: Array, mask: Array, other: Any) -> Array:
        """Load as `load` does, for a mask that holds for few elements: only these are read and checked."""
        chosen = mask.ravel().nonzero()[0]
        active = offsets.ravel()[chosen]
        if not self._valid(active, 1):
            offsets, mask = discard_outside(self, run, FindingKind.OUT_OF_BOUNDS_LOAD, site, lanes, offsets, mask)
            chosen = mask.ravel().nonzero()[0]
            active = offsets.ravel()[chosen]
        result = np.zeros(mask.shape, self.container)
        if not _is_blank(other):
            result[...] = other
        if active.size:
            result.reshape(-1)[chosen] = from_bits(self.flat[active], self.element)
        return result

    def load_rows(
        self,
        run: Reporter,
        site: int,
        lanes: Array,
        starts: Array,
        width: int,
        size: int,
        mask: Array | None,
        other: Any,
    ) -> Array:
        """Return rows of `size` elements, of which the first `width` are read from `starts` on where `mask` holds."""
        starts, mask, active, chosen = _chosen(starts, mask)
        if not self._valid(active, width):
            columns = starts[..., None] + np.arange(size)
            wanted = np.broadcast_to(np.arange(size) < width, columns.shape)
            return self.load(run, site, lanes, columns, wanted if mask is None else wanted & mask[..., None], other)
        if self.written is not None or self.tracker is not None:
            inspect_rows(self, run, site, lanes, starts, active, width, mask)
        if chosen is None and width == size and active.size:
            bits = self._rows(width)[active].view(self.flat.dtype)
        else:
            bits = self._blank(starts.size, size, other)
            if width and active.size:
                type_ = _row_type(width * self.flat.itemsize)
                places = np.ndarray((starts.size,), type_, bits, strides=(size * self.flat.itemsize,))
                places[... if chosen is None else chosen] = self._rows(width)[active]
        return from_bits(bits.reshape((*starts.shape, size)), self.element)

    def load_columns(
        self, starts: Array, columns: Columns | None, width: int, size: int, mask: Array | None, other: Any
    ) -> Array | None:
        """Return as `load_rows` does rows whose columns lie apart, or None if each element must be checked.

        That is so where a row might leave the tensor, and where the sanitizers track single elements.
        """
        runs = None if columns is None or self.written is not None or self.tracker is not None else columns.runs(width)
        if columns is None or runs is None:
            return None
        starts, mask, active, chosen = _chosen(starts, mask)
        if width and active.size and not columns.inside(self.layout, active, *runs):
            return None
        (count, run), step = runs, self.flat.itemsize
        if chosen is None and width == size and active.size:
            bits = self._columns(columns, count, run)[active].view(self.flat.dtype)
        else:
            bits = self._blank(starts.size, size, other)
            if width and active.size:
                type_ = _row_type(run * step)
                places = np.ndarray((starts.size, count), type_, bits, strides=(size * step, run * step))
                places[... if chosen is None else chosen] = self._columns(columns, count, run)[active]
        return from_bits(bits.reshape((*starts.shape, size)), self.element)

    def _blank(self, count: int, size: int, other: Any) -> Array:
        """Return the bits of `count` rows of `size` elements that are all `other`."""
        bits = np.zeros(count * size, self.flat.dtype)
        if not _is_blank(other):
            bits[...] = to_storage(np.array([other], self.container), self.element)
        return bits

    def store(
        self,
        run: Reporter,
        site: int,
        lanes: Array,
        offsets: Array,
        values: Any,
        mask: Array | None,
        wide: bool = False,
    ) -> None:
        """Write `values` at `offsets` where `mask` holds; if `wide`, they are rounded to the element type first."""
        per_lane = (lanes.size,) + (1,) * (offsets.ndim - 1)
        shape = np.broadcast_shapes(offsets.shape, np.shape(values), () if mask is None else mask.shape, per_lane)
        offsets = np.broadcast_to(offsets, shape)
        values = np.broadcast_to(np.asarray(values, self.container), shape)
        if mask is not None:
            mask = None if np.count_nonzero(mask) == mask.size else np.broadcast_to(mask, shape)
        active = offsets.reshape(-1) if mask is None else offsets[mask]
        if not self._valid(active, 1):
            kind = FindingKind.OUT_OF_BOUNDS_STORE
            _, mask = discard_outside(self, run, kind, site, lanes, offsets, mask)
            active = offsets[mask]
        if not active.size:
            return
        chosen = values.reshape(-1) if mask is None else values[mask]
        stored = (narrowed if wide else to_storage)(np.ascontiguousarray(chosen), self.element)
        if self.tracker is None:
            self.flat[active] = stored
        else:
            store_tracked(self, run, site, active, programs_of(lanes, shape, mask)(), stored)
        if self.written is not None:
            self.written[active] = True

    def store_rows(
        self,
        run: Reporter,
        site: int,
        lanes: Array,
        starts: Array,
        width: int,
        values: Array,
        mask: Array | None,
        wide: bool = False,
    ) -> None:
        """Write the first `width` elements of each row of `values` from `starts` on where `mask` holds, as `store`."""
        shape = values.shape[:-1]
        if not (shape == starts.shape and (mask is None or mask.shape == shape) and shape[0] == lanes.size):
            per_lane = (lanes.size,) + (1,) * (starts.ndim - 1)
            shape = np.broadcast_shapes(shape, starts.shape, () if mask is None else mask.shape, per_lane)
            starts = np.broadcast_to(starts, shape)
            mask = None if mask is None else np.broadcast_to(mask, shape)
            values = np.broadcast_to(values, (*shape, values.shape[-1]))
        active, chosen = starts.ravel(), None
        if mask is not None:
            chosen = mask.ravel().nonzero()[0]
            if chosen.size == mask.size:
                mask = chosen = None
            else:
                active = active[chosen]
        if not active.size or not width:
            return
        if not (self._valid(active, width) and self._apart(active, width, lanes, shape, mask)):
            columns = starts[..., None] + np.arange(width)
            wanted = None if mask is None else mask[..., None]
            self.store(run, site, lanes, columns, values[..., :width], wanted, wide)
            return
        rows = values.reshape(-1, values.shape[-1])
        if chosen is not None:
            rows = rows.take(chosen, axis=0)
        bits = narrowed(rows[:, :width], self.element) if wide else to_storage(rows, self.element)[:, :width]
        bits = np.ascontiguousarray(bits)
        self._rows(width)[active] = bits.view(_row_type(width * bits.itemsize)).ravel()
        if self.written is not None:
            self.written[active[:, None] + np.arange(width)] = True

    def _apart(self, active: Array, width: int, lanes: Array, shape: tuple[int, ...], mask: Array | None) -> bool:
        """Return whether rows certainly race with no other access."""
        if self.tracker is None:
            return True
        return self.tracker.store_rows(active + self.shift, width, programs_of(lanes, shape, mask))

    def _rows(self, width: int) -> Array:
        """Return all runs of `width` elements of `flat`, each as one item, which numpy copies twice as fast as rows."""
        rows = self._windows.get(width)
        if rows is None:
            step = self.flat.itemsize
            shape = (self.flat.size - width + 1,)
            rows = self._windows[width] = np.ndarray(shape, _row_type(width * step), self.flat, strides=(step,))
        return rows

    def _columns(self, columns: Columns, count: int, run: int) -> Array:
        """Return for each index of `flat` the `count` runs of columns from there on, each run as one item."""
        key = (columns, count, run)
        places = self._windows.get(key)
        if places is None:
            step = self.flat.itemsize
            last = columns.first + (count - 1) * columns.step + run
            shape = (self.flat.size - last + 1, count)
            strides = (step, columns.step * step)
            places = np.ndarray(shape, _row_type(run * step), self.flat, columns.first * step, strides)
            self._windows[key] = places
        return places

    def _valid(self, offsets: Array, width: int) -> bool:
        if not offsets.size:
            return True
        if self.layout.dense:
            # As unsigned numbers, negative offsets are too large as well: one search checks both ends.
            return 0 <= int(offsets.item(offsets.view(_UNSIGNED).argmax())) <= self.extent - width
        return int(np.count_nonzero(self.layout.inside(offsets, width))) == offsets.size
