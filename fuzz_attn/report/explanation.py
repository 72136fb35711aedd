"""The explanation of a failure: what the kernel did wrong in words, and the weights that show it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from fuzz_attn.forensics.explanation import Explanation
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
    if explanation.heatmap is not None:
        parts.append(heatmap.render(explanation.heatmap))
    parts.append(Text(f"Found with {count(explanation.launches, 'more launch', 'more launches')}.", "dim"))
    return Group(*parts)
