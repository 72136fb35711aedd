"""Cache layout: the shape and strides of a page of keys and of a page of values.

A :class:`CacheFormat` names the axes of the caches of a kernel family. With the sizes of a case it becomes a
:class:`CacheLayout`, in elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from msgspec.structs import replace

from fuzz_attn.case.parts import DTYPES, CacheArrangement, DTypeName, FarAxis, HeadLayout, Strides


class Page(NamedTuple):
    """One page of a cache: shape and strides without the axis of the pages, and its size with padding."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    elements: int


@dataclass(frozen=True)
class CacheLayout:
    """Both caches of a case, in elements."""

    keys: Page
    values: Page
    arrangement: CacheArrangement
    is_latent: bool = False
    """Whether the values are parts of the keys."""

    @property
    def one_allocation(self) -> bool:
        """Whether both caches are views of the same memory."""
        return self.is_latent or self.arrangement in ("kv_first", "blocks_first")

    @property
    def page_strides(self) -> tuple[int, int]:
        """Elements from one page to the next, of K's cache and of V's."""
        pages = 2 if self.arrangement == "blocks_first" else 1
        return pages * self.keys.elements, pages * self.values.elements


@dataclass(frozen=True)
class CacheFormat:
    """Which axis of the caches means what.

    ``key_axes`` and ``value_axes`` permute a cache to ``[num_blocks, block_size, num_kv_heads, ...]``, so that block
    and slot are the first two indices. ``arrangements`` are the values of ``strides.cache`` that the format allows; for
    any other one the caches lie ``separate``, and instead of in one allocation where values have their own size.
    ``piece_bytes`` of a key lie together; 0 is the whole key. Where ``in_one_row``, all slots are equally far apart, so
    that pages and slots can be passed as one axis. In a cache that ``is_latent`` each value is the first elements of
    its key, and there is one KV head. In one that ``is_packed`` the keys of all sequences follow each other.
    """

    key_axes: tuple[int, ...]
    value_axes: tuple[int, ...]
    arrangements: tuple[CacheArrangement, ...]
    piece_bytes: int = 0
    in_one_row: bool = False
    is_latent: bool = False
    is_packed: bool = False

    @property
    def is_split(self) -> bool:
        """Whether keys are cut into pieces. Then ``strides.cache_slot`` pads a page, else each row of a page."""
        return self.piece_bytes > 0

    @property
    def slot_axis(self) -> int:
        """The axis of the key cache that counts the slots of a page."""
        return self.key_axes[1]

    @property
    def head_axis(self) -> int:
        """The axis of both caches that counts KV heads."""
        return self.key_axes[2]

    @property
    def far_axes(self) -> tuple[dict[FarAxis, int], dict[FarAxis, int]]:
        """Which axes of the keys and of the values may be far; in split pages the slots of values are contiguous."""
        page, slot, head, dim, *_ = self.key_axes
        keys: dict[FarAxis, int] = {"cache_head": head} if self.in_one_row else {"cache_slot": slot, "cache_head": head}
        if self.is_packed:  # a page is one slot there, where slots are far
            keys["cache_slot"] = page
        if not self.is_split:
            return keys, keys
        values: dict[FarAxis, int] = {"cache_head": self.value_axes[2], "cache_dim": self.value_axes[3]}
        return {**keys, "cache_dim": dim}, values

    def piece(self, dtype: DTypeName) -> int:
        """Return ``x``, how many elements of a key lie together: all, if it does not divide the head size."""
        return max(1, self.piece_bytes // DTYPES[dtype].bytes)

    def layout(self, heads: HeadLayout, block_size: int, dtype: DTypeName, strides: Strides) -> CacheLayout:
        """Return the layout of caches of these sizes."""
        alternating = self.is_packed and block_size > 1 and strides.cache == "blocks_first"  # not equally far apart
        two = heads.value_size and not _has_two_allocations(strides)
        if strides.cache not in self.arrangements or two or alternating:
            strides = replace(strides, cache="separate")
        paddings = strides.cache_slot, strides.cache_slot + _value_padding(strides)
        if self.is_split:
            piece, (chunk, slot, dim) = strides.key_piece or self.piece(dtype), _inner_paddings(strides)
            piece = heads.head_size if heads.head_size % piece else piece
            shape = heads.num_kv_heads, heads.head_size // piece, block_size, piece
            keys = _padded_page(shape, (strides.page_head, chunk, slot, 0), paddings[0])
            shape_of_values = heads.num_kv_heads, heads.head_size_v, block_size
            values = _padded_page(shape_of_values, (strides.page_head, dim, 0), paddings[1])
        else:
            sizes = zip((heads.head_size, heads.head_size_v), paddings, strict=True)
            keys, values = (self._page_of_rows(heads, size, block_size, strides, padding) for size, padding in sizes)
        if self.is_latent:
            values = Page((*keys.shape[:-1], heads.head_size_v), keys.strides, keys.elements)
        return CacheLayout(keys, values, strides.cache, self.is_latent)

    def _page_of_rows(self, heads: HeadLayout, size: int, block_size: int, strides: Strides, padding: int) -> Page:
        """Return a page of rows of this size, each with its padding.

        Slots lie in the order of the axes, unless ``strides.cache`` says that heads come first: then in the other one.
        """
        row, count, heads_outside = size + padding, heads.num_kv_heads, self.head_axis < self.slot_axis
        by_heads = heads_outside != (strides.cache == "heads_first")
        slot, head = (row, block_size * row) if by_heads else (count * row, row)
        elements = block_size * count * row
        if heads_outside:
            return Page((count, block_size, size), (head, slot, 1), elements)
        return Page((block_size, count, size), (slot, head, 1), elements)


def _has_two_allocations(strides: Strides) -> bool:
    """Return whether the pages of the two caches may differ in size."""
    return strides.cache in ("separate", "heads_first")


def _inner_paddings(strides: Strides) -> tuple[int, int, int]:
    """Return the paddings of a chunk and a slot of the keys, and of a dimension of the values."""
    return (strides.key_chunk, strides.key_slot, strides.value_dim) if _has_two_allocations(strides) else (0, 0, 0)


def _value_padding(strides: Strides) -> int:
    return strides.value_slot if _has_two_allocations(strides) else 0


def _padded_page(shape: tuple[int, ...], inner: tuple[int, ...], padding: int) -> Page:
    """Return a page with the padding ``inner`` after each index of each axis, followed by its own padding."""
    strides, size = [0] * len(shape), 1
    for axis in reversed(range(len(shape))):
        strides[axis] = size + inner[axis]
        size = shape[axis] * strides[axis]
    return Page(shape, tuple(strides), size + padding)


ROWS: Final = CacheFormat(
    key_axes=(0, 1, 2, 3),
    value_axes=(0, 1, 2, 3),
    arrangements=("separate", "kv_first", "blocks_first", "heads_first"),
)
"""Keys and values ``[num_blocks, block_size, num_kv_heads, head_size]``."""

HEADS: Final = CacheFormat(key_axes=(0, 2, 1, 3), value_axes=(0, 2, 1, 3), arrangements=ROWS.arrangements)
"""Keys and values ``[num_blocks, num_kv_heads, block_size, head_size]``."""

SLOTS: Final = CacheFormat(ROWS.key_axes, ROWS.value_axes, arrangements=("separate", "kv_first"), in_one_row=True)
"""Keys and values as :data:`ROWS`, which can be passed as ``[num_slots, num_kv_heads, head_size]`` too."""

PACKED: Final = CacheFormat(
    ROWS.key_axes,
    ROWS.value_axes,
    arrangements=("separate", "kv_first", "blocks_first"),
    in_one_row=True,
    is_packed=True,
)
"""Keys and values ``[num_keys, num_kv_heads, head_size]`` of all sequences one after the other, as :data:`SLOTS`."""

SPLIT: Final = CacheFormat(
    key_axes=(0, 3, 1, 2, 4),
    value_axes=(0, 3, 1, 2),
    arrangements=("separate", "kv_first", "blocks_first"),
    piece_bytes=16,
)
"""Keys ``[num_blocks, num_kv_heads, head_size // x, block_size, x]``, pieces of 16 bytes; values
``[num_blocks, num_kv_heads, head_size, block_size]``."""

LATENT: Final = CacheFormat(ROWS.key_axes, ROWS.value_axes, arrangements=("separate",), is_latent=True)
"""Keys ``[num_blocks, block_size, 1, head_size]``; values are a view ``[num_blocks, block_size, 1, head_size_v]``."""
