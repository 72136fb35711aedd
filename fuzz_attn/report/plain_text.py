"""Print with rich on a terminal, and as text without colours elsewhere: pipes, files, pytest's reports."""

from __future__ import annotations

import io
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

WIDTH: Final = 110
PIPE_SECONDS: Final = 10.0
"""How often progress is printed where the output is no terminal."""


def text_of(renderable: RenderableType, width: int = WIDTH) -> str:
    """Return the text, wrapped to ``width`` columns, without trailing blanks."""
    # In a group, because rich joins bare texts into one text that it may wrap.
    out = io.StringIO()
    Console(file=out, width=width, no_color=True).print(Group(renderable), highlight=False, crop=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def show(console: Console, renderable: RenderableType) -> None:
    """Print with colours on a terminal, and as text elsewhere."""
    if console.is_terminal:
        console.print(Group(renderable), highlight=False, crop=False)
    else:
        console.file.write(text_of(renderable, console.width) + "\n")
        console.file.flush()


def whole(text: str, style: str = "") -> Text:
    """Return a line that is never wrapped, such as a path or a command to copy."""
    return Text(text, style=style, no_wrap=True, overflow="ignore")


def count(number: int, noun: str, plural: str = "") -> str:
    """Return ``1 case`` or ``2 cases``."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or f'{noun}s'}"
