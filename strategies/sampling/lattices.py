"""Lattices: tables of the sizes worth trying, from which one draw takes one value."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from hypothesis import strategies as st

from fuzz_attn.strategies.sampling.draws import sampled_from

DENSE = 18
"""Every table holds each length below this once, so that small lengths have the same index under every compile key."""

EVEN = 256
"""Hypothesis draws integers from a range of this width evenly."""


def lattice(values: Iterable[int], *, bounds: tuple[int, ...], simplest: int) -> tuple[int, ...]:
    """Return the values within a domain's bounds and the bounds themselves: the simplest one, then ascending.

    ``bounds`` is as in :class:`fuzz_attn.case.domain.Domain`: two values are an inclusive range, any other number of
    values is a list. Where ``simplest`` lies outside, the smallest value comes first.
    """
    chosen = set(bounds)
    if len(bounds) == 2:
        chosen |= {value for value in values if bounds[0] <= value <= bounds[1]}
    ascending = sorted(chosen)
    if simplest in chosen:
        ascending.remove(simplest)
        ascending.insert(0, simplest)
    return tuple(ascending)


def around(*edges: int) -> set[int]:
    """Return each edge with its two neighbours, without negative ones."""
    return {edge + step for edge in edges for step in (-1, 0, 1) if edge + step >= 0}


def multiples(*units: int, times: Iterable[int]) -> set[int]:
    """Return the multiples of every unit, each with its two neighbours."""
    return {length for time in times for unit in units for length in around(time * unit)}


def ladder(edges: Iterable[int], *, first: int, last: int, repeat: int = 2) -> tuple[int, ...]:
    """Return ``first`` to ``DENSE - 1`` once each, then the edges up to ``last``, ``repeat`` times each, ascending."""
    above = sorted(edge for edge in set(edges) if DENSE <= edge <= last for _ in range(repeat))
    return (*range(first, min(DENSE, last + 1)), *above)


@lru_cache(maxsize=4096)
def indices(size: int) -> st.SearchStrategy[int]:
    """Return a strategy of the indices of a table; shrinks towards 0.

    Not ``integers``, which prefers the ends of a range longer than 127.
    """
    return sampled_from(range(size))


def draw_index(draw: st.DrawFn, size: int) -> int:
    """Draw an index into a table of any size, evenly; shrinks towards 0.

    It is drawn as two digits, because Hypothesis favours integers up to 256 within any wider range.
    """
    digits = -(-size // EVEN)
    width = -(-size // digits)
    return min(draw(indices(digits)) * width + draw(indices(width)), size - 1)
