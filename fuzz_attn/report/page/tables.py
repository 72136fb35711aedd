"""Tables and figures of a page as plain data, which the templates write as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from markupsafe import Markup

MOST_ROWS: Final = 200
"""A longer table is cut, and says so."""


@dataclass(frozen=True)
class Cell:
    """A cell; ``mark`` names the style of one that stands out: ``bad``, ``gap``, ``good`` or ``quiet``."""

    text: str
    mark: str = ""


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
