"""The sections of a run's page, made from its log, its failures among them, as plain data that the templates write.

What the log does not hold is said, never guessed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from pathlib import Path
from typing import Final, TypeAlias

from markupsafe import Markup

from fuzz_attn.engine.listeners.distributions import EXACT, LARGEST, Distributions
from fuzz_attn.engine.listeners.results import FoundFailure
from fuzz_attn.engine.listeners.statistics import CountedRefusal
from fuzz_attn.operations.registry import OPERATIONS
from fuzz_attn.oracle.verdict import Element
from fuzz_attn.report import failure
from fuzz_attn.report.outcome import failure_in_words, smallest_case, status_of
from fuzz_attn.report.page import charts
from fuzz_attn.report.page.run_log import Moment, RunLog
from fuzz_attn.report.printing import count, inline_picture, safe
from fuzz_attn.report.summary import combinations_in_words

MOST_ROWS: Final = 200
"""A longer table is cut, and says so."""


@dataclass(frozen=True)
class Cell:
    """A cell; ``mark`` names the style of one that stands out: ``bad``, ``gap``, ``good`` or ``quiet``."""

    text: str
    mark: str = ""


Row: TypeAlias = Sequence[Cell | str | int]


@dataclass(frozen=True)
class Table:
    """A table whose first column heads its rows. ``numbers`` are the columns of numbers, aligned to the right."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers: frozenset[int] = frozenset()
    cut: int = 0
    """Rows that are not shown."""


@dataclass(frozen=True)
class Figure:
    """A chart; ``words`` say what it shows to a reader who cannot see it, and ``table`` holds its numbers."""

    title: str
    svg: Markup
    words: str
    table: Table


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Row],
    *,
    numbers: Iterable[int] = (),
    most: int = MOST_ROWS,
) -> Table:
    """Return a table of at most ``most`` rows."""
    every = [tuple(each if isinstance(each, Cell) else Cell(str(each)) for each in row) for row in rows]
    return Table(caption, tuple(head), tuple(every[:most]), frozenset(numbers), max(0, len(every) - most))


def share(part: float, whole: float) -> str:
    """Return a part in per cent; more than nothing is not 0%."""
    if not whole:
        return "none"
    if not part:
        return "0%"
    return "under 1%" if part / whole < 0.01 else f"{part / whole:.0%}"


def number(value: int) -> str:
    """Return a number with a thin space between thousands."""
    return f"{value:,}".replace(",", "\u202f")


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
    return table(f"Smallest case of failure {index}", ("part", "words"), failure.lines_of(found.counterexample))


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


def _picture(found: FoundFailure, name: str) -> Markup:
    """Return what ``fuzz-attn show`` prints as a picture."""
    example = found.counterexample
    path = Path(found.path) if found.path else None
    shown = failure.render(example, path, failure.run_headline(example))
    unique = f"p{zlib.crc32(name.encode()):08x}"
    return Markup(inline_picture(shown, title=f"fuzz-attn show {found.path}", name=unique))  # noqa: S704 - rich escapes


_WORDS: Final[Mapping[str, str]] = {
    name: aspect.words for operation in OPERATIONS.values() for name, aspect in operation.features.items()
}
_EXCLUSIVE: Final = (frozenset(("fp8_q", "fp8_kv")),)
"""Pairs that no case can have: ``fp8_kv`` is an fp8 cache of wider queries."""
_WHY: Final[Mapping[str, str]] = {
    "search": "judging drawn cases",
    "compile": "judging drawn cases that compiled a kernel",
    "saved": "playing saved failures",
    "confirm": "confirming failures",
    "shrink": "shrinking failures",
}
MOST_PAIRS: Final = 40
REST: Final = "all else: drawing cases, refusals, waiting for workers"


def features_of(log: RunLog) -> list[str]:
    """Return the features that a target promises and those that its cases had, in the order of signatures."""
    drawn = set(log.distributions.together) if log.distributions else set(log.statistics.features)
    promised = {name for name in _WORDS if log.ready and log.ready.domain.allows(name)}
    return [name for name in _WORDS if name in drawn | promised]


def features_table(log: RunLog) -> Table | None:
    """Return how many cases had each feature, on each launch path; None where the log does not say."""
    found, cases = log.distributions, log.statistics.cases
    if found is None:
        return None
    paths = sorted(found.paths)
    rows: list[Row] = [("every case", *_cells(cases, cases), *(number(found.paths[path][path]) for path in paths))]
    for name in features_of(log):
        total = found.together.get(name, {}).get(name, 0)
        on_path = (_count(found.paths[path].get(name, 0)) for path in paths)
        rows.append((f"{_WORDS[name]} ({name})", *_cells(total, cases), *on_path))
    head = ("feature", "cases", "share", *(f"path {path}" for path in paths))
    return table("Cases with each feature, on each launch path", head, rows, numbers=range(1, len(head)))


def _cells(part: int, whole: int) -> tuple[Cell, str]:
    return _count(part), share(part, whole)


