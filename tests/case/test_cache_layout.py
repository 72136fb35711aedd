"""Cache layouts: shapes and strides by hand, and pages that never overlap."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from fuzz_attn.case.cache_layout import ROWS, SPLIT, CacheFormat, Page
from fuzz_attn.case.parts import DTYPES, CacheArrangement, DTypeName, HeadLayout, Strides

HEADS = HeadLayout(num_kv_heads=2, head_size=16)


def offsets(page: Page) -> list[int]:
    """Return where in a page each of its elements is."""
    return [
        sum(map(int.__mul__, index, page.strides)) for index in itertools.product(*(range(size) for size in page.shape))
    ]


def test_rows_by_hand() -> None:
    layout = ROWS.layout(HEADS, 4, "float16", Strides(cache_slot=3, value_slot=2))
    assert layout.keys == Page((4, 2, 16), (2 * 19, 19, 1), 4 * 2 * 19)
    assert layout.values == Page((4, 2, 16), (2 * 21, 21, 1), 4 * 2 * 21)
    assert layout.page_strides == (152, 168)


def test_split_by_hand() -> None:
    layout = SPLIT.layout(HEADS, 4, "float16", Strides(cache_slot=3, value_slot=2))
    assert layout.keys == Page((2, 2, 4, 8), (64, 32, 8, 1), 128 + 3)
    assert layout.values == Page((2, 16, 4), (64, 4, 1), 128 + 5)


@pytest.mark.parametrize(
    ("arrangement", "value_page", "page_strides"),
    [
        ("separate", 21 * 8, (19 * 8, 21 * 8)),
        ("kv_first", 19 * 8, (19 * 8, 19 * 8)),
        ("blocks_first", 19 * 8, (2 * 19 * 8, 2 * 19 * 8)),
        ("heads_first", 21 * 8, (19 * 8, 21 * 8)),
    ],
)
def test_arrangements_by_hand(arrangement: CacheArrangement, value_page: int, page_strides: tuple[int, int]) -> None:
    layout = ROWS.layout(HEADS, 4, "float32", Strides(cache=arrangement, cache_slot=3, value_slot=2))
    assert layout.values.elements == value_page
    assert layout.page_strides == page_strides
    assert layout.one_allocation == (arrangement in ("kv_first", "blocks_first"))


@pytest.mark.parametrize("cache", [ROWS, SPLIT], ids=["rows", "split"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("padding", [0, 3])
def test_elements_of_a_page_are_distinct_and_inside_of_it(cache: CacheFormat, dtype: DTypeName, padding: int) -> None:
    for arrangement in cache.arrangements:
        layout = cache.layout(HEADS, 5, dtype, Strides(cache=arrangement, cache_slot=padding))
        for page in (layout.keys, layout.values):
            found = offsets(page)
            assert len(set(found)) == len(found) == 5 * 2 * 16
            assert 0 <= min(found) <= max(found) < page.elements


@pytest.mark.parametrize("cache", [ROWS, SPLIT], ids=["rows", "split"])
def test_axes_put_slots_and_heads_first(cache: CacheFormat) -> None:
    layout = cache.layout(HEADS, 5, "float32", Strides())
    for page, axes in ((layout.keys, cache.key_axes), (layout.values, cache.value_axes)):
        shape = (7, *page.shape)
        assert sorted(axes) == list(range(len(shape)))
        assert [shape[axis] for axis in axes[:3]] == [7, 5, 2]


def test_pieces_hold_16_bytes() -> None:
    assert {SPLIT.piece(dtype) * DTYPES[dtype].bytes for dtype in DTYPES} == {16}
    assert {ROWS.piece(dtype) for dtype in DTYPES} == {1}


def test_only_split_caches_refuse_heads_first() -> None:
    assert set(ROWS.arrangements) == set(get_args(CacheArrangement))
    assert set(ROWS.arrangements) - set(SPLIT.arrangements) == {"heads_first"}
