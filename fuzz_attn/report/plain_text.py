"""What rich prints, as text without colours: for pytest's reports, pipes, snapshots and files."""

from __future__ import annotations

import io
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

WIDTH: Final = 110


def text_of(renderable: RenderableType, width: int = WIDTH) -> str:
    """Return the text without trailing blanks, at most ``width`` columns wide where it can be wrapped."""
    # Printed in a group, because rich joins bare texts into one that may be wrapped.
    out = io.StringIO()
    Console(file=out, width=width, no_color=True).print(Group(renderable), highlight=False, crop=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def show(console: Console, renderable: RenderableType) -> None:
    """Print on a terminal as it is, and anywhere else as text."""
    if console.is_terminal:
        console.print(Group(renderable), highlight=False, crop=False)
    else:
        console.file.write(text_of(renderable, console.width) + "\n")
        console.file.flush()


def whole(text: str, style: str = "") -> Text:
    """Return a line that is never wrapped: a path or a command that somebody will copy."""
    return Text(text, style=style, no_wrap=True, overflow="ignore")


def count(number: int, noun: str) -> str:
    """Return ``1 case`` or ``2 cases``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
