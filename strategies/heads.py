"""Heads: head sizes, group sizes, and how many KV heads a case has."""

from __future__ import annotations

from functools import lru_cache

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument
from msgspec.structs import replace

from fuzz_attn.case.attention_case import CompileKey
from fuzz_attn.case.domain import Domain, sizes_of, within
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import DTypes, HeadLayout
from fuzz_attn.case.serving import serves
from fuzz_attn.strategies.draws import composite, indices, lattice, sampled_from

HEAD_SIZES = (1, 2, 3, 8, 15, 16, 17, 24, 32, 33, 40, 48, 63, 64, 65, 72, 80, 96, 112, 120, 128, 160, 192, 256)
"""The sizes that models use, the powers of two that a kernel pads to, and their neighbours."""

SPLIT_HEAD_SIZES = (4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64, 72, 80, 96, 112, 120, 128, 144, 160, 192, 256)
"""The same for split caches, which divide a head into pieces of 4, 8 or 16 elements."""

GROUP_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 32, 33, 64)
"""Query heads for each KV head: MHA, the ratios of published models, and both sides of 16 rows."""

VALUE_SIZES = (1, 8, 16, 17, 33, 64, 128, 192)
"""Sizes of values: powers of two and some between them, for keys on either side."""

SIMPLER_VALUE_SIZES = (0, 16, 8)
"""What the size of a value shrinks towards: that of a key, one block, a padded one."""

SIMPLER_HEAD_SIZES = (16, 8, 24, 32)
"""What a head size shrinks towards: one block, padded, padded beyond one block, two blocks."""

SIMPLER_GROUP_SIZES = (1, 2, 3, 17)
"""What a group size shrinks towards: no group, even, odd, more than 16 rows."""

MAX_QUERY_HEADS = 64
MAX_ROW_ELEMENTS = 1024
KV_HEADS = (1, 1, 1, 2, 2, 2, 3, 3, 4, 8)
SERVED_KV_HEADS = (1, 1, 1, 1, 1, 1, 1, 2, 2, 4)
MOST_KV_HEADS = 8
MANY_KV_HEADS = (
    *(*range(5, 21), 23, 24, 25, 28, 31, 32, 33, 36, 40, 48, 56, 63, 64, 65, 72, 80, 96, 112, 127, 128, 129, 160, 200),
    *(255, 256, 257, 320, 400, 511, 512),
)
MOST_QUERY_HEADS, MOST_ROW_ELEMENTS = 1024, 2**14
"""Bounds of a few cases with more heads: query heads, and their elements of one token."""
MOST_PAGE_ELEMENTS = 2**17
"""The same for the elements of a page."""
RARITY = 4
"""How often the table repeats the usual numbers of KV heads; it has ``MOST_KV_HEADS`` once."""


def head_sizes(*, domain: Domain = Domain()) -> tuple[int, ...]:  # noqa: B008 (frozen)
    """Return the head sizes worth trying in a domain, the simplest first."""
    piece = min(FAMILIES[domain.family].cache.piece(dtype) for dtype in domain.dtypes)
    chosen = lattice(SPLIT_HEAD_SIZES if piece > 1 else HEAD_SIZES, bounds=domain.head_sizes, simplest=16)
    sizes = tuple(size for size in chosen if size % piece == 0)
    return sizes or tuple(size for size in sizes_of(domain.head_sizes) if size % piece == 0)


def head_allowed(head_size: int, *, dtypes: DTypes, domain: Domain) -> bool:
    """Return whether the domain's caches can hold heads of a size: split caches divide them into whole pieces."""
    return head_size % FAMILIES[domain.family].cache.piece(dtypes.kv) == 0


def value_sizes(*, domain: Domain = Domain()) -> tuple[int, ...]:  # noqa: B008 (frozen)
    """Return the sizes of values worth trying in a domain, 0 (that of keys) first."""
    if not domain.allows("head_size_v"):
        return (0,)
    return (0, *lattice(VALUE_SIZES, bounds=domain.value_sizes, simplest=16))


