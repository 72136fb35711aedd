"""Charts as SVG to put into a page: no script, no address, and the page's own colours and font.

matplotlib draws with placeholder colours, which are replaced by the variables of the style sheet. So one drawing is
right in light and dark.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

INK: Final = "#010203"
LINES: Final = "#010204"
SERIES: Final = ("#010205", "#010206", "#010207", "#010208")
_VARIABLES: Final = {
    INK: "var(--ink)",
    LINES: "var(--line)",
    **{colour: f"var(--series-{index})" for index, colour in enumerate(SERIES)},
}
_SETTINGS: Final[Any] = {  # its type lists all names of settings, and differs between versions
    "svg.fonttype": "none",
    "svg.hashsalt": "fuzz-attn",
    "font.size": 10.0,
    "text.parse_math": False,
}
_METADATA: Final = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_UNUSED: Final = re.compile(
    r"^.*?<svg.*?>|<(metadata|style|clipPath)\b.*?</\1>|<!--.*?-->"
    r"| (?:id|clip-path)=\"[^\"]*\"|font-family:[^;\"]*;? ?",
    re.DOTALL,
)
"""What a page does not need of matplotlib's SVG."""
_MOST_POINTS: Final = 400
_MOST_CHARACTERS: Final = 54
_WRAPPED: Final = 26
_WIDTH: Final = 4.6


class Line(NamedTuple):
    """A line of a chart: its name and its points."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def line_chart(lines: Sequence[Line], x_label: str, y_label: str, words: str, *, steps: bool = False) -> Markup:
    """Return lines over one axis that starts at 0; with ``steps``, each value holds since the point before."""
    with mpl.rc_context(_SETTINGS):
        figure, axes = _axes(2.3)
        for index, line in enumerate(lines):
            step = 1 + len(line.x) // _MOST_POINTS
            x, y = (_thinned(values, step) for values in (line.x, line.y))
            style = "steps-pre" if steps else "default"
            axes.plot(x, y, color=SERIES[index % len(SERIES)], label=line.name, lw=2, drawstyle=style)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        _label(axes, x_label, y_label)
        if len(lines) > 1:
            axes.legend(frameon=False, labelcolor=INK)
        return _svg(figure, words)


def _thinned(values: Sequence[float], step: int) -> list[float]:
    """Return every ``step``-th value, and the last one."""
    return [*values[:-1:step], *values[-1:]]


def bar_chart(
    labels: Sequence[str],
    counts: Sequence[float],
    x_label: str,
    y_label: str,
    words: str,
    *,
    marked: Sequence[bool] = (),
) -> Markup:
    """Return a bar for each label, marked ones in another colour; where there are many, some labels are left out."""
    with mpl.rc_context(_SETTINGS):
        figure, axes = _axes(2.1)
        colours = [SERIES[1] if each else SERIES[0] for each in marked] or SERIES[0]
        axes.bar(range(len(labels)), counts, color=colours, width=0.86)
        step = math.ceil(len(labels) * (max(map(len, labels)) + 2) / _MOST_CHARACTERS)
        axes.set_xticks(range(0, len(labels), step), labels[::step])
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        _label(axes, x_label, y_label)
        return _svg(figure, words)


def share_chart(labels: Sequence[str], counts: Sequence[float], x_label: str, words: str) -> Markup:
    """Return a lying bar for each label, the first on top."""
    with mpl.rc_context(_SETTINGS):
        wrapped = [textwrap.fill(label, _WRAPPED) for label in labels]
        figure, axes = _axes(0.7 + 0.2 * sum(1 + label.count("\n") for label in wrapped))
        axes.barh(range(len(labels)), counts, color=SERIES[0], height=0.7)
        axes.set_yticks(range(len(labels)), wrapped)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x", color=LINES, lw=0.7)
        _label(axes, x_label, "")
        return _svg(figure, words)


def _axes(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    axes.grid(visible=True, axis="y", color=LINES, lw=0.7)
    axes.tick_params(colors=INK, length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(LINES)
    return figure, axes


def _label(axes: Axes, x_label: str, y_label: str) -> None:
    axes.set_xlabel(x_label, color=INK)
    axes.set_ylabel(y_label, color=INK)


def short(value: float) -> str:
    """Return a number as an axis has it: ``250k``, ``1.5M``."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _svg(figure: Figure, words: str) -> Markup:
    """Return a figure as SVG with a text for those who cannot see it.

    Several charts share a page, so names are left out. Only clip paths use them, and nothing is drawn outside of those.
    """
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata=_METADATA)
    width, height = figure.get_size_inches() * 72
    inner = _UNUSED.sub("", out.getvalue())
    inner = re.sub(r"#01020[3-8]", lambda found: _VARIABLES[found[0]], inner)
    inner = re.sub(r"\s*\n\s*", " ", inner)
    opening = f'<svg role="img" aria-label="{escape(words)}" viewBox="0 0 {width:g} {height:g}">'
    return Markup(opening + inner)  # noqa: S704 - matplotlib escapes labels, and the words are escaped above
