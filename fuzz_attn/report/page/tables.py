"""Tables of a page as plain data, and how numbers are written there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from markupsafe import Markup

MOST_ROWS: Final = 200
"""A longer table is cut, and says so."""


@dataclass(frozen=True)
class Cell:
    """A cell; ``mark`` names the style of one that stands out: ``bad``, ``gap``, ``good`` or ``quiet``.

    ``link`` is an address that its text leads to, and ``bar`` the length of a bar beside it, in per cent.
    """

    text: str
    mark: str = ""
    link: str = ""
    bar: float = 0.0


Row: TypeAlias = Sequence[Cell | str | int]


@dataclass(frozen=True)
class Table:
    """A table whose first column heads its rows. ``numbers`` are the columns of numbers, aligned to the right."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers: frozenset[int] = frozenset()
    cut: int = 0
    """Rows that are not shown."""


@dataclass(frozen=True)
class Figure:
    """A chart; ``words`` say what it shows to a reader who cannot see it, and ``table`` holds its numbers."""

    title: str
    svg: Markup
    words: str
    table: Table


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Row],
    *,
    numbers: Iterable[int] = (),
    most: int = MOST_ROWS,
) -> Table:
    """Return a table of at most ``most`` rows."""
    every = [tuple(each if isinstance(each, Cell) else Cell(str(each)) for each in row) for row in rows]
    return Table(caption, tuple(head), tuple(every[:most]), frozenset(numbers), max(0, len(every) - most))


def bars(caption: str, what: str, unit: str, counts: Sequence[tuple[str, float]], marked: Sequence[bool] = ()) -> Table:
    """Return a table with a bar for each number: what others draw as a histogram, with whole labels."""
    largest, total = max((count for _, count in counts), default=0), sum(count for _, count in counts)
    marks = marked or [False] * len(counts)
    rows = (
        (
            label,
            Cell(_written(count), "bad" if mark and count else "", bar=100 * count / (largest or 1)),
            share(count, total),
        )
        for (label, count), mark in zip(counts, marks, strict=True)
    )
    return table(caption, (what, unit, "share"), rows, numbers=(1, 2))


def _written(value: float) -> str:
    return number(value) if isinstance(value, int) else f"{value:.1f}"


def share(part: float, whole: float) -> str:
    """Return a part in per cent; more than nothing is not 0%."""
    if not whole:
        return "none"
    if not part:
        return "0%"
    return "under 1%" if part / whole < 0.01 else f"{part / whole:.0%}"


def number(value: int) -> str:
    """Return a number with a thin space between thousands."""
    return f"{value:,}".replace(",", "\u202f")
