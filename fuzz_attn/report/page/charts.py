"""Charts as SVG to put into a page, in the page's own colours.

Lines over time, which pairs of features met, and the attention weights that show the cause of a failure.

They take their colours from the style sheet: what is wrong is red, what a row must see lies between two edges.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from markupsafe import Markup, escape

from fuzz_attn.oracle.verdict import Weights
from fuzz_attn.report.printing import count

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


SAME: Final = 0.02
"""Weights closer than this share of the row's largest one are drawn as equal."""
MOST_KEYS: Final = 40
MOST_ROWS: Final = 16
_SMALL_KEYS, _SMALL_ROWS, _SMALL = 14, 6, 7
_SQUARE: Final = 18
_GRID_LEFT, _GRID_TOP = 74, 34
_MOST_NAMED: Final = 3


class Row(NamedTuple):
    """The weights of one query: for each key the one that the kernel used, None if it is unread, and the right one."""

    query: int
    used: tuple[float | None, ...]
    right: tuple[float | None, ...]
    visible: tuple[bool, ...]

    @property
    def largest(self) -> float:
        """The largest weight of both."""
        return max((weight for weight in (*self.used, *self.right) if weight), default=1.0)

    def is_wrong(self, key: int) -> bool:
        """Return whether the kernel used another weight for a key than the right one, or none that is a number."""
        used, right = self.used[key], self.right[key]
        if used is None or right is None:
            return bool(used or right)
        return abs(used - right) > SAME * self.largest

    def is_cause(self, key: int) -> bool:
        """Return whether a key has a weight and must have none, or lacks it: other weights follow from that."""
        used, right = self.used[key], self.right[key]
        if used is None or right is None:
            return self.is_wrong(key)
        least = SAME * self.largest
        return (used > least) != (right > least)

    def part(self, keys: range) -> Row:
        """Return the row with some of its keys."""
        part = slice(keys.start, keys.stop)
        return Row(self.query, self.used[part], self.right[part], self.visible[part])


class Grid(NamedTuple):
    """Rows of weights for keys from ``first_key`` on."""

    first_key: int
    rows: tuple[Row, ...]

    @property
    def keys(self) -> int:
        """The number of columns."""
        return len(self.rows[0].used) if self.rows else 0

    @property
    def causes(self) -> list[tuple[Row, int]]:
        """The rows and keys of the weights that are wrong, without those that only follow from others."""
        places = [(row, key) for row in self.rows for key in range(self.keys)]
        causes = [(row, key) for row, key in places if row.is_cause(key)]
        return causes or [(row, key) for row, key in places if row.is_wrong(key)]


def grid_of(weights: Weights) -> Grid:
    """Return the numbers of the weights; of a log that somebody changed, those that fit together."""
    rows = []
    for query, used, right, visible in zip(weights.queries, weights.used, weights.right, weights.visible, strict=False):
        numbers, expected = ([None if each == "?" else float(each) for each in row.split()] for row in (used, right))
        length = min(len(numbers), len(expected), len(visible))
        seen = tuple(each == "1" for each in visible[:length])
        rows.append(Row(query, tuple(numbers[:length]), tuple(expected[:length]), seen))
    shortest = range(min((len(row.used) for row in rows), default=0))
    return Grid(weights.first_key, tuple(row.part(shortest) for row in rows))


