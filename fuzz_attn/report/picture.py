"""A report as an SVG picture of a terminal, for documents."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console, Group, RenderableType

from fuzz_attn.report.plain_text import WIDTH


def save_picture(renderable: RenderableType, path: Path, *, title: str) -> None:
    """Write the report to a file as rich draws it on a terminal, with a title bar."""
    console = Console(file=io.StringIO(), record=True, width=WIDTH, force_terminal=True)
    console.print(Group(renderable), highlight=False)
    path.write_text(console.export_svg(title=title), encoding="utf-8")