def _count(cases: int) -> Cell:
    return Cell(number(cases), "" if cases else "gap")


def pairs_table(log: RunLog) -> Table | None:
    """Return the cases of each pair of features; None where the log does not say."""
    found = log.distributions
    if found is None:
        return None
    names = features_of(log)
    rows: list[Row] = []
    for index, name in enumerate(names):
        cells = [_pair(log, found, name, other) for other in names[:index]]
        rows.append((name, *cells, *[""] * (len(names) - 1 - index)))
    return table("Cases with both features of a pair", ("feature", *names[:-1]), rows, numbers=range(1, len(names)))


def pairs_in_words(log: RunLog) -> str:
    """Return how many of the possible pairs were drawn, and which were not."""
    seen = covered_pairs(log)
    if seen is None or log.distributions is None:
        return ""
    drawn = log.distributions.together
    unseen = [name for name in features_of(log) if name not in drawn]
    missing = [" and ".join(pair) for pair, cases in _pairs(log) if not cases and set(pair) <= set(drawn)]
    words = [f"{seen[0]} of {seen[1]} pairs of features were drawn together."]
    words += [f"Never drawn at all: {', '.join(unseen)}."] * bool(unseen)
    more = f"; {len(missing) - MOST_PAIRS} more" if len(missing) > MOST_PAIRS else ""
    words += [f"Never together: {'; '.join(missing[:MOST_PAIRS])}{more}."] * bool(missing)
    return " ".join(words)


def covered_pairs(log: RunLog) -> tuple[int, int] | None:
    """Return the number of pairs that were drawn and of those that are possible; None where the log does not say."""
    if log.distributions is None:
        return None
    cases = [cases for _, cases in _pairs(log)]
    return sum(map(bool, cases)), len(cases)


def _pairs(log: RunLog) -> list[tuple[tuple[str, str], int]]:
    """Return each possible pair and its cases."""
    together = log.distributions.together if log.distributions else {}
    pairs = ((one, other) for one, other in combinations(features_of(log), 2) if _is_possible(log, one, other))
    return [((one, other), together.get(one, {}).get(other, 0)) for one, other in pairs]


def _is_possible(log: RunLog, name: str, other: str) -> bool:
    excluded = (*_EXCLUSIVE, *(log.ready.domain.excluded if log.ready else ()))
    return not any(combination <= {name, other} for combination in excluded)


def _pair(log: RunLog, found: Distributions, name: str, other: str) -> Cell:
    if not _is_possible(log, name, other):
        return Cell("n/a", "quiet")
    return _count(found.together.get(name, {}).get(other, 0))


def refusals_table(refusals: tuple[CountedRefusal, ...]) -> Table:
    """Return a row for each place that refuses."""
    rows = (
        (
            safe(combinations_in_words(each)),
            number(each.cases),
            safe(f"{each.refusal.error}: {each.refusal.message}"[:400]),
            safe(f"{each.refusal.location} {each.refusal.source}".strip()),
            each.refusal.stage,
        )
        for each in refusals
    )
    return table("Refused, so not judged", ("refused", "cases", "message", "at", "stage"), rows, numbers=[1])


def ratio_figures(log: RunLog) -> Iterator[Figure]:
    """Yield a histogram of ``err / bound`` for each output dtype."""
    for dtype, bins in sorted((log.distributions.ratios if log.distributions else {}).items()):
        numbers = [(_ratio_words(index), bins.get(index, 0)) for index in range(min(bins), max(bins) + 1)]
        beyond = [index > 0 for index in range(min(bins), max(bins) + 1)]
        yield _histogram(f"err / bound of {dtype}", numbers, "largest err / bound of a case, up to", marked=beyond)


def _ratio_words(index: int) -> str:
    if index == EXACT:
        return "0"
    if index == LARGEST:
        return "more"
    return f"1/{2**-index}" if index < 0 else f"{2**index}"


def length_figures(log: RunLog) -> Iterator[Figure]:
    """Yield a histogram of each length that was drawn."""
    for what, bins in (log.distributions.lengths if log.distributions else {}).items():
        numbers = [(_length_words(index), bins.get(index, 0)) for index in range(max(bins) + 1)]
        yield _histogram(what, numbers, what, "sequences" if what != "keys of a case" else "cases")


def _length_words(bits: int) -> str:
    return str(bits) if bits < 2 else f"{2 ** (bits - 1)}-{2**bits - 1}"


def size_figures(log: RunLog) -> Iterator[Figure]:
    """Yield a chart of the cases of each size that was drawn, and of each type; none where all are the launcher's."""
    found = log.distributions
    for what, sizes in (found.sizes if found else {}).items():
        if set(sizes) == {0}:
            continue
        yield _histogram(what, [(str(size), sizes[size]) for size in sorted(sizes)], what)
    for what, types in (found.types if found else {}).items():
        title = {"q": "type of the queries", "kv": "type of the caches", "out": "type of the output"}[what]
        yield _histogram(title, sorted(types.items(), key=lambda item: -item[1]), title)


