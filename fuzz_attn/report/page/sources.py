"""The source of the launched kernels: what a run never saw of the masks of each line, and the lines of failures."""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from fuzz_attn.backends.kernel_coverage import Mask
from fuzz_attn.foreign_files import content_of
from fuzz_attn.report import mask_gaps
from fuzz_attn.report.mask_gaps import Gap
from fuzz_attn.report.printing import safe

MOST_LINES: Final = 1500
"""A longer file is shown without the rest."""
MOST_BYTES: Final = 2**22
"""A larger file is not read."""
_AROUND: Final = 3
_AROUND_SITE: Final = 4
_READS: Final = ("load", "select")
_MOST_MASKS: Final = 8


@dataclass(frozen=True)
class SourceLine:
    """A line of a file: its text, what was not seen of its masks, and what explains that.

    ``masks`` is their number; ``number`` is 0 for a gap between lines.
    """

    number: int
    text: str
    masks: int = 0
    missing: tuple[str, ...] = ()
    explained: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceFile:
    """A file with masks; ``problem`` says why only the lines with masks are shown, if so."""

    name: str
    lines: tuple[SourceLine, ...]
    problem: str = ""

    @property
    def lacking(self) -> int:
        """The number of lines with an outcome that was not seen and that nothing explains."""
        return sum(bool(line.missing) for line in self.lines)


class Place(NamedTuple):
    """A place in the source in words, what lies there, and an address of the line, which may be empty."""

    words: str
    what: str = ""
    link: str = ""


class Excerpt(NamedTuple):
    """Some lines of a file under a title; those with ``missing`` are marked, and say it."""

    title: str
    place: Place
    lines: tuple[SourceLine, ...]


@dataclass(frozen=True)
class Places:
    """Finds places in the source for people.

    ``link`` is a template of addresses with ``{file}``, the path below the current folder, ``{path}``, the whole path,
    and ``{line}``. Without one, no place has an address.
    """

    link: str = ""

    def of_site(self, site: str) -> Place:
        """Return the place that a verdict names as ``file:line``."""
        file, line = _parted(site)
        return Place(safe(f"{_shown(file)}:{line}"), link=self._address(file, line))

    def of_kernels(self, masks: Sequence[Mask], target: str) -> Place:
        """Return the place of the only kernel that was launched, or else the name of the target's function."""
        kernels = {(mask.file, mask.kernel) for mask in masks}
        places = {
            (mask.kernel, mask.file, line)
            for mask in masks
            if (line := _definition(_text_of(Path(mask.file), [mask])[0], mask.kernel))
        }
        if len({kernel for _, kernel in kernels}) == 1 and len(places) == 1:
            ((kernel, file, line),) = places
            return Place(safe(f"{_shown(file)}:{line}"), safe(kernel), self._address(file, line))
        names = sorted({kernel for _, kernel in kernels})
        return Place(safe(" and ".join(names) if 0 < len(names) < 3 else target.rpartition(":")[2]))

    def excerpt(self, site: str, words: str) -> Excerpt | None:
        """Return the lines around a site, if its file is Python below the current folder that can be read."""
        file, line = _parted(site)
        if _shown(file) == file and Path(file).is_absolute():
            return None
        text, _ = _text_of(Path(file), ())
        lines = text.splitlines()
        if not 0 < line <= len(lines):
            return None
        near = _stripped(range(max(1, line - _AROUND_SITE), min(len(lines), line + _AROUND_SITE) + 1), lines)
        marked = {line: SourceLine(line, lines[line - 1], missing=(words,))}
        return Excerpt("The line", self.of_site(site), tuple(_lines(near, lines, marked)))

    def masking_lines(self, masks: Sequence[Mask]) -> Excerpt | None:
        """Return the lines of the launched kernels whose masks decide what is read, of the first file only."""
        own = sorted({(mask.file, mask.line, mask.text) for mask in masks if mask.kind in _READS})
        own = [each for each in own if each[0] == own[0][0]][:_MOST_MASKS]
        if not own:
            return None
        file, first, _ = own[0]
        lines = tuple(SourceLine(line, text) for _, line, text in own)
        place = Place(safe(f"{_shown(file)}:{first}"), link=self._address(file, first))
        return Excerpt("No single line is known. What a row sees is decided by the masks of these lines", place, lines)

    def _address(self, file: str, line: int) -> str:
        shown = _shown(file)
        if not self.link or (Path(shown).is_absolute() and "{path}" not in self.link):
            return ""
        values = {"{file}": quote(shown), "{path}": quote(os.path.abspath(file)), "{line}": str(line)}
        address = self.link
        for name, value in values.items():
            address = address.replace(name, value)
        return address


