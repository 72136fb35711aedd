"""Gaps: what a run never saw of its kernels' masks, as a table for each source file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import groupby

from rich.console import Console

from fuzz_attn import coverage
from fuzz_attn.coverage import Mask, TargetCoverage
from fuzz_attn.plain_text import count, show, whole


def print_gaps(covered: tuple[TargetCoverage, ...], console: Console) -> None:
    """Print how complete the coverage of each target is, and every mask that lacks an outcome."""
    for found in covered:
        show(console, whole(f"Semantic coverage of {found.target}, {count(found.cases, 'case')}", "bold"))
        for line in _heading(found):
            show(console, whole(line))
        for file, masks in groupby(coverage.missing(found.masks), key=lambda mask: mask.file):
            show(console, "")
            show(console, whole(_shown(file), "bold"))
            for line in gap_lines(tuple(masks)):
                show(console, whole(line))


def _heading(found: TargetCoverage) -> Iterator[str]:
    if not found.masks:
        yield f"No mask was seen on {found.backend}: the simulator alone sees them, and only those of Triton kernels."
        return
    yield coverage.in_short(found.masks)
    if found.fallback:
        yield f"Incomplete: the simulator, which alone sees masks, was given up on the way ({found.fallback})."


def gap_lines(masks: tuple[Mask, ...]) -> Iterator[str]:
    """Yield a line for each mask: source line, launched kernel, kind, what was never seen, the source itself."""
    rows = [("line", "kernel", "kind", "never", "source")]
    for mask in masks:
        kind = f"{mask.kind} {mask.ordinal + 1}" if mask.ordinal else mask.kind
        rows.append((str(mask.line), mask.kernel, kind, ", ".join(mask.missing) if mask.seen else "reached", mask.text))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, *words, source in rows:
        cells = (word.ljust(width) for word, width in zip(words, widths[1:], strict=False))
        yield "  ".join((number.rjust(widths[0]), *cells, source))


def _shown(file: str) -> str:
    path = os.path.relpath(file)
    return file if path.startswith(os.pardir) else path
