"""Charts as SVG to put into a page, in the page's own colours: lines over time, and which pairs of features met."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from markupsafe import Markup, escape

_WIDTH, _HEIGHT = 380, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 12, 34
_MOST_POINTS: Final = 300
_MOST_NUMBERS: Final = 12
_SIDE, _LARGEST_CELL = 190, 24


class Line(NamedTuple):
    """The points of a line."""

    x: Sequence[float]
    y: Sequence[float]


def line_chart(line: Line, x_label: str, words: str, *, steps: bool = False, first: int = 0) -> Markup:
    """Return a line over axes with whole numbers, the upright one from 0 and the other from ``first`` on.

    With ``steps``, each value holds since the one before.
    """
    step = 1 + len(line.x) // _MOST_POINTS
    x, y = (_thinned(values, step) for values in (line.x, line.y))
    xs, ys = _from(first, ticks(max(x))), ticks(max(y))
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(at: float, value: float) -> str:
        return f"{across(at):.1f} {_TOP + high * (1 - value / ys[-1]):.1f}"

    def across(at: float) -> float:
        return _LEFT + wide * (at - first) / (xs[-1] - first)

    parts = [f'<path class="grid" d="M{place(first, tick)}h{wide}"/>' for tick in ys]
    parts += [
        f'<text text-anchor="end" x="{_LEFT - 6}" y="{_TOP + high * (1 - tick / ys[-1]) + 4:.1f}">{short(tick)}</text>'
        for tick in ys
    ]
    parts += [
        f'<text text-anchor="middle" x="{across(tick):.1f}" y="{_HEIGHT - 18}">{short(tick)}</text>' for tick in xs
    ]
    parts.append(f'<text text-anchor="middle" x="{_LEFT + wide / 2:g}" y="{_HEIGHT - 3}">{escape(x_label)}</text>')
    points = [place(*point) for point in zip(x, y, strict=True)]
    if steps:
        held = [f"{place(at, value)}L{place(to, value)}" for at, to, value in zip(x, x[1:], y[1:], strict=False)]
        points = held or points
    parts.append(f'<path class="line" d="M{"L".join(points)}"/>')
    if len(x) < 20 and not steps:
        parts += [f'<circle r="3" cx="{point.split()[0]}" cy="{point.split()[1]}"/>' for point in points]
    return _svg(parts, words, _WIDTH, _HEIGHT)


def _from(first: int, numbers: list[float]) -> list[float]:
    """Return where the lower axis has a number: at each from ``first`` on if they are few."""
    if not first:
        return numbers
    last = max(first + 1, math.ceil(numbers[-1]))
    return (
        [*range(first, last + 1)]
        if last - first <= _MOST_NUMBERS
        else [first, *(each for each in numbers if each > first)]
    )


def _thinned(values: Sequence[float], step: int) -> list[float]:
    """Return every ``step``-th value, and the last one."""
    return [*values[:-1:step], *values[-1:]]


def ticks(largest: float) -> list[float]:
    """Return three to six whole numbers at equal distances from 0 to at least the largest value.

    >>> ticks(0), ticks(3), ticks(17), ticks(1000)
    ([0, 1], [0, 1, 2, 3], [0, 5, 10, 15, 20], [0, 200, 400, 600, 800, 1000])
    """
    if not math.isfinite(largest) or largest <= 1:
        return [0, 1]
    power = 10 ** math.floor(math.log10(largest))
    step = next(size for part in (0.1, 0.2, 0.5, 1, 2) if (size := part * power) * 5 >= largest)
    whole = max(1, math.ceil(step))
    return [whole * index for index in range(math.ceil(largest / whole) + 1)]


def short(value: float) -> str:
    """Return a number as an axis has it: ``250k``, ``1.5M``."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def pairs_chart(names: Sequence[str], counts: Sequence[Sequence[int | None]], words: str) -> Markup:
    """Return a triangle with a square for each pair of features: how often they met, never, or None if they cannot."""
    most = max((cases or 0 for row in counts for cases in row), default=0)
    cell = max(4, min(_LARGEST_CELL, _SIDE // max(1, len(names) - 1)))
    parts = []
    for index, row in enumerate(counts):
        for other, cases in enumerate(row):
            place = f'x="{other * cell + 0.5}" y="{(index - 1) * cell + 0.5}" width="{cell - 2}" height="{cell - 2}"'
            kind = "impossible" if cases is None else "met" if cases else "never"
            strength = f' fill-opacity="{0.3 + 0.7 * math.log1p(cases) / math.log1p(most):.2f}"' if cases else ""
            met = "cannot meet" if cases is None else f"{cases} cases"
            title = f"<title>{escape(names[index])} and {escape(names[other])}: {met}</title>"
            parts.append(f'<rect class="{kind}"{strength} {place}>{title}</rect>')
    side = max(1, len(names) - 1) * cell
    return _svg(parts, words, side, side, natural=True)


def _svg(parts: Sequence[str], words: str, width: int, height: int, *, natural: bool = False) -> Markup:
    """Return a drawing with a text for those who cannot see it."""
    size = f' width="{width}" height="{height}"' if natural else ""
    opening = f'<svg class="chart" role="img" aria-label="{escape(words)}" viewBox="0 0 {width} {height}"{size}>'
    return Markup(f"{opening}{''.join(parts)}</svg>")  # noqa: S704 - numbers, and texts that are escaped
