"""The failures of a run as its page shows them: a row each in a list, and a section with all that is known."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from fuzz_attn.backends.kernel_coverage import Mask
from fuzz_attn.engine.failures.triage import has_place, is_contract, others_in_words
from fuzz_attn.engine.listeners.results import FoundFailure
from fuzz_attn.operations.operation import Batch
from fuzz_attn.operations.registry import operation_of
from fuzz_attn.oracle.verdict import Element, Verdict, Weights
from fuzz_attn.report import failure
from fuzz_attn.report.outcome import NOT_FOLLOWED, cause, failure_in_words, rows_of, smallest_case, status_of
from fuzz_attn.report.page import charts
from fuzz_attn.report.page.sections import Table, number, table
from fuzz_attn.report.page.sources import Excerpt, Place, Places
from fuzz_attn.report.printing import count, safe

MOST_FAILURES: Final = 100
_MOST_CHARACTERS: Final = 4000
_LONGEST_TITLE: Final = 240
_MOST_SEQUENCES: Final = 8
_MOST_PAGES: Final = 64
"""The borders of more pages are not drawn."""
_OF_MASKS: Final = ("causal", "window", "mask", "tail")
"""Reasons for which the kernel's masks are shown: they decide what a row sees."""


class Shown(NamedTuple):
    """A drawing or a number with the words that say what it shows."""

    drawing: Markup
    words: str
    more: str = ""


class SequenceBar(NamedTuple):
    """One sequence of a batch as a bar: its lengths, its share of the longest, borders of pages, and its wrong rows.

    ``page`` is the part of the bar that a page takes, in per cent, and ``wrong`` where wrong rows lie.
    """

    name: str
    words: str
    cached: int
    new: int
    share: float
    page: float
    wrong: tuple[float, ...]


@dataclass(frozen=True)
class ShownFailure:
    """A failure as the page shows it; ``name`` is its anchor and ``index`` its number, the same as on a terminal."""

    name: str
    index: int
    reason: str
    title: str
    kind: str
    state: str
    doubt: str
    fails: bool
    place: Place | None
    cases: str
    first_seen: str
    thumbnail: Markup
    weights: Shown | None
    excerpt: Excerpt | None
    beyond: str
    ratio: str
    beyond_share: float
    batch: tuple[SequenceBar, ...]
    batch_more: int
    smallest: str
    case: Table
    worst: Table | None
    needs: tuple[str, ...]
    message: str
    hints: tuple[str, ...]
    certainty: str
    commands: tuple[tuple[str, str], ...]
    file: tuple[str, str] | None


def shown_failures(
    failures: Sequence[FoundFailure], prefix: str, places: Places, masks: Sequence[Mask], folder: Path | None
) -> list[ShownFailure]:
    """Return the failures in the order and with the numbers of the terminal; a saved page lies in a ``folder``."""
    rows = list(rows_of(failures))[:MOST_FAILURES]
    return [
        _shown(found, cases, f"{prefix}failure-{index}", index, places, masks, folder)
        for index, (found, cases, _) in enumerate(rows, 1)
    ]


def state_of(found: FoundFailure) -> str:
    """Return the state of a failure in one word: ``new``, ``open`` if earlier runs saw it, ``known``, ``regressed``."""
    status = found.counterexample.status
    if status == "open":
        return "open" if found.saved else "new"
    return "regressed" if status == "fixed" else status


def title_of(found: FoundFailure) -> tuple[str, str]:
    """Return the reason in a word, empty where what was seen says it, and the cause, or else what was seen."""
    words = safe(cause(found))
    words = words if len(words) <= _LONGEST_TITLE else f"{words[:_LONGEST_TITLE]} ..."
    reason, colon, rest = words.partition(": ")
    if found.counterexample.verdict.explanation and colon:
        return reason[:1].upper() + reason[1:], rest
    if found.counterexample.verdict.worst:
        return "Unexplained", words
    return "", words[:1].upper() + words[1:]


def _shown(
    found: FoundFailure, cases: int, name: str, index: int, places: Places, masks: Sequence[Mask], folder: Path | None
) -> ShownFailure:
    example, verdict = found.counterexample, found.counterexample.verdict
    reason, title = title_of(found)
    place = places.of_site(verdict.site) if verdict.site else places.of_kernels(masks, example.target)
    batch = operation_of(example.case).batch_of(example.case)
    bars = list(_bars(batch, verdict.worst)) if batch else []
    return ShownFailure(
        name=name,
        index=index,
        reason=reason,
        title=title,
        kind=safe(failure_in_words(found)),
        state=state_of(found),
        doubt=safe(_doubt(found)),
        fails=found.fails,
        place=place,
        cases=count(cases, "case").replace(str(cases), number(cases)),
        first_seen=f"{found.first_seen:.1f} s",
        thumbnail=charts.thumbnail(verdict.weights) if verdict.weights else Markup(),
        weights=_weights(verdict.weights) if verdict.weights else None,
        excerpt=_excerpt(verdict, places, masks),
        beyond=_beyond(verdict),
        ratio=_times(verdict.ratio),
        beyond_share=_share(verdict.ratio),
        batch=tuple(bars[:_MOST_SEQUENCES]),
        batch_more=max(0, len(bars) - _MOST_SEQUENCES),
        smallest=safe(smallest_case(found)),
        case=table(f"Smallest case of failure {index}", ("part", "words"), failure.lines_of(example)),
        worst=_worst(verdict.worst, index),
        needs=_needs(found),
        message=_cut(safe(verdict.message)),
        hints=tuple(safe(hint) for hint in _hints(found)),
        certainty=safe(failure.certainty(example)),
        commands=tuple(_commands(found)),
        file=_file(found.path, folder),
    )


