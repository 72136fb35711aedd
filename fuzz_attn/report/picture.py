"""A report as an SVG picture of a terminal, for documents."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console, RenderableType

from fuzz_attn.report.plain_text import WIDTH, safe, show, text_of


def save_picture(renderable: RenderableType, path: Path, *, title: str) -> None:
    """Write the report to a file as rich draws it on a terminal, with a title bar."""
    width = max(WIDTH, *map(len, text_of(renderable).splitlines()))  # a path or a command is not wrapped
    console = Console(file=io.StringIO(), record=True, width=width, force_terminal=True)
    show(console, renderable)
    path.write_text(console.export_svg(title=safe(title)), encoding="utf-8")
