"""Memory layouts: block sizes, the order of the pages of a case, and the strides of its tensors."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import msgspec
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument
from msgspec.structs import replace as changed

from fuzz_attn.case.aspects import FEATURES_OF
from fuzz_attn.case.attention_case import AttentionCase, far_length, replace, why_not_far
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import (
    FEWEST_FAR,
    INNER_STRIDES,
    LARGEST_FIRST_BLOCK,
    CacheArrangement,
    FarAxis,
    PageLayout,
    Strides,
)
from fuzz_attn.strategies.covering_arrays import pairwise
from fuzz_attn.strategies.draws import composite, draw_index, indices, lattice, one_of_each, sampled_from

BLOCK_SIZES = (1, 2, 3, 7, 8, 15, 16, 17, 24, 32, 33, 48, 64, 128, 272, 401, 784)
"""Tokens of a page: powers of two, their neighbours, the sizes of hybrid models (272 and more), and a large odd one."""

SIMPLER_BLOCK_SIZES = (16, 8, 24, 64)
"""What a page size shrinks towards: a tile, less, no power of two, more."""

LARGE_OFFSETS = (2**31, 2**32)
"""The least offset, in elements, of the pages in their cache: beyond signed and unsigned 32-bit integers."""

_BOOLEANS = sampled_from((False, True))
_SHARED = sampled_from((0, 0, 0, 0, 1, 2, 3))
_RARELY = sampled_from((False,) * 9 + (True,))
_SPARE = sampled_from((0, 0, 1, 2))
_EXTRA = sampled_from((0, 0, 1, 3))


def block_sizes(*, domain: Domain = Domain()) -> tuple[int, ...]:  # noqa: B008 (frozen)
    """Return the block sizes worth trying in a domain, the simplest first."""
    return lattice(BLOCK_SIZES, bounds=domain.block_sizes, simplest=16)


def page_layouts(*, block_size: int = 16, first_block: int = 0) -> st.SearchStrategy[PageLayout]:
    """Return a strategy of layouts of pages of one size, numbered from ``first_block``.

    Shrinks towards pages in order with nothing around them.
    """
    if block_size < 1:
        raise InvalidArgument(f"{block_size=} must be at least 1")
    if not 0 <= first_block <= LARGEST_FIRST_BLOCK:
        raise InvalidArgument(f"{first_block=} must be between 0 and {LARGEST_FIRST_BLOCK}")
    return _cached_page_layouts(block_size, first_block)


def in_order(pages: PageLayout) -> PageLayout:
    """Return pages of the same size one after the other, and as many spare ones, as packed keys lie."""
    return PageLayout(block_size=pages.block_size, spare_blocks=pages.spare_blocks)


def with_row_length(pages: PageLayout, columns: int, *, divisible: bool) -> PageLayout:
    """Return pages with more spare columns, so that a row of the block table has a multiple of 16 columns, or not.

    ``columns`` are those beside the spare ones. A row that is not ``divisible`` does not have 1 column either.
    """
    length = columns + pages.extra_columns
    more = -length % 16 if divisible else int(length % 16 == 0 or length == 1) + (length == 0)
    return changed(pages, extra_columns=pages.extra_columns + more)


@lru_cache(maxsize=1024)
def _cached_page_layouts(block_size: int, first_block: int) -> st.SearchStrategy[PageLayout]:
    return _page_layouts(block_size, first_block)


@composite
def _page_layouts(draw: st.DrawFn, block_size: int, first_block: int) -> PageLayout:
    return PageLayout(
        block_size=block_size,
        permuted=draw(_BOOLEANS),
        shared_prefix=draw(_SHARED),
        repeated=draw(_RARELY),
        spare_blocks=draw(_SPARE),
        extra_columns=draw(_EXTRA),
        first_block=first_block,
    )


_STRIDED = sampled_from((False, False, False, True, True))
_PADDING = sampled_from((0, 0, 1, 3, 8, 16))
_ARRANGEMENTS: dict[Family, st.SearchStrategy[CacheArrangement]] = {
    family: sampled_from(interface.cache.arrangements) for family, interface in FAMILIES.items()
}
_DENSE = Strides()

MOST_FAR: Final = 64
MOST_FAR_KEYS: Final = 256
"""The same of packed keys, of which few batches have so few."""
KV_HEADS: Final[dict[FarAxis, FarAxis]] = {
    "cache_slot": "cache_head",
    "cache_dim": "cache_head",
    "new_token": "new_head",
}
"""The axes that give way to KV heads where there are enough of them."""
_FAR: Final = sampled_from((False, True) + (False,) * 10)
_FAR_OFTEN: Final = sampled_from((False, True) + (False,) * 4)
"""More often for packed keys, which can be far apart only in pages of one slot, and if there are not too many; and
with a log-sum-exp, as fewer cases have one. Both are true at one index, so that far cases shrink to ones without it."""

_PADDINGS: Final = (0, 1, 3, 8, 16)
_FIELDS: Final = tuple(
    field for field in Strides.__struct_fields__ if field not in ("cache", "key_piece", "far", *INNER_STRIDES)
)
_INSIDE = sampled_from((False, False, True))
_DROP: Final = indices(512)
"""Only the first choice drops a padding, so that few cases leave the given layouts."""


@lru_cache(maxsize=8)
def layout_pool(*, family: Family = "unified", inner_strides: bool = False) -> tuple[Strides, ...]:
    """Return strided layouts of a family that cover each pair of two paddings, and each padding with each arrangement.

    With ``inner_strides`` these include the paddings inside pages and those of new values.

    For backends on which a new layout costs much: Triton compiles a kernel anew for strides of 1 and for strides
    divisible by 16.
    """
    interface = FAMILIES[family]
    fields = tuple(name for name in (*_FIELDS, *INNER_STRIDES * inner_strides) if _applies(name, family))
    caches = interface.cache.arrangements
    rows = pairwise([*([1] * len(_PADDINGS) for _ in fields), [1] * len(caches)])
    paddings: list[dict[str, Any]] = [
        {name: _PADDINGS[value] for name, value in zip(fields, row, strict=False)} for row in rows
    ]
    layouts = (Strides(cache=caches[row[-1]], **padding) for row, padding in zip(rows, paddings, strict=True))
    return tuple(layout for layout in layouts if layout != _DENSE)


def memory_layouts(
    *,
    family: Family = "unified",
    layouts: Iterable[Strides] | None = None,
    inner_strides: bool = False,
    simpler: bool = True,
) -> st.SearchStrategy[Strides]:
    """Return a strategy of the strides of a case; shrinks towards dense tensors, which three in five cases have.

    All others take one of ``layouts`` where given, nearly always unchanged; shrinking drops its paddings one by one.
    Without ``simpler`` they are never changed.
    Without ``layouts`` and with ``inner_strides``, a third of them also have paddings inside pages and of new values.
    """
    if layouts is None:
        return _any_layouts(family, inner_strides)
    chosen = tuple(layouts)
    if not chosen:
        raise InvalidArgument("layouts=() must hold at least one layout")
    return _some_layouts(chosen, simpler)


@composite
def _some_layouts(draw: st.DrawFn, layouts: tuple[Strides, ...], simpler: bool) -> Strides:
    if not draw(_STRIDED):
        return _DENSE
    layout = layouts[draw_index(draw, len(layouts))]
    if not simpler:
        return layout
    dropped: dict[str, Any] = {name: 0 for name in (*_FIELDS, *INNER_STRIDES) if draw(_DROP) == 0}
    if draw(_DROP) == 0:
        dropped["cache"] = "separate"
    return msgspec.structs.replace(layout, **dropped)


@composite
def _any_layouts(draw: st.DrawFn, family: Family, inner_strides: bool) -> Strides:
    if not draw(_STRIDED):
        return _DENSE
    gaps = (draw(_PADDING), draw(_PADDING)) if FAMILIES[family].packs_new_keys else (0, 0)
    inner: dict[str, Any] = {}
    applying = tuple(name for name in INNER_STRIDES if inner_strides and _applies(name, family))
    if draw(_INSIDE) and applying:
        inner = {name: draw(_PADDING) for name in applying}
    return Strides(
        **inner,
        q_token=draw(_PADDING),
        q_head=draw(_PADDING),
        out_token=draw(_PADDING),
        out_head=draw(_PADDING),
        cache=draw(_ARRANGEMENTS[family]),
        cache_slot=draw(_PADDING),
        block_table=draw(_PADDING) * _applies("block_table", family),
        new_token=gaps[0],
        new_head=gaps[1],
        value_slot=draw(_PADDING),
    )


def far_axes(family: Family, *, inner_strides: bool, lse: bool = False) -> st.SearchStrategy[tuple[FarAxis, ...]]:
    """Return a strategy of axes of a family that may be far, at most one of each tensor; shrinks towards none.

    One in 12 draws has some, of packed keys or with a log-sum-exp one in 6. Without ``inner_strides`` there are none
    inside split pages and not the columns of a bias; ``lse`` says whether there is a log-sum-exp.
    """
    split = FAMILIES[family].cache.is_split
    caches: tuple[FarAxis, ...] = ("cache_slot", "cache_head", "cache_dim") if split else ("cache_slot", "cache_head")
    groups: list[tuple[FarAxis, ...]] = [("q_token", "q_head"), ("out_token", "out_head"), ("block_table",)]
    if FAMILIES[family].cache.in_one_row:  # a list of slots is made for each call
        packed: tuple[FarAxis, ...] = ("cache_slot", "cache_slot", "cache_slot", "cache_head")
        groups, caches = groups[:2], packed if FAMILIES[family].cache.is_packed else ("cache_head",)
    biases: tuple[FarAxis, ...] = ("bias_row", "bias_column") if inner_strides else ("bias_row",)
    groups += [("new_token", "new_head")] * FAMILIES[family].packs_new_keys
    groups += [caches] * (inner_strides or not split)
    groups += [biases] * ("qq_bias" in FEATURES_OF[family])
    lses: tuple[FarAxis, ...] = ("lse_token", "lse_head")
    groups += [lses] * lse
    some = _FAR_OFTEN if lse or FAMILIES[family].cache.is_packed else _FAR
    return one_of_each(some, tuple(sampled_from((None, *group * 8)) for group in groups))


def with_far_axes(case: AttentionCase, names: Iterable[FarAxis]) -> AttentionCase:
    """Return the case with those of the axes far that have enough indices, and not too many.

    With two indices the stride itself would need 64 bits, and many would take memory. The few cases that have enough KV
    heads spread these.
    """
    packed = FAMILIES[case.family].cache.is_packed
    if case.heads.num_kv_heads >= FEWEST_FAR and not packed:
        names = [KV_HEADS.get(name, name) for name in names]
    for name in names:
        near = case
        if name.startswith("cache_"):
            near = replace(case, strides=msgspec.structs.replace(case.strides, cache="separate"))
        strides = msgspec.structs.replace(near.strides, far=(*near.strides.far, name))
        most = MOST_FAR_KEYS if packed and name == "cache_slot" else MOST_FAR
        if FEWEST_FAR <= _shortest(near, name) <= most and not why_not_far(near, strides, name):
            case = replace(near, strides=strides)
    return case


def _shortest(case: AttentionCase, name: FarAxis) -> int:
    """Return the indices of an axis; of the dimensions of split caches the chunks of the keys, which are fewer."""
    length = far_length(case, name)
    if name != "cache_dim":
        return length
    return length // (case.strides.key_piece or FAMILIES[case.family].cache.piece(case.dtypes.kv))


def _applies(name: str, family: Family) -> bool:
    """Return whether a padding changes anything for a family."""
    if name.startswith("new_"):
        return FAMILIES[family].packs_new_keys
    if name == "block_table":
        return not FAMILIES[family].cache.is_packed
    return name not in INNER_STRIDES or FAMILIES[family].cache.is_split
