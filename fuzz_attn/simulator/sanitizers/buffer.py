"""A tensor argument as the sanitizers know it."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from fuzz_attn.simulator.sanitizers.layout import Layout
from fuzz_attn.simulator.sanitizers.races import RaceTracker

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
