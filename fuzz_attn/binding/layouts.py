"""Layouts: how the caches of a target lie in memory, as patterns of axes.

A new layout is one entry of ``LAYOUTS``. The axes of a pattern are in the order of the tensor's dimensions; axes in
parentheses share a dimension. ``dim`` is the head size, or in pieces of 16 bytes ``piece x``.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final, TypeAlias

from fuzz_attn.case.cache_layout import HEADS, LATENT, ROWS, SLOTS, SPLIT, CacheFormat
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.plain import Plain
from fuzz_attn.errors import BindingError

Groups: TypeAlias = tuple[tuple[str, ...], ...]

AXES: Final = ("block", "slot", "head", "piece", "x")
"""Every axis, in the order of a cache ``[num_blocks, block_size, num_kv_heads, head_size]``."""
_PATTERN: Final = re.compile(r"\(([a-z ]+)\)|([a-z]+)")


class Layout(Plain, frozen=True):
    """The patterns of both caches. ``words`` describe it in tables."""

    keys: str
    values: str
    words: str = "a layout of its own"

    def __post_init__(self) -> None:
        """Refuse a pattern that lacks an axis or has it twice."""
        super().__post_init__()
        for pattern in (self.keys, self.values):
            found = [axis for group in groups_of(pattern) for axis in group]
            if sorted(found) != sorted(AXES):
                raise BindingError(f"layout pattern {pattern!r} must name block, slot, head and dim, each once")

    @property
    def pages(self) -> bool:
        """Whether the first dimension counts pages only, so that a block table can index it."""
        return groups_of(self.keys)[0] == ("block",)


def groups_of(pattern: str) -> Groups:
    """Return the axes of each dimension of a pattern, ``dim`` as its two parts."""
    groups = [(inside or single).split() for inside, single in _PATTERN.findall(pattern)]
    return tuple(tuple(part for axis in group for part in _parts(axis)) for group in groups)


def _parts(axis: str) -> tuple[str, ...]:
    return ("piece", "x") if axis == "dim" else (axis,)


LAYOUTS: Final[dict[str, Layout]] = {
    "rows": Layout(
        "block slot head dim", "block slot head dim", "[num_blocks, block_size, num_kv_heads, head_size] (NHD)"
    ),
    "heads_first": Layout(
        "block head slot dim", "block head slot dim", "[num_blocks, num_kv_heads, block_size, head_size] (HND)"
    ),
    "split": Layout(
        "block head piece slot x",
        "block head dim slot",
        "keys [num_blocks, num_kv_heads, head_size // x, block_size, x], values [num_blocks, num_kv_heads, head_size, "
        "block_size]",
    ),
    "slots": Layout("(block slot) head dim", "(block slot) head dim", "[num_slots, num_kv_heads, head_size]"),
    "latent": Layout(
        "block slot (head dim)",
        "block slot (head dim)",
        "one cache [num_blocks, block_size, head_size], whose first elements are the values",
    ),
}
"""Every layout that has a name."""


_SLOTS: Final = LAYOUTS["slots"]
_FORMATS: Final = {"rows": ROWS, "heads_first": HEADS, "slots": SLOTS, "split": SPLIT, "latent": LATENT}
"""The format in which caches lie for each layout that has a name."""


@cache
def format_of(layout: Layout | None, family: Family) -> CacheFormat | None:
    """Return the format in which the caches of a family's cases lie for a target with this layout.

    None for a pattern of one's own, of which a call gets a copy; the family's own where no layout is stated.
    """
    own = FAMILIES[family].cache
    if layout is None or (own.is_packed and (layout.keys, layout.values) == (_SLOTS.keys, _SLOTS.values)):
        return own
    named = ((LAYOUTS[name], each) for name, each in _FORMATS.items())
    return next((each for other, each in named if (other.keys, other.values) == (layout.keys, layout.values)), None)
