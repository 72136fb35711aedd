"""Virtual tensors: of any logical size, of which only the pages that a case refers to exist.

An offset beyond 2^31 then costs a page and not a hundred gigabytes. A `VirtualTensor` answers all that a
launcher asks of a tensor (shape, strides, dtype, views), has no values for torch, and is read and written only
by simulated kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from .casts import STORAGE
from .columns import Columns
from .errors import SimulatorError
from .layout import Layout
from .lowering import TORCH_TYPES
from .memory import Memory

if TYPE_CHECKING:
    from .run import Run

Array = npt.NDArray[Any]

_LINE_TYPES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class PageStore:
    """The pages that exist, by their numbers, and one more that stands for all others (what it holds is poison)."""

    def __init__(self, indices: Sequence[int], contents: torch.Tensor, poison: torch.Tensor) -> None:
        order = sorted(range(len(indices)), key=lambda position: indices[position])
        self.numbers: npt.NDArray[np.int64] = np.array([indices[position] for position in order], np.int64)
        self.page_elements = poison.numel()
        rows = contents.reshape(len(indices), -1)[order] if indices else contents.reshape(0, self.page_elements)
        self.data = torch.cat([rows, poison.reshape(1, -1)]).contiguous()

    def positions(self, offsets: Array) -> Array:
        """Where in the flat data the elements at these logical offsets are."""
        pages, inner = np.divmod(offsets, self.page_elements)
        slots = np.searchsorted(self.numbers, pages)
        known = slots < self.numbers.size
        known &= self.numbers[np.minimum(slots, self.numbers.size - 1)] == pages if self.numbers.size else False
        result: Array = np.where(known, slots, self.numbers.size) * self.page_elements + inner
        return result

    def crosses(self, starts: Array, width: int) -> bool:
        """Whether a row of `width` elements from one of the starts on reaches into another page."""
        return bool((starts % self.page_elements > self.page_elements - width).any())


class VirtualTensor(torch.Tensor):
    """A view of a `PageStore`, made by `virtual_tensor`; views of it (slices, `select`, ...) work as ever."""

    store: PageStore
    logical: torch.Tensor

    @staticmethod
    def __new__(cls, store: PageStore, logical: torch.Tensor) -> VirtualTensor:
        """Return a tensor without storage that has the shape and strides of `logical`."""
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            logical.shape,
            strides=logical.stride(),
            storage_offset=logical.storage_offset(),
            dtype=logical.dtype,
            device=torch.device("cpu"),
        )
        assert isinstance(made, VirtualTensor)
        return made

    def __init__(self, store: PageStore, logical: torch.Tensor) -> None:
        super().__init__()
        self.store = store
        self.logical = logical

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]  # torch passes its own keyword
        return f"VirtualTensor({tuple(self.shape)}, {self.dtype}, pages={self.store.numbers.tolist()})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch types it as an instance method
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        returned = func._schema.returns
        aliases = [value.alias_info for value in returned]
        if not aliases or any(alias is None or alias.is_write for alias in aliases):
            raise SimulatorError(f"{func} needs the values of a virtual tensor, which exist for simulated kernels only")
        source = next(argument for argument in args if isinstance(argument, VirtualTensor))
        unwrapped = [argument.logical if isinstance(argument, VirtualTensor) else argument for argument in args]
        result = func(*unwrapped, **(kwargs or {}))
        if isinstance(result, (list, tuple)):
            return [cls(source.store, item) for item in result]
        return cls(source.store, result)

    def page(self, number: int) -> torch.Tensor:
        """Return the flat contents of an existing page, to read or change."""
        slot = int(np.searchsorted(self.store.numbers, number))
        if slot == self.store.numbers.size or self.store.numbers[slot] != number:
            raise KeyError(f"page {number=} does not exist; pages: {self.store.numbers.tolist()}")
        return self.store.data[slot]


def virtual_tensor(
    num_pages: int, indices: Sequence[int], contents: torch.Tensor, poison: float = float("nan")
) -> VirtualTensor:
    """Return a tensor of shape `[num_pages, *contents.shape[1:]]`, row-major, of which only the pages `indices` exist.

    `contents[i]` is page `indices[i]`. Every other page reads as `poison`, and what is stored there is lost.
    """
    shape = tuple(contents.shape[1:])
    if len(set(indices)) != len(indices) or contents.shape[0] != len(indices):
        raise ValueError(f"{contents.shape[0]=} must be the number of distinct indices, {len(set(indices))}")
    if any(not 0 <= index < num_pages for index in indices):
        raise ValueError(f"{indices=} must lie in [0, {num_pages=})")
    filler = (
        torch.full(shape, poison).to(contents.dtype)
        if contents.dtype.is_floating_point
        else torch.zeros(shape, dtype=contents.dtype)
    )
    logical = torch.empty((num_pages, *shape), dtype=contents.dtype, device="meta")
    return VirtualTensor(PageStore(list(indices), contents, filler), logical)


class VirtualMemory(Memory):
    """The memory of a virtual tensor: logical offsets are checked as ever, then looked up page by page."""

    def __init__(self, name: str, tensor: VirtualTensor) -> None:
        logical = tensor.logical
        element = TORCH_TYPES[logical.dtype][1]
        data = tensor.store.data
        line = data.view(_LINE_TYPES[data.element_size()]).reshape(-1).numpy().view(STORAGE[element])
        super().__init__(name, line, element, Layout(tuple(logical.shape), tuple(logical.stride())))
        self._store = tensor.store
        self._first = logical.storage_offset()

    def physical(self, offsets: Array) -> Array:
        """Positions in the pages that exist."""
        return self._store.positions(offsets + self._first)

    def load_rows(
        self, run: Run, site: int, lanes: Array, starts: Array, width: int, size: int, mask: Array | None, other: Any
    ) -> Array:
        """As of any memory; rows that reach into another page are read element by element."""
        if not self._store.crosses(starts + self._first, width):
            return super().load_rows(run, site, lanes, starts, width, size, mask, other)
        columns = starts[..., None] + np.arange(size)
        wanted = np.broadcast_to(np.arange(size) < width, columns.shape)
        if mask is not None:
            wanted = wanted & mask[..., None]
        return self.load(run, site, lanes, columns, wanted, other)

    def load_columns(
        self, starts: Array, columns: Columns | None, width: int, size: int, mask: Array | None, other: Any
    ) -> Array | None:
        """Return None: where columns lie apart, each element is looked up."""
        return None

    def store_rows(
        self,
        run: Run,
        site: int,
        lanes: Array,
        starts: Array,
        width: int,
        values: Array,
        mask: Array | None,
        wide: bool = False,
    ) -> None:
        """As of any memory; rows that reach into another page are written element by element."""
        if not self._store.crosses(starts + self._first, width):
            super().store_rows(run, site, lanes, starts, width, values, mask, wide)
            return
        columns = starts[..., None] + np.arange(width)
        wanted = None if mask is None else mask[..., None]
        self.store(run, site, lanes, columns, values[..., :width], wanted, wide)
