"""A report as an SVG picture of a terminal, for documents."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Final

from rich.console import Console, RenderableType

from fuzz_attn.errors import OutputError
from fuzz_attn.report.plain_text import WIDTH, safe, show, text_of

_FONTS: Final = re.compile(r"\s*@font-face\s*\{.*?\}", re.DOTALL)
"""Fonts that rich would load from a network; without them a reader's own fixed-width font is used."""
_ADDRESSES: Final = re.compile(r"<!--.*?-->|xmlns=\"[^\"]*\"", re.DOTALL)
"""What else an SVG of rich names of the network: rich itself, and the language's name space."""

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


def inline_picture(renderable: RenderableType, *, title: str, name: str) -> str:
    """Return the same picture to put into a page: without addresses of fonts, and with names that begin with ``name``.

    The page must say what it shows to those who cannot see it.
    """
    recorded = _recorded(renderable)
    svg = recorded.export_svg(title=_fitting(title, recorded), unique_id=name)
    style, end, drawing = _FONTS.sub("", svg).partition("</style>")
    return _ADDRESSES.sub("", style).strip() + end + drawing.strip()


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