def _histogram(
    title: str, numbers: list[tuple[str, int]], x_label: str, unit: str = "cases", marked: Sequence[bool] = ()
) -> Figure:
    total = sum(counts for _, counts in numbers)
    largest = max(numbers, key=lambda pair: pair[1])
    words = f"Histogram of {title}: {number(total)} {unit}, most ({share(largest[1], total)}) at {largest[0]}"
    labels, bars = [label for label, _ in numbers], [counts for _, counts in numbers]
    svg = charts.bar_chart(labels, bars, x_label, unit, words, marked=marked)
    rows = ((label, number(counts)) for label, counts in numbers)
    return Figure(title, svg, words, table(f"{title}: numbers", (x_label, unit), rows, numbers=[1]))


def speed_figure(log: RunLog) -> Figure | None:
    """Return the cases a second over time; None where the log has fewer than two counts."""
    points = list(_rates(log.history))
    if not points:
        return None
    fastest, last = max(rate for _, rate in points), points[-1][1]
    words = f"Cases a second over {points[-1][0]:.0f} s: at most {fastest:.1f}, {last:.1f} in the last interval"
    lines = [charts.Line("cases", [0.0, *(at for at, _ in points)], [points[0][1], *(rate for _, rate in points)])]
    svg = charts.line_chart(lines, "seconds", "cases a second", words, steps=True)
    rows = ((f"{at:.0f}", f"{rate:.1f}") for at, rate in points)
    return Figure(
        "Cases a second", svg, words, table("Cases a second", ("seconds", "cases a second"), rows, numbers=[0, 1])
    )


def _rates(history: tuple[tuple[Moment, ...], ...]) -> Iterator[tuple[float, float]]:
    """Yield the rate at the end of each interval between two counts, of all shards' logs together."""
    ends = sorted({moment.seconds for moments in history for moment in moments})
    before, cases = 0.0, 0.0
    for end in _thinned(ends):
        now = sum(_cases_at(moments, end) for moments in history)
        if end - before >= 1.0:
            yield end, (now - cases) / (end - before)
            before, cases = end, now


def _thinned(ends: list[float]) -> list[float]:
    step = 1 + len(ends) // 400
    return [*ends[:-1][::step], *ends[-1:]]


def _cases_at(moments: tuple[Moment, ...], seconds: float) -> float:
    """Return the cases of a log after some seconds, on a straight line between its counts."""
    before = Moment(0.0, 0, 0, 0)
    for moment in moments:
        if moment.seconds >= seconds:
            part = (seconds - before.seconds) / max(1e-9, moment.seconds - before.seconds)
            return before.cases + part * (moment.cases - before.cases)
        before = moment
    return before.cases


def outcomes_figure(log: RunLog) -> Figure | None:
    """Return the mask outcomes seen over time; None where there are none, or where shards have several logs."""
    if len(log.history) != 1 or not log.statistics.outcomes:
        return None
    moments = (Moment(0.0, 0, 0, 0), *log.history[0])
    words = f"Mask outcomes seen over time: {moments[-1].outcomes} after {moments[-1].seconds:.0f} s"
    lines = [charts.Line("outcomes", [each.seconds for each in moments], [each.outcomes for each in moments])]
    svg = charts.line_chart(lines, "seconds", "outcomes seen", words)
    rows = ((f"{each.seconds:.0f}", str(each.outcomes)) for each in moments)
    return Figure("Coverage gained", svg, words, table("Mask outcomes", ("seconds", "outcomes"), rows, numbers=[0, 1]))


def time_figure(log: RunLog) -> Figure | None:
    """Return where the time of all workers went; None where the log does not say."""
    found = log.distributions
    if found is None or not found.seconds:
        return None
    parts = [(words, found.seconds.get(why, 0.0)) for why, words in _WHY.items() if found.seconds.get(why)]
    whole = log.statistics.seconds * log.statistics.shards
    if whole > sum(spent for _, spent in parts):
        parts.append((REST, whole - sum(spent for _, spent in parts)))
    total = sum(spent for _, spent in parts)
    words = "Where the time went: " + ", ".join(f"{what} {share(spent, total)}" for what, spent in parts)
    svg = charts.share_chart([what for what, _ in parts], [spent for _, spent in parts], "seconds", words)
    rows = ((what, f"{spent:.1f}", share(spent, total)) for what, spent in parts)
    shown = table("Time of all workers", ("what", "seconds", "share"), rows, numbers=[1, 2])
    return Figure("Where the time went", svg, words, shown)


def keys_figure(log: RunLog) -> Figure | None:
    """Return how many compile keys had how many cases; None where the log does not list them."""
    cases = log.statistics.compile_keys.values()
    if not cases:
        return None
    bins = [0] * (max(cases).bit_length() + 1)
    for each in cases:
        bins[each.bit_length()] += 1
    numbers = [(_length_words(bits), keys) for bits, keys in enumerate(bins) if bits]
    return _histogram("cases of a compile key", numbers, "cases of a key", "keys")
