"""Memory layouts: how the tensors of a case are strided."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

import msgspec
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from fuzz_attn.case.attention_case import Strides
from fuzz_attn.case.families import DENSE_NEW_KEYS, SPLIT_CACHES, Family
from fuzz_attn.strategies.sampling.covering_arrays import pairwise
from fuzz_attn.strategies.sampling.draws import composite, sampled_from
from fuzz_attn.strategies.sampling.lattices import draw_index, indices

_STRIDED = sampled_from((False, False, False, True, True))
_PADDING = sampled_from((0, 0, 1, 3, 8, 16))
Cache: TypeAlias = Literal["separate", "kv_first", "blocks_first", "heads_first"]
_SPLIT: tuple[Cache, ...] = ("separate", "kv_first", "blocks_first")
_ALL_CACHES: tuple[Cache, ...] = (*_SPLIT, "heads_first")
_CACHES: dict[bool, st.SearchStrategy[Cache]] = {
    True: sampled_from(_SPLIT),
    False: sampled_from(_ALL_CACHES),
}
_DENSE = Strides()


_PADDINGS: Final = (0, 1, 3, 8, 16)
_FIELDS: Final = tuple(field for field in Strides.__struct_fields__ if field != "cache")
_DROP: Final = indices(512)
"""The first choice drops a padding, all others leave it: few cases leave the layouts that were given."""


@lru_cache(maxsize=8)
def layout_pool(*, family: Family = "unified") -> tuple[Strides, ...]:
    """Return strided layouts of a family in which every pair of two paddings, or of one and the cache's layout, occurs.

    For whom a new layout is dear: strides that are 1, or divisible by 16, make Triton compile a kernel anew.
    """
    fields = _FIELDS if family in DENSE_NEW_KEYS else tuple(name for name in _FIELDS if not name.startswith("new_"))
    caches = _SPLIT if family in SPLIT_CACHES else _ALL_CACHES
    rows = pairwise([*([1] * len(_PADDINGS) for _ in fields), [1] * len(caches)])
    layouts = (
        Strides(cache=caches[row[-1]], **{name: _PADDINGS[value] for name, value in zip(fields, row, strict=False)})
        for row in rows
    )
    return tuple(layout for layout in layouts if layout != _DENSE)


def memory_layouts(
    *, family: Family = "unified", layouts: Iterable[Strides] | None = None
) -> st.SearchStrategy[Strides]:
    """Return a strategy of the strides of a case; shrinks towards dense tensors, which three in five cases have.

    The others take one of ``layouts`` where given, nearly always as it is; its paddings shrink away one by one.
    """
    if layouts is None:
        return _any_layouts(family)
    chosen = tuple(layouts)
    if not chosen:
        raise InvalidArgument("layouts=() must hold at least one layout")
    return _some_layouts(chosen)


@composite
def _some_layouts(draw: st.DrawFn, layouts: tuple[Strides, ...]) -> Strides:
    if not draw(_STRIDED):
        return _DENSE
    layout = layouts[draw_index(draw, len(layouts))]
    dropped: dict[str, Any] = {name: 0 for name in _FIELDS if draw(_DROP) == 0}
    if draw(_DROP) == 0:
        dropped["cache"] = "separate"
    return msgspec.structs.replace(layout, **dropped)


@composite
def _any_layouts(draw: st.DrawFn, family: Family) -> Strides:
    if not draw(_STRIDED):
        return _DENSE
    gaps = (draw(_PADDING), draw(_PADDING)) if family in DENSE_NEW_KEYS else (0, 0)
    return Strides(
        q_token=draw(_PADDING),
        q_head=draw(_PADDING),
        out_token=draw(_PADDING),
        out_head=draw(_PADDING),
        cache=draw(_CACHES[family in SPLIT_CACHES]),
        cache_slot=draw(_PADDING),
        block_table=draw(_PADDING),
        new_token=gaps[0],
        new_head=gaps[1],
        value_slot=draw(_PADDING),
    )
