"""The explanation of a failure: what the kernel did wrong in words, and the weights that show it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from fuzz_attn.forensics.explanation import Explanation, FirstOperation
from fuzz_attn.report import heatmap
from fuzz_attn.report.plain_text import count, whole


def render(explanation: Explanation) -> RenderableType:
    """Return the findings, the most telling first, the larger case that they are about, if so, and the weights."""
    parts: list[RenderableType] = []
    for number, finding in enumerate(explanation.findings):
        title = "Why" if number == 0 else "Also"
        parts.append(whole("").append(f"{title}: {finding.reason}", "bold red" if number == 0 else "bold"))
        parts.append(Text(f"  {finding.words}"))
    if explanation.longer:
        parts.append(Text(f"Seen in a larger case of the same kind: {explanation.longer}"))
    if explanation.operation is not None:
        parts += _operation(explanation.operation)
    if explanation.heatmap is not None:
        parts.append(heatmap.render(explanation.heatmap))
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
