"""Print with rich on a terminal, and as text without colours elsewhere: pipes, files, pytest's reports."""

from __future__ import annotations

import io
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

WIDTH: Final = 110
PIPE_SECONDS: Final = 10.0
"""How often progress is printed where the output is no terminal."""


_ESCAPES: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Control characters as visible text: a target's message must not reach the terminal as an escape sequence."""


def console(*, stderr: bool = False) -> Console:
    """Return a console that reads no text as markup."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def safe(text: str) -> str:
    """Return a text with its control characters made visible."""
    return text.translate(_ESCAPES)


class _Safe:
    """A renderable whose text has its control characters made visible when it is printed."""

    def __init__(self, renderable: RenderableType) -> None:
        self._group = Group(renderable)  # rich joins bare texts into one text that it may wrap

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text, style, control in console.render(self._group, options):
            yield Segment(text if control else safe(text), style, control)


def text_of(renderable: RenderableType, width: int = WIDTH) -> str:
    """Return the text, wrapped to ``width`` columns, without trailing blanks."""
    out = io.StringIO()
    printer = Console(file=out, width=width, no_color=True, markup=False, emoji=False)
    printer.print(_Safe(renderable), highlight=False, crop=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def show(console: Console, renderable: RenderableType) -> None:
    """Print with colours on a terminal, and as text elsewhere."""
    if console.is_terminal:
        console.print(_Safe(renderable), markup=False, emoji=False, highlight=False, crop=False)
    else:
        console.file.write(text_of(renderable, console.width) + "\n")
        console.file.flush()


def whole(text: str, style: str = "") -> Text:
    """Return a line that is never wrapped, such as a path or a command to copy."""
    return Text(text, style=style, no_wrap=True, overflow="ignore")


def count(number: int, noun: str, plural: str = "") -> str:
    """Return ``1 case`` or ``2 cases``."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or f'{noun}s'}"