def _doubt(found: FoundFailure) -> str:
    """Return what the status of a failure says beside its state."""
    return "not saved" if not found.path else status_of(found).partition(", ")[2]


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."


def _weights(weights: Weights) -> Shown | None:
    drawing = charts.picture(weights)
    if not drawing:
        return None
    words = charts.sentence(charts.grid_of(weights))
    head = f"Head {weights.head}, sequence {weights.sequence}."
    larger = f"From a larger case, which shows more: {weights.larger}." if weights.larger else ""
    return Shown(drawing, f"{head} {words}", safe(larger))


def _excerpt(verdict: Verdict, places: Places, masks: Sequence[Mask]) -> Excerpt | None:
    """Return the source around the line that was found, or else the lines that hide keys, if the cause is a mask."""
    if verdict.site:
        return places.excerpt(verdict.site, verdict.kind.replace("_", " "))
    if verdict.explanation.partition(":")[0] in _OF_MASKS:
        return places.masking_lines(masks)
    return None


def _needs(found: FoundFailure) -> tuple[str, ...]:
    """Return what the smallest case needs: without any one of these it passes; nothing where that is not known."""
    example = found.counterexample
    known = example.trigger and example.shrunk and example.confirmation == "confirmed"
    return tuple(map(safe, failure.needs(example).split(", "))) if known else ()


def _hints(found: FoundFailure) -> Iterator[str]:
    example = found.counterexample
    if found.known:
        yield f"Known: {example.because} ({example.reference})."
    if example.verdict.only_with:
        yield f"It is {example.verdict.only_with}."
    if example.verdict.hint:
        yield example.verdict.hint
    if not found.followed:
        yield f"{NOT_FOLLOWED.capitalize()}: others of its class were, or there were too many."
    if others := others_in_words(example):
        yield f"Read wrongly in the same way, each in a case of its own: {others}."
    for name in example.also:
        if not is_contract(name):
            yield f"Also at {name.partition(' ')[2]}." if has_place(name) else f"The same case also fails as: {name}."


def _commands(found: FoundFailure) -> Iterator[tuple[str, str]]:
    """Yield what to paste into a shell, each with what it does."""
    if not found.path:
        return
    example, path = found.counterexample, Path(found.path)
    yield "Why is it wrong?", safe(failure.command_for("explain", path, example))
    yield "Does it still fail?", safe(failure.command_for("replay", path, example))
    if operation_of(example.case).is_exported:
        name = f"{path.stem}.py"
        command = failure.command_for("export", path, example)
        yield "One script for a bug report", safe(f"{command} --script {name}")


def _file(path: str, folder: Path | None) -> tuple[str, str] | None:
    """Return the address of a failure's file from the page, if the page can lead to it, and its name."""
    if not path:
        return None
    there = Path(path)
    address = quote(os.path.relpath(there, folder)) if folder is not None and there.is_file() else ""
    return address, safe(there.name)


def _beyond(verdict: Verdict) -> str:
    """Return how far the worst element is from what is right, in one sentence; empty where nothing was measured."""
    if not verdict.worst:
        return ""
    worst = verdict.worst[0]
    actual, expected, bound = (float(text) for text in (worst.actual, worst.expected, worst.bound))
    if not math.isfinite(actual):
        words = f"{'NaN' if math.isnan(actual) else 'infinite'} where {expected:.6g} is right, give or take {bound:.2g}"
    else:
        words = f"{actual:.6g} where {expected:.6g} is right, give or take {bound:.2g}"
    amount = f"{number(verdict.wrong)} of {number(verdict.elements)} elements are wrong. " if verdict.elements else ""
    return f"{amount}The worst is {words}."


def _times(ratio: float | None) -> str:
    if ratio is None or not math.isfinite(ratio):
        return ""
    return f"{ratio:.3g}" if ratio < 1e4 else f"{ratio:.1e}".replace("e+0", "e").replace("e+", "e")


def _share(ratio: float | None) -> float:
    """Return the length of a bar from the bound to an error, in per cent; a power of ten adds a tenth."""
    if ratio is None or not math.isfinite(ratio):
        return 100.0
    return max(4.0, min(100.0, 10.0 * math.log10(max(1.0, ratio))))


def _bars(batch: Batch, worst: Sequence[Element]) -> Iterator[SequenceBar]:
    """Yield a bar for each sequence of a batch."""
    longest = max((cached + new for cached, new in batch.sequences), default=0) or 1
    for index, (cached, new) in enumerate(batch.sequences):
        tokens = cached + new
        pages = math.ceil(tokens / batch.page) if batch.page else 0
        words = [f"{number(cached)} cached"] * bool(cached) + [f"{number(new)} new" if new else "no new token"]
        words += [count(pages, "page")] * bool(pages)
        rows = {each.query_index for each in worst if each.sequence == index}
        wrong = tuple(100 * (cached + row + 0.5) / tokens for row in sorted(rows) if row < new)
        border = 100 * batch.page / tokens if 1 < pages <= _MOST_PAGES else 0.0
        yield SequenceBar(f"sequence {index}", ", ".join(words), cached, new, 100 * tokens / longest, border, wrong)


def _worst(worst: tuple[Element, ...], index: int) -> Table | None:
    if not worst:
        return None
    rows = (
        (
            each.sequence,
            each.query_index,
            each.head,
            each.column if each.column >= 0 else "",
            f"{float(each.actual):.9g}",
            f"{float(each.expected):.9g}",
            f"{float(each.bound):.3g}",
        )
        for each in worst
    )
    head = ("sequence", "query", "head", "column", "actual", "expected", "bound")
    return table(f"Worst elements of failure {index}", head, rows, numbers=range(7))
