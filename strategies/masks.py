"""Masks: strategies of which keys a query token may see, beside a window."""

from __future__ import annotations

from functools import lru_cache

from hypothesis import strategies as st

from fuzz_attn.case.aspects import MASK_FEATURES
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import Sequence
from fuzz_attn.case.recipes import SIMPLEST, Chunks, Custom, Lookahead, Mask, MaskBits, MaskKind
from fuzz_attn.strategies.draws import around, sampled_from
from fuzz_attn.strategies.features import LARGEST_WINDOW


def mask_kinds(*, domain: Domain) -> tuple[MaskKind, ...]:
    """Return the kinds of masks of a domain, the simplest first."""
    return tuple(kind for kind in SIMPLEST if all(map(domain.allows, MASK_FEATURES[kind])))


def masks(
    *,
    kind: MaskKind = "causal",
    sequences: tuple[Sequence, ...] = (),
    tile_sizes: tuple[int, ...] = (16, 32, 64),
    domain: Domain = Domain(),  # noqa: B008 (frozen)
) -> st.SearchStrategy[Mask]:
    """Return a strategy of masks of a kind; shrinks towards its simplest one.

    Chunks and the keys seen behind a row's own end at and beside the edges of tiles and sequences; some rows see all
    keys behind theirs, as many as an int32 can say.
    """
    longest = max((sequence.seq_len for sequence in sequences), default=1)
    empty, poisoned = domain.allows("empty_rows"), domain.allows("hidden_poison")
    edges = tuple(sorted(edge for edge in around(*tile_sizes) if 0 < edge < longest))
    if kind == "lookahead" and FAMILIES[domain.family].cache.is_packed:
        return _two_sided(edges, longest)
    return _masks(kind, edges, longest, empty, poisoned)


@lru_cache(maxsize=4096)
def _two_sided(edges: tuple[int, ...], longest: int) -> st.SearchStrategy[Mask]:
    """Return windows of two sides as :func:`_masks` does, of which a fifth or more end with a row's own key."""
    sizes = (1, 2, 3, *edges, max(1, longest // 2), max(1, longest - 1), longest, LARGEST_WINDOW)
    return sampled_from([Lookahead(keys) for keys in (*sizes, *(0,) * (1 + len(sizes) // 4))])


def _far_ahead(longest: int) -> list[int]:
    """Return numbers of keys beside powers of two beyond all tiles, and between them, that hide something."""
    powers = [1 << place for place in range(7, longest.bit_length())]
    return sorted(keys for keys in (*around(*powers), *(power * 3 // 2 for power in powers)) if keys < longest) * 4


@lru_cache(maxsize=4096)
def _masks(
    kind: MaskKind, edges: tuple[int, ...], longest: int, empty: bool, poisoned: bool
) -> st.SearchStrategy[Mask]:
    sizes = (1, 2, 3, *edges, max(1, longest // 2), max(1, longest - 1))
    if kind == "lookahead":
        return sampled_from([Lookahead(keys) for keys in (*sizes, *_far_ahead(longest), 0, longest, LARGEST_WINDOW)])
    if kind == "chunks":
        return sampled_from([Chunks(size) for size in (*sizes, longest + 1)])
    if kind in ("custom", "custom_alone"):
        bits: tuple[MaskBits, ...] = ("random", "random", "tree", "tree", "blocks", "bottom_right")
        flags = [(False, False), *[(False, poisoned)] * 2, (empty, False), (empty, poisoned)]
        return sampled_from([Custom(each, kind == "custom", *flag) for each in bits for flag in flags])
    return sampled_from([SIMPLEST[kind]])
