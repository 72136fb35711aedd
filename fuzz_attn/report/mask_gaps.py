"""Mask gaps: the outcomes of masks that a run did not exercise, and why some masks of our own kernels never show some.

The explanations are data of a checkout, ``tests/coverage/explanations.toml``, and refer to source lines by their text.
A test fails where a campaign sees an outcome that an explanation rules out. Other kernels have no explanations, and
neither has an installation without the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby
from pathlib import Path, PurePath
from typing import Final, NamedTuple

import msgspec
from rich.console import Console

from fuzz_attn.backends import kernel_coverage
from fuzz_attn.backends.kernel_coverage import Mask, Outcome, TargetCoverage
from fuzz_attn.case.plain import Plain
from fuzz_attn.operations.registry import FAMILIES, FamilyName
from fuzz_attn.report.printing import count, show, whole

FILE: Final = Path(__file__).parents[2] / "tests" / "coverage" / "explanations.toml"
_BUILT_IN: Final = frozenset(FAMILIES)
"""The built-in targets; each has the name of its family."""


class Explanation(Plain, frozen=True):
    """Why masks on one source line never show some outcomes.

    ``file`` is a path below kernels/ that contains the line ``source`` once. ``continued`` is the following line that
    Triton before 3.9 records instead. ``kernels``, ``families`` and ``ordinals`` limit the explanation to launched
    kernels, to campaigns of some families and to some of a line's masks; an empty tuple is no limit.
    """

    file: str
    source: str
    never: tuple[Outcome, ...]
    because: str
    continued: str = ""
    kernels: tuple[str, ...] = ()
    families: tuple[FamilyName, ...] = ()
    ordinals: tuple[int, ...] = ()

    def covers(self, mask: Mask, family: str) -> bool:
        """Return whether the explanation is about a mask in a campaign of a family."""
        return (
            PurePath(mask.file).match(self.file)
            and mask.text in {self.source, self.continued or self.source}
            and (not self.kernels or mask.kernel in self.kernels)
            and (not self.families or family in self.families)
            and (not self.ordinals or mask.ordinal in self.ordinals)
        )


class Gap(NamedTuple):
    """A mask with outcomes that a campaign did not show; ``because`` explains all of them, or is empty."""

    mask: Mask
    missing: tuple[Outcome, ...]
    because: str = ""


class Explanations(Plain, frozen=True):
    """The content of the file."""

    explanation: tuple[Explanation, ...]


@cache
def load_explanations() -> Explanations:
    """Return the content of the file, empty where there is none."""
    if not FILE.exists():
        return Explanations(explanation=())
    return msgspec.toml.decode(FILE.read_bytes(), type=Explanations)


def gaps(masks: Iterable[Mask], target: str) -> tuple[Gap, ...]:
    """Return a gap for each mask that lacks an outcome.

    The gap lists the outcomes that nothing explains. Where everything is explained, it lists all of them with the
    explanation.
    """
    return tuple(_gap(mask, target) for mask in kernel_coverage.missing(masks))


def _gap(mask: Mask, target: str) -> Gap:
    about = [entry for entry in _about(mask, target) if set(entry.never) & set(mask.missing)]
    explained = {outcome for entry in about for outcome in entry.never}
    left = tuple(outcome for outcome in mask.missing if outcome not in explained)
    return Gap(mask, left) if left else Gap(mask, mask.missing, "; ".join(entry.because for entry in about))


def _about(mask: Mask, target: str) -> list[Explanation]:
    return (
        [entry for entry in load_explanations().explanation if entry.covers(mask, target)]
        if target in _BUILT_IN
        else []
    )


def summary_line(masks: tuple[Mask, ...], target: str) -> str:
    """Return the coverage in one line."""
    lacking = gaps(masks, target)
    left = [gap for gap in lacking if not gap.because]
    words = [f"{len(masks) - len(lacking)} of {len(masks)} masks seen all true, all false and mixed"]
    if len(lacking) > len(left):
        words.append(f"{len(lacking) - len(left)} explained")
    never_mixed = sum("mixed" in gap.missing for gap in left)
    if left:
        words.append(f"{len(left)} lacking" + f" ({never_mixed} never mixed)" * bool(never_mixed))
    return "; ".join(words)


def print_gaps(covered: tuple[TargetCoverage, ...], console: Console) -> None:
    """Print the mask coverage of each target: totals, masks that lack an outcome, and those with an explanation."""
    for found in covered:
        show(console, whole(f"Mask coverage of {found.target}, {count(found.cases, 'case')}", "bold"))
        for line in _heading(found):
            show(console, whole(line))
        lacking = gaps(found.masks, found.target)
        _print_by_file([gap for gap in lacking if not gap.because], console)
        explained = [gap for gap in lacking if gap.because]
        if explained:
            show(console, "")
            show(console, whole(f"{count(len(explained), 'mask')} with an explanation", "bold"))
            _print_by_file(explained, console)


def _heading(found: TargetCoverage) -> Iterator[str]:
    if not found.masks:
        yield f"No masks from {found.backend}: only the simulator records masks, and only those of Triton kernels."
        return
    yield summary_line(found.masks, found.target)
    if found.fallback:
        yield f"Incomplete: some cases ran outside of the simulator, which records the masks ({found.fallback})."


def _print_by_file(gaps: list[Gap], console: Console) -> None:
    for file, some in groupby(gaps, key=lambda gap: gap.mask.file):
        show(console, "")
        show(console, whole(_shown(file), "bold"))
        for line in gap_lines(tuple(some)):
            show(console, whole(line))


def gap_lines(gaps: tuple[Gap, ...]) -> Iterator[str]:
    """Yield a line for each mask: source line, launched kernel, kind, missing outcomes, and source or explanation."""
    explained = bool(gaps[0].because)
    rows = [("line", "kernel", "kind", "missing", "explanation" if explained else "source")]
    for mask, missing, because in gaps:
        kind = f"{mask.kind} {mask.ordinal + 1}" if mask.ordinal else mask.kind
        outcomes = ", ".join(missing) if mask.seen else "not reached"
        rows.append((str(mask.line), mask.kernel, kind, outcomes, because or mask.text))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, *words, source in rows:
        cells = (word.ljust(width) for word, width in zip(words, widths[1:], strict=False))
        yield "  ".join((number.rjust(widths[0]), *cells, source))


def _shown(file: str) -> str:
    path = os.path.relpath(file or os.curdir)  # a file of others may name none
    return file if path.startswith(os.pardir) else path