def _stripped(near: range, lines: Sequence[str]) -> range:
    """Return the numbers of lines without blank ones at the ends."""
    filled = [line for line in near if lines[line - 1].strip()]
    return range(filled[0], filled[-1] + 1) if filled else near


def _parted(site: str) -> tuple[str, int]:
    file, _, line = site.rpartition(":")
    return file, int(line) if line.isdecimal() and len(line) < 9 else 0


def _definition(text: str, name: str) -> int:
    """Return the line of a function's definition, 0 where it has none."""
    return next((at for at, line in enumerate(text.splitlines(), 1) if line.lstrip().startswith(f"def {name}(")), 0)


def source_files(masks: Sequence[Mask], target: str) -> Iterator[SourceFile]:
    """Yield each file of the masks with its lines, in order.

    A file is shown only if it is Python and still holds the recorded lines, none of which is blank: the log may be old,
    or come from somebody who wants to see it.
    """
    gaps = mask_gaps.gaps(masks, target)
    for file in sorted({mask.file for mask in masks}):
        own = [mask for mask in masks if mask.file == file]
        marked = _marked(own, [gap for gap in gaps if gap.mask.file == file])
        text, problem = _text_of(Path(file), own)
        numbers = sorted(marked) if problem else sorted(_functions(text, set(marked)))
        lines = tuple(_lines(numbers, text.splitlines(), marked))
        yield SourceFile(_shown(file), lines[:MOST_LINES], problem)


def _marked(masks: Iterable[Mask], gaps: Iterable[Gap]) -> dict[int, SourceLine]:
    """Return the lines with masks by their numbers."""
    texts, counts = {mask.line: mask.text for mask in masks}, defaultdict[int, int](int)
    for mask in masks:
        counts[mask.line] += 1
    missing, explained = defaultdict[int, list[str]](list), defaultdict[int, list[str]](list)
    for gap in gaps:
        (explained if gap.because else missing)[gap.mask.line].append(_words(gap))
    return {
        line: SourceLine(line, text, counts[line], _once(missing[line]), _once(explained[line]))
        for line, text in texts.items()
    }


def _once(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))


def _words(gap: Gap) -> str:
    """Return what was never seen of a mask: ``load in kernel_unified: never mixed``."""
    mask = gap.mask
    kind = f"{mask.kind} {mask.ordinal + 1}" if mask.ordinal else mask.kind
    missing = f"never {' and never '.join(gap.missing)}" if mask.seen else "not reached"
    return f"{kind} in {mask.kernel}: {missing}" + f" ({gap.because})" * bool(gap.because)


def _text_of(path: Path, masks: Iterable[Mask]) -> tuple[str, str]:
    """Return the text of a file, or why it is not shown."""
    if path.suffix != ".py":
        return "", "The file is no Python file."
    try:
        text = content_of(path, MOST_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return "", "The file cannot be read here."
    lines = dict(enumerate(text.splitlines(), 1))
    if any(not mask.text.strip() or mask.text.strip() != lines.get(mask.line, "").strip() for mask in masks):
        return "", "The file has changed since the run."
    return text, ""


def _functions(text: str, marked: set[int]) -> set[int]:
    """Return the numbers of the lines of the functions that hold marked lines; of code that fails to parse, a few."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {near for line in marked for near in range(max(1, line - _AROUND), line + _AROUND + 1)}
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    spans = [range(node.lineno, (node.end_lineno or node.lineno) + 1) for node in functions]
    inside = {line for span in spans if marked & set(span) for line in span}
    return inside | marked


def _lines(numbers: Sequence[int], text: Sequence[str], marked: dict[int, SourceLine]) -> Iterator[SourceLine]:
    last = 0
    for number in numbers:
        if last and number != last + 1:
            yield SourceLine(0, "")
        last = number
        known = marked.get(number)
        shown = text[number - 1] if 0 < number <= len(text) else known.text if known else ""
        yield SourceLine(number, shown, *((known.masks, known.missing, known.explained) if known else ()))


def _shown(file: str) -> str:
    path = os.path.relpath(file or os.curdir)  # a file of others may name none
    return file if path.startswith(os.pardir) else path
