"""Heatmap: attention weights as text, a row for each query and a column for each key, the mask's edges drawn."""

from __future__ import annotations

from typing import Final, TypeAlias

from rich.console import Group, RenderableType
from rich.text import Text

from fuzz_attn.forensics.explanation import Heatmap
from fuzz_attn.report.plain_text import whole

BLOCKS: Final = "▁▂▃▄▅▆▇█"
"""Weights by their share of the largest weight of the row."""
Weights: TypeAlias = tuple[float, ...]
"""The weights of a row."""
NOTHING: Final = "·"
HIDDEN: Final = " "
UNREAD: Final = "?"
EDGE: Final = "│"
SAME: Final = 0.02
"""Weights closer than this share of the row's largest one are drawn as equal."""


def render(heatmap: Heatmap) -> RenderableType:
    """Return both grids, the weights that the kernel used above the right ones, with what they show."""
    scores = ", with all scores equal" * heatmap.uniform
    title = f"Weights of head {heatmap.head} in sequence {heatmap.sequence}{scores}"
    legend = (
        f"A column is a key, a bar its weight beside the largest of the row, {NOTHING} a weight of 0; {EDGE} is the "
        "edge of what the row sees. Red bars are wrong."
    )
    return Group(
        Text(title, "bold"),
        *_grid(heatmap, heatmap.actual, "used"),
        *_grid(heatmap, heatmap.expected, "right"),
        Text(legend, "dim"),
    )


def _grid(heatmap: Heatmap, weights: tuple[Weights, ...], name: str) -> list[RenderableType]:
    lines: list[RenderableType] = [_axis(heatmap, name)]
    for number, query in enumerate(heatmap.queries):
        rows = heatmap.actual[number], heatmap.expected[number]
        largest = max((*rows[0], *rows[1]), default=0.0)
        lines.append(_row(f"query {query}", weights[number], rows, heatmap.visible[number], largest))
    return lines


def _axis(heatmap: Heatmap, name: str) -> Text:
    """Return the numbers of the keys, one in eight, above their columns."""
    columns = len(heatmap.expected[0]) if heatmap.expected else 0
    numbers = ""
    for column in range(columns):
        key = heatmap.first_key + column
        if key % 8 == 0 or column == 0:
            numbers = numbers.ljust(2 * column + 1)[: 2 * column + 1] + str(key)
    return whole(f"{name:>10} ", "cyan").append(numbers, "dim not bold")


def _row(
    name: str,
    weights: tuple[float, ...],
    both: tuple[tuple[float, ...], tuple[float, ...]],
    visible: str,
    largest: float,
) -> Text:
    line = whole(f"{name:>10} ", "default")
    before = "0"
    for weight, used, right, seen in zip(weights, *both, visible, strict=True):
        line.append(EDGE if seen != before else " ", "yellow")
        wrong = abs(used - right) > SAME * largest
        line.append(_glyph(weight, largest, seen), "bold red" if wrong else "green")
        before = seen
    return line.append(EDGE if before == "1" else "", "yellow")


def _glyph(weight: float, largest: float, seen: str) -> str:
    if weight < 0:
        return UNREAD
    share = weight / largest if largest > 0 else 0.0
    if share < 0.01:
        return NOTHING if seen == "1" else HIDDEN
    return BLOCKS[min(len(BLOCKS) - 1, int(share * len(BLOCKS)))]
