"""Wrong slots: by which arithmetic of pages and places tokens get into the slots where they are found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

FEWEST: Final = 3
"""Tokens that must be where an arithmetic puts them: fewer may be there by chance."""


class Place(NamedTuple):
    """Where a token is found: its index, the slot that it should have, the one that holds it, and the page size."""

    token: int
    slot: int
    held: int
    page_size: int


_MISTAKES: Final[dict[str, Callable[[Place], int]]] = {
    "each token is written to the slot of its own index, and not to that of the mapping": lambda at: at.token,
    "the number of the page and the place in it are exchanged": lambda at: (
        at.slot % at.page_size * at.page_size + at.slot // at.page_size
    ),
    "slots are counted in pages of one place less": lambda at: _in_pages_of(at, at.page_size - 1),
    "slots are counted in pages of one place more": lambda at: _in_pages_of(at, at.page_size + 1),
    "the page is that of pages of one place less": lambda at: _page_of(at, at.page_size - 1),
    "the page is that of pages of one place more": lambda at: _page_of(at, at.page_size + 1),
    "every token is written to the first page": lambda at: at.slot % at.page_size,
    "every token is written to the first place of its page": lambda at: at.slot // at.page_size * at.page_size,
    "each token is written to the slot behind its own": lambda at: at.slot + 1,
    "each token is written to the slot before its own": lambda at: at.slot - 1,
    "each token is written to the page behind its own": lambda at: at.slot + at.page_size,
    "each token is written to the page before its own": lambda at: at.slot - at.page_size,
}


def _in_pages_of(at: Place, size: int) -> int:
    """Return the slot whose page and place are those of a slot in pages of another size."""
    return at.slot // size * at.page_size + at.slot % size if size else -1


def _page_of(at: Place, size: int) -> int:
    """Return the slot with the right place, in the page of a slot in pages of another size."""
    return at.slot // size * at.page_size + at.slot % at.page_size if size else -1


def mistakes_of_slots(places: Iterable[Place]) -> list[str]:
    """Return the arithmetics, in words, that put all of some tokens where they are found.

    >>> mistakes_of_slots([Place(0, 3, 4, 16), Place(1, 9, 10, 16), Place(2, 20, 21, 16)])
    ['each token is written to the slot behind its own']
    >>> mistakes_of_slots([Place(0, 3, 4, 16)])
    []
    """
    found = {place for place in places if place.held != place.slot or place.token != place.slot}
    wrong = [place for place in found if place.held != place.slot]
    if len(wrong) < FEWEST:
        return []
    return [words for words, slot in _MISTAKES.items() if all(slot(place) == place.held for place in found)]
