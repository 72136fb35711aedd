"""The outcomes of masks that a run did not exercise: one table for each source file, explained ones last."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import groupby

from rich.console import Console

from fuzz_attn.coverage import explanations
from fuzz_attn.coverage.explanations import Gap
from fuzz_attn.coverage.mask_coverage import TargetCoverage
from fuzz_attn.report.plain_text import count, show, whole


def print_gaps(covered: tuple[TargetCoverage, ...], console: Console) -> None:
    """Print the mask coverage of each target: totals, masks that lack an outcome, and those with an explanation."""
    for found in covered:
        show(console, whole(f"Mask coverage of {found.target}, {count(found.cases, 'case')}", "bold"))
        for line in _heading(found):
            show(console, whole(line))
        gaps = explanations.gaps(found.masks, found.target)
        _print_by_file([gap for gap in gaps if not gap.because], console)
        explained = [gap for gap in gaps if gap.because]
        if explained:
            show(console, "")
            show(console, whole(f"{count(len(explained), 'mask')} with an explanation", "bold"))
            _print_by_file(explained, console)


def _heading(found: TargetCoverage) -> Iterator[str]:
    if not found.masks:
        yield f"No masks from {found.backend}: only the simulator records masks, and only those of Triton kernels."
        return
    yield explanations.summary_line(found.masks, found.target)
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
