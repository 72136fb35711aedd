"""The text of an explanation: what the kernel did wrong in words, and the weights that show it as a heatmap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from rich.console import Group, RenderableType
from rich.text import Text

from fuzz_attn.forensics.explanation import Explanation, FirstOperation, Heatmap
from fuzz_attn.report.printing import count, whole

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


def render_heatmap(heatmap: Heatmap) -> RenderableType:
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


def render(explanation: Explanation) -> RenderableType:
    """Return the findings, the most telling first, the larger case that they are about, if so, and the weights."""
    parts: list[RenderableType] = []
    for number, finding in enumerate(explanation.findings):
        title = "Why" if number == 0 else "Also"
        parts.append(whole("").append(f"{title}: {finding.reason}", "bold red" if number == 0 else "bold"))
        parts.append(Text(f"  {finding.words}"))
    if explanation.repair is not None:
        parts.append(Text(f"{explanation.repair.sentence}."))
        parts.append(Text(f"  {explanation.repair.source}", "dim"))
    if explanation.longer:
        parts.append(Text(f"Seen in a larger case of the same kind: {explanation.longer}"))
    if explanation.only_with:
        parts.append(Text(f"It is {explanation.only_with}."))
    if explanation.operation is not None:
        parts += _operation(explanation.operation)
    if explanation.heatmap is not None:
        parts.append(render_heatmap(explanation.heatmap))
    parts.append(Text(f"Found with {count(explanation.launches, 'more launch', 'more launches')}.", "dim"))
    return Group(*parts)


def _operation(found: FirstOperation) -> Iterator[RenderableType]:
    """Yield the first operation that differs from a healthy kernel, or why none is named."""
    title = "Compared with the healthy kernel"
    if found.site:
        title = f"First operation that differs: {_short(found.site)}"
        yield whole("").append(title, "bold").append(f", {found.where}")
        yield Text(f"  {found.source}")
    else:
        yield whole("").append(title, "bold")
    yield Text(f"  {found.words}")
    for words, lines in (("Only here", found.own_lines), ("Only in the healthy kernel", found.healthy_lines)):
        for line in lines:
            yield Text(f"  {words}: {_short(line)}")
    for note in found.notes:
        yield Text(f"  Also: {note}")


def _short(line: str) -> str:
    """Return a line with the last part of its file's path only."""
    place, colon, text = line.partition(": ")
    return place.rpartition("/")[2] + colon + text