def cropped(grid: Grid, keys: int, rows: int) -> Grid:
    """Return the part of a grid with what is wrong, what is seen or weighed there, and a column beside it."""
    told = [key for key in range(grid.keys) if any(_tells(row, key) for row in grid.rows)] or [0]
    low, high = max(0, told[0] - 1), min(grid.keys, told[-1] + 2)
    if high - low > keys:
        wrong = sorted({key for _, key in grid.causes}) or told
        low = max(low, min((wrong[0] + wrong[-1]) // 2 - keys // 2, high - keys))
        high = low + keys
    first = next((index for index, row in enumerate(grid.rows) if any(map(row.is_wrong, range(low, high)))), 0)
    top = max(0, min(first - 1, len(grid.rows) - rows))
    shown = range(low, high)
    return Grid(grid.first_key + low, tuple(row.part(shown) for row in grid.rows[top : top + rows]))


def _tells(row: Row, key: int) -> bool:
    return row.visible[key] or row.is_wrong(key) or bool(row.used[key]) or bool(row.right[key])


def sentence(grid: Grid) -> str:
    """Return what is wrong of the weights, for example ``Query 0 gives key 31 no weight where 0.167 is right``."""
    causes = grid.causes
    said = []
    for row, key in causes[:_MOST_NAMED]:
        used, right = row.used[key], row.right[key]
        weight = "no weight that is a number" if used is None else f"a weight of {used:g}" if used else "no weight"
        expected = f" where {right:g} is right" if right is not None else ""
        said.append(f"Query {row.query} gives key {grid.first_key + key} {weight}{expected}.")
    more = sum(row.is_wrong(key) for row in grid.rows for key in range(grid.keys)) - len(said)
    said += [f"{count(more, 'other weight is', 'other weights are')} wrong too."] * (more > 0)
    return " ".join(said) or "The weights are right within the precision of this picture."


def thumbnail(weights: Weights) -> Markup:
    """Return the weights that a kernel used as a small drawing, which the words beside it explain."""
    grid = cropped(grid_of(weights), _SMALL_KEYS, _SMALL_ROWS)
    if not grid.keys:
        return Markup()
    width, height = grid.keys * _SMALL, len(grid.rows) * _SMALL
    inner = "".join(_cells(grid, 1, 1, _SMALL, used=True))
    size = f'viewBox="0 0 {width + 2} {height + 2}" width="{width + 2}" height="{height + 2}"'
    return Markup(f'<svg class="weights" aria-hidden="true" {size}>{inner}</svg>')  # noqa: S704 - numbers only


def picture(weights: Weights) -> Markup:
    """Return the weights that a kernel used above those that are right, each row with the edges of what it sees."""
    grid = cropped(grid_of(weights), MOST_KEYS, MOST_ROWS)
    if not grid.keys:
        return Markup()
    panel = len(grid.rows) * _SQUARE
    width, height = _GRID_LEFT + grid.keys * _SQUARE + 12, 2 * (_GRID_TOP + panel) + 6
    inner = "".join((*_panel(grid, 0, "used", used=True), *_panel(grid, _GRID_TOP + panel, "right", used=False)))
    words = escape(f"Weights of head {weights.head} in sequence {weights.sequence}. {sentence(grid)}")
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return Markup(  # noqa: S704 - numbers, and words that are escaped
        f'<svg class="weights" role="img" aria-label="{words}" {size}>{inner}</svg>'
    )


def _panel(grid: Grid, top: int, name: str, *, used: bool) -> Iterator[str]:
    """Yield one grid under its name and the numbers of its keys, wrong ones in red, and the rest one in eight."""
    yield f'<text class="panel" x="0" y="{top + 26}">{name}</text>'
    yield f'<text text-anchor="end" x="{_GRID_LEFT - 8}" y="{top + 26}">key</text>'
    wrong = {key for _, key in grid.causes}
    order = [*sorted(wrong), *(key for key in range(grid.keys) if key not in wrong and (grid.first_key + key) % 4 == 0)]
    taken: set[int] = set()
    for key in order:
        if taken & {key - 1, key, key + 1}:
            continue
        taken.add(key)
        mark = ' class="bad"' if key in wrong else ""
        x = _GRID_LEFT + key * _SQUARE + _SQUARE / 2
        yield f'<text{mark} text-anchor="middle" x="{x:g}" y="{top + 26}">{grid.first_key + key}</text>'
    for index, row in enumerate(grid.rows):
        y = top + _GRID_TOP + index * _SQUARE
        yield f'<text text-anchor="end" x="{_GRID_LEFT - 8}" y="{y + 13}">query {row.query}</text>'
    yield from _cells(grid, _GRID_LEFT, top + _GRID_TOP, _SQUARE, used=used)


def _cells(grid: Grid, left: int, top: int, side: int, *, used: bool) -> Iterator[str]:
    causes = {(row.query, key) for row, key in grid.causes}
    for index, row in enumerate(grid.rows):
        weights = row.used if used else row.right
        y = top + index * side
        for key, weight in enumerate(weights):
            is_cause = (row.query, key) in causes
            kind = "fine" if not is_cause else "wrong" if used else "due"
            kind = "off" if used and not is_cause and row.is_wrong(key) else kind
            lost = weight is not None and weight <= SAME * row.largest
            frame = is_cause and row.is_cause(key) and (side > _SMALL or (used and lost))
            yield from _cell(left + key * side, y, side, weight, row.largest, kind, frame=frame)
        yield from _edges(row.visible, left, y, side)


def _cell(x: int, y: int, side: int, weight: float | None, largest: float, kind: str, *, frame: bool) -> Iterator[str]:
    """Yield a square as strong as its weight, perhaps in a frame."""
    gap = 1 if side > 10 else 0.5
    place = f'x="{x + gap:g}" y="{y + gap:g}" width="{side - 2 * gap:g}" height="{side - 2 * gap:g}"'
    share = 0.0 if weight is None else max(0.0, min(1.0, weight / largest))
    yield f'<rect class="empty" {place}/>'
    if weight is None:
        yield f'<rect class="{kind}{" unread" * (side > _SMALL or kind == "fine")}" {place}/>'
        if side > _SMALL:
            mark = "" if kind == "fine" else ' class="bad"'
            yield f'<text{mark} text-anchor="middle" x="{x + side / 2:g}" y="{y + 13}">?</text>'
    elif share >= 0.01:
        yield f'<rect class="{kind}" fill-opacity="{0.15 + 0.85 * share:.2f}" {place}/>'
    if frame:
        yield f'<rect class="frame {kind}" {place}/>'


def _edges(visible: Sequence[bool], left: int, y: int, side: int) -> Iterator[str]:
    """Yield a line wherever what a row sees begins or ends."""
    for key, (before, after) in enumerate(zip((False, *visible), (*visible, False), strict=True)):
        if before != after:
            x = left + key * side
            yield f'<path class="edge" d="M{x} {y}v{side}"/>'
