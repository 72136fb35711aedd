"""Access checks: bounds, uninitialised elements, and races with other programs; and the findings of all sanitizers.

They know a tensor argument as a buffer, whose layout says which offsets from its first element are elements of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fuzz_attn.simulator.torch_compat import DispatchMode, written_arguments
from fuzz_attn.ttir.ir import Location


class FindingKind(StrEnum):
    """The kinds of defects that the sanitizers find."""

    OUT_OF_BOUNDS_LOAD = "out-of-bounds load"
    OUT_OF_BOUNDS_STORE = "out-of-bounds store"
    UNINITIALISED_READ = "uninitialised read"
    RACE = "race"
    INTEGER_OVERFLOW = "integer overflow"
    DEVICE_ASSERT = "device assert"
    GRID_TOO_LARGE = "grid too large"
    CONFLICTING_STORE = "conflicting store"
    UNORDERED_LOAD = "unordered load"
    FALSE_HINT = "false hint"
    UNDEFINED_INTEGER = "undefined integer"


@dataclass(frozen=True, slots=True)
class Finding:
    """A defect seen in a launch; `count` is how often it was seen, and the other fields belong to the first time.

    `program` is (x, y, z) in the grid. `index` counts elements from the tensor's first one, as strides do. `bounds` is
    the range of valid offsets, its end exclusive, or the range of valid integers. `address` is that of the tensor's
    first element, 0 where no element is meant.
    """

    kind: FindingKind
    kernel: str
    location: Location
    program: tuple[int, int, int]
    tensor: str
    index: int
    bounds: tuple[int, int]
    message: str
    count: int = 1
    address: int = 0

    def __str__(self) -> str:
        return f"{self.kind} in {self.kernel} at {self.location}: {self.message} (program {self.program})"

    @property
    def signature(self) -> tuple[str, str, str, int, str]:
        """Kind, kernel, file, line and tensor; findings that agree in these are one defect."""
        return (self.kind.value, self.kernel, self.location.file, self.location.line, self.tensor)

    def follows_from(self, other: Finding) -> bool:
        """Return whether an access outside of a tensor is at an offset that a 32-bit overflow has wrapped around."""
        outside = self.kind in (FindingKind.OUT_OF_BOUNDS_LOAD, FindingKind.OUT_OF_BOUNDS_STORE)
        same = (self.kernel, self.tensor) == (other.kernel, other.tensor)
        if not (outside and same and other.kind is FindingKind.INTEGER_OVERFLOW):
            return False
        return any(self.bounds[0] <= self.index + wrapped < self.bounds[1] for wrapped in _WRAPPED)


_WRAPPED: Final = (2**32, -(2**32), 2**33, -(2**33))
"""By how much an offset is wrong whose last operation has overflowed in 32 bits."""


class Reporter(Protocol):
    """What the sanitizers report to while a launch runs."""

    def report(
        self,
        kind: FindingKind,
        site: int,
        lanes: npt.NDArray[Any],
        row: int,
        tensor: str,
        index: int,
        bounds: tuple[int, int],
        message: str,
        count: int,
    ) -> None:
        """Record a finding of the source line numbered `site`, seen in the program `lanes[row]`."""


Offsets = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]

_NONE = -1
_SEVERAL = -2
# Groups of rows that are compared with each other; a kernel that stores more often gets the maps.
_MOST_GROUPS = 32
_CREATORS = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
}


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


@dataclass(slots=True)
class _Shadow:
    written: npt.NDArray[np.bool_]
    itemsize: int
    alive: weakref.ref[torch.UntypedStorage]
    complete: bool = False


class Shadows:
    """The shadows of all uninitialised storages of a session, by address."""

    def __init__(self) -> None:
        self._shadows: dict[int, _Shadow] = {}

    def __bool__(self) -> bool:
        return bool(self._shadows)

    def add(self, tensor: torch.Tensor) -> None:
        """Mark all elements of the tensor's storage as not written."""
        storage = tensor.untyped_storage()
        size = storage.nbytes() // tensor.element_size()
        if size:
            written = np.zeros(size, np.bool_)
            self._shadows[storage.data_ptr()] = _Shadow(written, tensor.element_size(), weakref.ref(storage))

    def forget(self, tensor: torch.Tensor) -> None:
        """Mark the elements of a tensor as not written; those around it stay as they are."""
        storage = tensor.untyped_storage()
        if self._at(tensor) is None:
            written = np.ones(storage.nbytes() // tensor.element_size(), np.bool_)
            self._shadows[storage.data_ptr()] = _Shadow(written, tensor.element_size(), weakref.ref(storage))
        view = self._shadows[storage.data_ptr()].written[tensor.storage_offset() :]
        np.lib.stride_tricks.as_strided(view, tuple(tensor.shape), tuple(tensor.stride()))[...] = False

    def _at(self, tensor: torch.Tensor) -> _Shadow | None:
        """Return the shadow of the tensor's storage, unless it is complete or belonged to a storage that was freed."""
        address = tensor.untyped_storage().data_ptr()
        shadow = self._shadows.get(address)
        if shadow is None or shadow.complete:
            return None
        if shadow.alive() is None:
            del self._shadows[address]
            return None
        return shadow

    def find(self, tensor: torch.Tensor) -> npt.NDArray[np.bool_] | None:
        """Return the shadow from the tensor's first element on; None if it is not watched or completely written."""
        shadow = self._at(tensor)
        if shadow is None or shadow.itemsize != tensor.element_size():
            return None
        if shadow.written.all():
            shadow.complete = True
            return None
        return shadow.written[tensor.storage_offset() :]

    def write(self, tensor: torch.Tensor) -> None:
        """Mark every element of the tensor as written."""
        shadow = self._at(tensor)
        if shadow is None:
            return
        if shadow.itemsize != tensor.element_size():
            shadow.complete = True
            return
        view = shadow.written[tensor.storage_offset() :]
        if tensor.numel():
            strides = tuple(tensor.stride())
            np.lib.stride_tricks.as_strided(view, tuple(tensor.shape), strides)[...] = True


class EmptyWatcher(DispatchMode):
    """While active, records tensors from `torch.empty` and its variants, and what torch itself writes to them."""

    def __init__(self, shadows: Shadows) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._shadows = shadows

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs) if kwargs else func(*args)
        if func in _CREATORS:
            if isinstance(result, torch.Tensor) and result.device.type == "cpu":
                self._shadows.add(result)
        elif self._shadows:
            for index, name in written_arguments(func):
                value = args[index] if index < len(args) else (kwargs or {}).get(name)
                if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                    self._shadows.write(value)
        return result
