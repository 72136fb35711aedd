"""Memory layouts: the strides of the tensors of a case."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import msgspec
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import FAR_STRIDES, INNER_STRIDES, CacheArrangement, Strides
from fuzz_attn.strategies.sampling.covering_arrays import pairwise
from fuzz_attn.strategies.sampling.draws import composite, sampled_from
from fuzz_attn.strategies.sampling.lattices import draw_index, indices

_STRIDED = sampled_from((False, False, False, True, True))
_PADDING = sampled_from((0, 0, 1, 3, 8, 16))
_ARRANGEMENTS: dict[Family, st.SearchStrategy[CacheArrangement]] = {
    family: sampled_from(interface.cache.arrangements) for family, interface in FAMILIES.items()
}
_DENSE = Strides()

FEWEST_FAR_ROWS: Final = 4
MOST_FAR_ROWS: Final = 64
STRIDE_STEP: Final = 16
"""A padding that is a multiple of 16 leaves a stride as divisible as it was, so that no other code is compiled."""

_PADDINGS: Final = (0, 1, 3, 8, 16)
_FIELDS: Final = tuple(
    field for field in Strides.__struct_fields__ if field not in ("cache", "key_piece", *INNER_STRIDES)
)
_INSIDE = sampled_from((False, False, True))
_PIECES = sampled_from((0, 0, 0, 0, 0, 1, 2, 4))
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
    layouts = (
        Strides(cache=caches[row[-1]], **{name: _PADDINGS[value] for name, value in zip(fields, row, strict=False)})
        for row in rows
    )
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
        inner["key_piece"] = draw(_PIECES) if FAMILIES[family].cache.piece_bytes else 0
    return Strides(
        **inner,
        q_token=draw(_PADDING),
        q_head=draw(_PADDING),
        out_token=draw(_PADDING),
        out_head=draw(_PADDING),
        cache=draw(_ARRANGEMENTS[family]),
        cache_slot=draw(_PADDING),
        block_table=draw(_PADDING),
        new_token=gaps[0],
        new_head=gaps[1],
        value_slot=draw(_PADDING),
    )


def with_far_rows(strides: Strides, *, name: str, rows: int) -> Strides:
    """Return strides with one padding so long that the last of ``rows`` rows lies 2^31 elements from the first.

    With few rows each would be so far from the next that the stride itself needs 64 bits, and many rows would take
    memory: then the strides stay as they are.
    """
    if not FEWEST_FAR_ROWS <= rows <= MOST_FAR_ROWS:
        return strides
    gap = -(-(2**31) // (rows - 1))
    return msgspec.structs.replace(strides, **{name: gap + -gap % STRIDE_STEP})


def far_paddings(family: Family) -> tuple[str, ...]:
    """Return the paddings that put the rows of a tensor of a family far apart."""
    return tuple(name for name in FAR_STRIDES if _applies(name, family) and name != "new_value_token")


def _applies(name: str, family: Family) -> bool:
    """Return whether a padding changes anything for a family."""
    if name.startswith("new_"):
        return FAMILIES[family].packs_new_keys
    return name not in INNER_STRIDES or FAMILIES[family].cache.padded == "page"
