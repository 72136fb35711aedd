"""Order within a program: loads of what another warp of the program stored before, with no barrier between them.

A load is reported if it reads an element that the program's last store changed, at a position of its tile which another
warp holds than the position that stored it, in each layout that the compiler may choose: rows first, or columns where
they are contiguous, and 1 element for each thread up to 16 bytes. An element at the same position is read by the thread
that stored it. Tiles with fewer elements than threads, scalars and tiles with more than two axes are not judged, and
neither is a load that may be behind a barrier of the compiler's own (`ttir.barriers`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fuzz_attn.simulator.access_checks import Buffer, FindingKind, Reporter

Array = npt.NDArray[Any]

DEFAULT_WARPS: Final = 4
"""The warps of a program for which the launch asks for none."""
_THREADS: Final = 32
_WIDEST_ACCESS: Final = 16
_MOST_AXES: Final = 2


@dataclass(frozen=True, slots=True)
class _Elements:
    """Elements of one access: for each its program, its place in the storage, and its position in the tile.

    The compiler may give threads `columns` of a tile instead of rows where they are contiguous.
    """

    programs: Array
    places: Array
    positions: Array
    shape: tuple[int, ...]
    itemsize: int
    columns: bool


@dataclass(frozen=True, slots=True)
class _Store:
    """The last store of some programs: the elements by rising key, the bits before, and the program's barriers then."""

    storage: tuple[int, int] | None
    elements: _Elements
    keys: Array
    before: Array
    barriers: Array


class StoreOrder:
    """The barriers and the last stores of the programs of one launch."""

    def __init__(self, programs: int, warps: int = DEFAULT_WARPS) -> None:
        self._programs, self._warps = programs, warps
        self._barriers = np.zeros(0, np.int64)
        self._stores: list[_Store] = []

    def barrier(self, lanes: Array) -> None:
        """Order all accesses of programs before now and after now."""
        if not self._barriers.size:
            self._barriers = np.zeros(self._programs, np.int64)
        self._barriers[lanes] += 1

    def store(
        self, run: Reporter, buffer: Buffer, site: int, lanes: Array, offsets: Array, mask: Array | None,
        shape: tuple[int, ...],
    ) -> None:  # fmt: skip
        """Note a store. What it stores may come from other threads, so it counts as a barrier for earlier ones."""
        self.barrier(lanes)
        elements = self._elements(buffer, lanes, offsets, mask, shape)
        if elements is None:
            return
        keys = _keys(elements)
        order = np.argsort(keys, kind="stable")
        single = np.ones(keys.size, np.bool_)
        same = keys[order][1:] == keys[order][:-1]
        single[1:] &= ~same
        single[:-1] &= ~same
        chosen = order[single]
        elements = _Elements(
            elements.programs[chosen],
            elements.places[chosen],
            elements.positions[chosen],
            shape,
            elements.itemsize,
            elements.columns,
        )
        before = buffer.flat[elements.places - buffer.shift].copy()
        store = _Store(buffer.storage, elements, keys[chosen], before, self._barriers[elements.programs])
        self._stores = [one for one in self._stores if (self._barriers[one.elements.programs] == one.barriers).any()]
        self._stores.append(store)

    def load(
        self, run: Reporter, buffer: Buffer, site: int, lanes: Array, offsets: Array, mask: Array | None,
        shape: tuple[int, ...],
    ) -> None:  # fmt: skip
        """Report a load of what other warps of a program stored since its last barrier."""
        stores = [store for store in self._stores if store.storage == buffer.storage and store.keys.size]
        elements = self._elements(buffer, lanes, offsets, mask, shape) if stores else None
        if elements is None:
            return
        keys = _keys(elements)
        for store in stores:
            found = np.minimum(store.keys.searchsorted(keys), store.keys.size - 1)
            met = store.keys[found] == keys
            met &= store.barriers[found] == self._barriers[elements.programs]
            met &= self._apart(elements, elements.positions, store.elements, store.elements.positions[found])
            now = buffer.flat[elements.places - buffer.shift]
            met &= _bits(now) != _bits(store.before[found])
            if met.any():
                first = int(met.argmax())
                index = int(elements.places[first]) - buffer.shift
                message = (
                    f"loads element {index} of {buffer.name}, which another thread of the program stored, and there is"
                    " no tl.debug_barrier() between them"
                )
                kind, bounds = FindingKind.UNORDERED_LOAD, (0, buffer.extent)
                program = elements.programs[first : first + 1]
                run.report(kind, site, program, 0, buffer.name, index, bounds, message, int(met.sum()))

    def _elements(
        self, buffer: Buffer, lanes: Array, offsets: Array, mask: Array | None, shape: tuple[int, ...]
    ) -> _Elements | None:
        """Return the elements of an access inside of its tensor; None where nothing is known of their threads."""
        size = math.prod(shape)
        if self._warps < 2 or len(shape) > _MOST_AXES or size < _THREADS * self._warps:
            return None
        full = (lanes.size, *shape)
        columns = len(shape) == _MOST_AXES and bool((np.diff(offsets, axis=1) == 1).any())
        offsets = np.broadcast_to(offsets, full).reshape(-1)
        chosen = buffer.layout.inside(offsets)
        if mask is not None:
            chosen &= np.broadcast_to(mask, full).reshape(-1)
        kept = chosen.nonzero()[0]
        return _Elements(
            lanes[kept // size], offsets[kept] + buffer.shift, kept % size, shape, buffer.flat.itemsize, columns
        )

    def _apart(self, one: _Elements, first: Array, other: _Elements, second: Array) -> Array:
        """Return where positions of two tiles belong to different warps in each layout of both."""
        result = np.ones(first.shape, np.bool_)
        others = list(self._layouts(other, second))
        for warps in self._layouts(one, first):
            for other_warps in others:
                result &= warps != other_warps
        return result

    def _layouts(self, elements: _Elements, positions: Array) -> Iterator[Array]:
        """Yield the warps of positions in each layout."""
        shape = elements.shape
        most = min(_WIDEST_ACCESS // elements.itemsize, math.prod(shape) // (_THREADS * self._warps))
        orders = [positions]
        if elements.columns:
            orders.append(positions % shape[1] * shape[0] + positions // shape[1])
        for order in orders:
            count = 1
            while count <= max(most, 1):
                yield order // (_THREADS * count) % self._warps
                count *= 2


def _keys(elements: _Elements) -> Array:
    """Return a number for each element that is equal for the same place in the same program."""
    keys: Array = elements.programs.astype(np.int64) * (1 << 40) + elements.places
    return keys


def _bits(values: Array) -> Array:
    bits: Array = np.ascontiguousarray(values).view(f"u{values.itemsize}")
    return bits
