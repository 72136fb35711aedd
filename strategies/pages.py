"""Pages: block sizes, and the order of the pages of a case."""

from __future__ import annotations

from functools import lru_cache

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument
from msgspec.structs import replace

from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import LARGEST_FIRST_BLOCK, PageLayout
from fuzz_attn.strategies.draws import composite, lattice, sampled_from

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
    return replace(pages, extra_columns=pages.extra_columns + more)


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
