"""Memory: loads, stores and atomic operations at offsets from the first element of a tensor, each access checked.

Atomics happen in the order of the programs' numbers and of the elements within a tile. Columns of a tile whose places
relative to their row are the same in each row are evenly spaced runs of neighbours. A layout that splits a dimension in
two makes them. Loading runs instead of single elements saves 10% to 13% of a whole case of context attention over such
a layout, and nothing in paged decoding.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fuzz_attn.simulator.access_checks import (
    Buffer,
    FindingKind,
    Layout,
    Reporter,
    check_written,
    discard_outside,
    inspect_rows,
    programs_of,
    store_tracked,
    track_load,
)
from fuzz_attn.simulator.runtime.float_formats import CONTAINER, bitcast, from_bits, narrowed, round_to, to_storage

Array = npt.NDArray[Any]

# numpy's `where` branches on every element. From this size on, copying the long runs of a mask is faster.
_LARGE = 16384


def select(mask: Array, left: Any, right: Any, dtype: np.dtype[Any]) -> Array:
    """Return `left` where `mask` holds and `right` elsewhere, both arrays or numbers, as an array of `dtype`."""
    if mask.size >= _LARGE:
        result: Array = np.empty(np.broadcast(mask, left, right).shape, dtype)
        result[...] = right
        np.copyto(result, left, where=mask)
        return result
    result = np.where(mask, left, right)
    return result if result.dtype == dtype else result.astype(dtype)


_NO_REST = np.zeros(1, np.int64)


@dataclass(frozen=True, slots=True)
class Columns:
    """Column `c` of a row lies `first + c // run * step + c % run` elements after the row's start.

    `step` is positive and `first` is not negative. A dimension that is split in two, as in
    `dim // 8 * stride + dim % 8`, has this form, and so has one with a stride.
    """

    first: int
    run: int
    step: int

    def runs(self, width: int) -> tuple[int, int] | None:
        """Return the number of runs in the first `width` columns and their length, or None if one is cut."""
        if width <= self.run:
            return 1, width
        return None if width % self.run else (width // self.run, self.run)

    def offsets(self, count: int, run: int) -> Array:
        """Return where the elements of the first `count` runs of this length lie."""
        places: Array = self.first + np.arange(count)[:, None] * self.step + np.arange(run)
        return places.ravel()

    def inside(self, layout: Layout, starts: Array, count: int, run: int) -> bool:
        """Return whether rows with these starts certainly lie inside of the layout with `count` runs of columns.

        Along each dimension the index of a start and that of a column must add up to less than the size.
        """
        if layout.empty or int(starts.item(starts.argmin())) < 0:
            return False
        indices = _highest(tuple(layout.levels), self, count, run)
        if indices is None:
            return False
        rest = starts
        for (stride, size), highest in zip(layout.levels, indices, strict=True):
            index = rest // stride if stride > 1 else rest
            if int(index.item(index.argmax())) + highest >= size:
                return False
            rest = rest - index * stride if stride > 1 else _NO_REST
        return not np.count_nonzero(rest)


def columns_of(offsets: Array, size: int) -> Columns | None:
    """Return the columns that `size` offsets are, the same for all programs, or None if they have another form."""
    return _columns(offsets.dtype.str, offsets.tobytes()) if offsets.size == size else None


@functools.lru_cache(maxsize=1024)
def _columns(dtype: str, offsets: bytes) -> Columns | None:
    flat = np.frombuffer(offsets, dtype)
    size = flat.size
    apart = (flat[1:] - flat[:-1] != 1).nonzero()[0]
    run = int(apart[0]) + 1 if apart.size else size
    first = int(flat[0])
    step = int(flat[run]) - first if run < size else run
    columns = Columns(first, run, step)
    regular = step > 0 <= first and not size % run and np.array_equal(flat, columns.offsets(size // run, run))
    return columns if regular else None


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


_UPDATES: dict[str, Callable[..., Array]] = {
    "add": lambda old, new: old + new,
    "fadd": lambda old, new: old + new,
    "and": lambda old, new: old & new,
    "or": lambda old, new: old | new,
    "xor": lambda old, new: old ^ new,
    "max": np.maximum,
    "min": np.minimum,
    "umax": lambda old, new: np.maximum(_unsigned(old), _unsigned(new)).view(old.dtype),
    "umin": lambda old, new: np.minimum(_unsigned(old), _unsigned(new)).view(old.dtype),
    "exch": lambda old, new: new,
    "load": lambda old: old,
    "store": lambda old, new: new,
}


def _unsigned(values: Array) -> Array:
    return values.view(f"u{values.itemsize}")


def atomic(
    run: Reporter,
    memory: Memory,
    kind: str,
    element: str,
    site: int,
    lanes: Array,
    offsets: Array,
    mask: Array | None,
    *values: Array,
) -> Array:
    """Update the elements at `offsets`, read as `element`, by `kind`; return the old ones, 0 where masked.

    Two kinds do only half of it: a "load" changes nothing, and what a "store" returns means nothing.
    """
    shape = np.broadcast_shapes(offsets.shape, (lanes.size,) + (1,) * (offsets.ndim - 1))
    offsets = np.broadcast_to(offsets, shape)
    active = np.ones(shape, np.bool_) if mask is None else np.broadcast_to(mask, shape)
    if memory.layout.empty or not memory.layout.inside(offsets)[active].all():
        outside = FindingKind.OUT_OF_BOUNDS_LOAD if kind == "load" else FindingKind.OUT_OF_BOUNDS_STORE
        offsets, active = discard_outside(memory, run, outside, site, lanes, offsets, active)
    order = np.argsort(lanes, kind="stable")
    chosen = active[order]
    positions = offsets[order][chosen]
    operands = [np.broadcast_to(value, shape)[order][chosen] for value in values]
    if kind != "store" and memory.written is not None and not memory.written[positions].all():
        everywhere = np.where(active, offsets, 0)[order]
        check_written(memory, run, site, lanes[order], everywhere, chosen)
    old = _apply(memory, kind, element, positions, operands)
    if kind != "load" and memory.written is not None:
        memory.written[positions] = True
    result = np.zeros(shape, old.dtype)
    ordered = np.zeros(shape, old.dtype)
    ordered[chosen] = old
    result[order] = ordered
    return result


def poll(
    run: Reporter,
    memory: Memory,
    element: str,
    site: int,
    lanes: Array,
    offsets: Array,
    expected: Array,
    limited: bool,
) -> Array:
    """Return where the elements at `offsets` have an expected value; programs run one after the other.

    Raises RuntimeError for one that waits without a limit for what no program before it stored.
    """
    found: Array = atomic(run, memory, "load", element, site, lanes, offsets, None) == expected
    if not limited and not found.all():
        raise RuntimeError("waits for a value that no program before this one stored")
    return found


def _apply(memory: Memory, kind: str, element: str, positions: Array, operands: list[Array]) -> Array:
    """Update the elements and return the old ones; at once where all positions differ, one by one otherwise."""
    if np.unique(positions).size == positions.size:
        return _update(memory, kind, element, positions, operands)
    pieces = [
        _update(memory, kind, element, positions[i : i + 1], [operand[i : i + 1] for operand in operands])
        for i in range(positions.size)
    ]
    return np.concatenate(pieces)


def _update(memory: Memory, kind: str, element: str, positions: Array, operands: list[Array]) -> Array:
    stored = from_bits(memory.flat[positions], memory.element)
    old = stored if element == memory.element else bitcast(stored, memory.element, element)
    new = np.where(old == operands[0], operands[1], old) if kind == "cas" else _UPDATES[kind](old, *operands)
    if old.dtype.kind == "f":
        new = round_to(new, element)
    new = new.astype(old.dtype, copy=False)
    back = new if element == memory.element else bitcast(new, element, memory.element)
    memory.flat[positions] = to_storage(np.ascontiguousarray(back), memory.element)
    return old