def value_allowed(value_size: int, head_size: int, *, domain: Domain) -> bool:
    """Return whether values have a size beside keys of a size, 0 for theirs: not a larger one where they are parts."""
    if not domain.allows("head_size_v"):
        return True
    size = value_size or head_size
    return within(size, domain.value_sizes) and (size <= head_size or not FAMILIES[domain.family].cache.is_latent)


def group_sizes(*, domain: Domain = Domain()) -> tuple[int, ...]:  # noqa: B008 (frozen)
    """Return the group sizes worth trying in a domain, the simplest first."""
    return lattice(GROUP_SIZES, bounds=domain.group_sizes, simplest=1)


_RARELY = sampled_from((0,) * 21 + (1,))
_PLACES = indices(len(MANY_KV_HEADS))


def head_layouts(*, num_queries_per_kv: int = 1, head_size: int = 16) -> st.SearchStrategy[HeadLayout]:
    """Return a strategy of layouts with the given group and head size; shrinks towards one KV head.

    There are up to 8 KV heads, and nearly always fewer where more than 16 query heads or rows of more than 1024
    elements would make the case slow. Up to 64 query heads there may be two KV heads, since a single one cannot show
    which one was read. One in 22 cases has more, up to 512 KV heads and 1,024 query heads.
    """
    if num_queries_per_kv < 1 or head_size < 1:
        raise InvalidArgument(f"{num_queries_per_kv=} and {head_size=} must be at least 1")
    return _head_layouts(num_queries_per_kv, head_size, MOST_ROW_ELEMENTS, served=False)


def heads_of(key: CompileKey) -> st.SearchStrategy[HeadLayout]:
    """Return the strategy of head layouts of a compile key; most served models have one KV head or two."""
    longest = MOST_PAGE_ELEMENTS // key.block_size
    if FAMILIES[key.family].cache.is_latent:
        return _one_kv_head(key.num_queries_per_kv, key.head_size, key.value_size)
    layouts = _head_layouts(key.num_queries_per_kv, key.widest, longest, served=serves(key))
    return _with_values(layouts, key.head_size, key.value_size) if key.value_size else layouts


@lru_cache(maxsize=4096)
def _one_kv_head(group: int, head_size: int, value_size: int) -> st.SearchStrategy[HeadLayout]:
    return sampled_from((HeadLayout(1, group, head_size, value_size),))


@composite
def _with_values(
    draw: st.DrawFn, layouts: st.SearchStrategy[HeadLayout], head_size: int, value_size: int
) -> HeadLayout:
    return replace(draw(layouts), head_size=head_size, value_size=value_size)


@lru_cache(maxsize=4096)
def _head_layouts(group: int, head_size: int, longest: int, *, served: bool) -> st.SearchStrategy[HeadLayout]:
    table = SERVED_KV_HEADS if served else KV_HEADS
    most = max(16, min(2 * group, MAX_QUERY_HEADS)) // group
    counts = [count for count in table if count <= min(most, max(2, MAX_ROW_ELEMENTS // head_size))] or [1]
    largest = min(MOST_QUERY_HEADS // group, MOST_ROW_ELEMENTS // (group * head_size), longest // head_size)
    many = [count for count in MANY_KV_HEADS if counts[-1] < count <= largest]
    # Repeated for large groups too: an index must mean the same when shrinking simplifies the group.
    counts = sorted(counts * RARITY)
    if MOST_KV_HEADS * group <= MAX_QUERY_HEADS:
        counts.append(MOST_KV_HEADS)
    usual = [HeadLayout(num_kv_heads=count, num_queries_per_kv=group, head_size=head_size) for count in counts]
    rare = [replace(usual[0], num_kv_heads=count) for count in many] or usual[:1]
    return _usual_or_rare(sampled_from(usual), tuple(rare))


@composite
def _usual_or_rare(draw: st.DrawFn, usual: st.SearchStrategy[HeadLayout], rare: tuple[HeadLayout, ...]) -> HeadLayout:
    """Return a usual layout, or in one of 22 draws a rare one; always three choices, which shrinking needs."""
    layouts = draw(usual), rare[draw(_PLACES) * len(rare) // len(MANY_KV_HEADS)]
    return layouts[draw(_RARELY)]
