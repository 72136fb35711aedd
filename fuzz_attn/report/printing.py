"""Printing with rich: on a terminal, as text without colours elsewhere (pipes, files, pytest), and as SVG pictures."""

from __future__ import annotations

import io
import re
import unicodedata
from pathlib import Path
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from fuzz_attn.errors import OutputError

WIDTH: Final = 110
PIPE_SECONDS: Final = 10.0
"""How often progress is printed where the output is no terminal."""

_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of characters that control a terminal, change the direction of a text, end a line or have no shape."""
_COMMAND: Final = re.compile(r"^([^\S\n]*):(?=:)|(?<=#)#(?=\[)", re.MULTILINE)
"""The character that makes a line a command of GitHub Actions: ``::`` at its beginning, ``##[`` anywhere."""


def console(*, stderr: bool = False) -> Console:
    """Return a console that reads no text as markup."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def visible(text: str) -> str:
    """Return a text in which characters that are not seen, or that change how others are seen, are escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(each) if each not in "\n\t" and _is_invisible(each) else each for each in text)


def safe(text: str) -> str:
    """Return a text of others for a person to read: all of it is visible, and no line is a command of GitHub Actions.

    Every text of a target, a file or a log passes here or :func:`visible` before it is shown, but for JSON.
    """
    return _without_commands(visible(text))


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) in _INVISIBLE


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _without_commands(text: str) -> str:
    return _COMMAND.sub(lambda found: f"{found[1] or ''}{_escape(found[0][-1])}", text)


class _Safe:
    """A renderable whose text is made safe when it is printed: what a terminal shows may be the log of a workflow."""

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
    return _without_commands("\n".join(line.rstrip() for line in out.getvalue().splitlines()))


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


_FONTS: Final = re.compile(r"\s*@font-face\s*\{.*?\}", re.DOTALL)
"""Fonts that rich would load from a network; without them a reader's own fixed-width font is used."""
_COLUMN: Final = 12.2
"""Width of a column of the terminal, in the units of the picture."""
_BUTTONS: Final = 92
"""Where the title may begin, right of the buttons."""
_WIDEST: Final = 11.6
"""Mean width of the title's characters in a wide font, at 18 units and bold."""


def save_picture(renderable: RenderableType, path: Path, *, title: str) -> None:
    """Write the report to a file as rich draws it on a terminal, with a title bar.

    Raises :class:`OutputError` if the file cannot be written.
    """
    recorded = _recorded(renderable)
    drawn = _FONTS.sub("", recorded.export_svg(title=_fitting(title, recorded)))
    try:
        path.write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


def _fitting(title: str, recorded: Console) -> str:
    """Return a title without its middle where it would reach the buttons left of it; rich centres it."""
    shown = safe(title)
    room = int((recorded.width * _COLUMN - 2 * _BUTTONS) / _WIDEST)
    kept = room // 3
    return shown if len(shown) <= room else f"{shown[:kept]}…{shown[len(shown) - (room - kept - 1) :]}"


def _recorded(renderable: RenderableType) -> Console:
    width = max(WIDTH, *map(len, text_of(renderable).splitlines()))  # a path or a command is not wrapped
    console = Console(file=io.StringIO(), record=True, width=width, force_terminal=True)
    show(console, renderable)
    return console
