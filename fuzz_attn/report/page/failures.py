"""The failures of a run for its page: each with words, case, worst elements, picture, and the command to replay it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from markupsafe import Markup

from fuzz_attn.case.description import describe
from fuzz_attn.engine.listeners.results import FoundFailure
from fuzz_attn.oracle.verdict import Element
from fuzz_attn.properties.relations import relation_in_words
from fuzz_attn.report import failure
from fuzz_attn.report.bias_values import bias_values
from fuzz_attn.report.page.tables import Table, table
from fuzz_attn.report.picture import inline_picture
from fuzz_attn.report.plain_text import count, safe
from fuzz_attn.report.summary import failure_in_words, smallest_case, status_of

MOST_PICTURES: Final = 20
"""Later failures have no picture, so that the page stays small; it holds the same words."""
MOST_FAILURES: Final = 100
_MOST_CHARACTERS: Final = 4000


@dataclass(frozen=True)
class ShownFailure:
    """A failure as the page shows it.

    ``name`` is its anchor, ``index`` its number; ``picture`` is empty for later failures.
    """

    name: str
    index: int
    words: str
    message: str
    status: str
    known: str
    seen: str
    smallest: str
    certainty: str
    hints: tuple[str, ...]
    case: Table
    worst: Table | None
    command: str
    picture: Markup


def by_kind(failures: Sequence[FoundFailure], prefix: str) -> list[tuple[str, list[ShownFailure]]]:
    """Return the failures with their kinds; both in the order in which they were first seen."""
    shown = list(_shown(failures[:MOST_FAILURES], prefix))
    kinds = list(dict.fromkeys(kind for kind, _ in shown))
    ordered = sorted(shown, key=lambda pair: kinds.index(pair[0]))
    return [(kind, [each for _, each in pairs]) for kind, pairs in groupby(ordered, key=lambda pair: pair[0])]


def _shown(failures: Sequence[FoundFailure], prefix: str) -> Iterator[tuple[str, ShownFailure]]:
    for index, found in enumerate(failures):
        yield found.kind, _failure(found, prefix, index + 1)


def _failure(found: FoundFailure, prefix: str, index: int) -> ShownFailure:
    example, name = found.counterexample, f"{prefix}failure-{index}"
    hints = (
        f"Why: {example.verdict.explanation}." if example.verdict.explanation else "",
        example.verdict.hint,
        f"It needs: {failure.needs(example)}." if example.trigger and example.shrunk else "",
        f"The case fails in other ways too: {', '.join(example.also)}." if example.also else "",
    )
    return ShownFailure(
        name=name,
        index=index,
        words=safe(failure_in_words(found)),
        message=_cut(safe(example.verdict.message)),
        status=status_of(found),
        known=safe(f"Known: {example.because} ({example.reference})") if found.known else "",
        seen=f"{count(found.cases, 'case')} showed it, the first after {found.first_seen:.1f} s",
        smallest=smallest_case(found),
        certainty=failure.certainty(example),
        hints=tuple(safe(hint) for hint in hints if hint),
        case=_case(found, index),
        worst=_worst(example.verdict.worst, index),
        command=safe(failure.replay_command(Path(found.path), example)) if found.path else "",
        picture=_picture(found, name) if index <= MOST_PICTURES else Markup(),
    )


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."


def _case(found: FoundFailure, index: int) -> Table:
    example = found.counterexample
    lines = [*describe(example.case), *bias_values(example.case)]
    if example.relation:
        lines.append(("relation", relation_in_words(example.relation)))
    return table(f"Smallest case of failure {index}", ("part", "words"), lines)


def _worst(worst: tuple[Element, ...], index: int) -> Table | None:
    if not worst:
        return None
    rows = (
        (
            each.sequence,
            each.query_index,
            each.head,
            each.column,
            f"{float(each.actual):.9g}",
            f"{float(each.expected):.9g}",
            f"{float(each.bound):.3g}",
        )
        for each in worst
    )
    head = ("sequence", "query", "head", "column", "actual", "expected", "bound")
    return table(f"Worst elements of failure {index}", head, rows, numbers=range(7))


def _picture(found: FoundFailure, name: str) -> Markup:
    """Return what ``fuzz-attn show`` prints as a picture."""
    example = found.counterexample
    path = Path(found.path) if found.path else None
    shown = failure.render(example, path, failure.run_headline(example))
    unique = f"p{zlib.crc32(name.encode()):08x}"
    return Markup(inline_picture(shown, title=f"fuzz-attn show {found.path}", name=unique))  # noqa: S704 - rich escapes
