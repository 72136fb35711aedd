"""The counters of a run, behind its failures on the page, as plain data that the templates write.

Also the tables of all pages, and how numbers are written there.

What the log does not hold is said, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, NamedTuple, TypeAlias

from markupsafe import Markup

from fuzz_attn.engine.listeners.distributions import EXACT, LARGEST, Distributions
from fuzz_attn.engine.listeners.statistics import CountedRefusal, Statistics
from fuzz_attn.operations.registry import OPERATIONS
from fuzz_attn.report import mask_gaps
from fuzz_attn.report.page import charts
from fuzz_attn.report.page.run_log import Moment, RunLog
from fuzz_attn.report.page.sources import Place, Places
from fuzz_attn.report.printing import safe
from fuzz_attn.report.summary import EVERY_CASE, UNKNOWN, combinations_in_words

MOST_ROWS: Final = 200
"""A longer table is cut, and says so."""


@dataclass(frozen=True)
class Cell:
    """A cell; ``mark`` names the style of one that stands out: ``bad``, ``gap``, ``good`` or ``quiet``.

    ``link`` is an address that its text leads to, and ``bar`` the length of a bar beside it, in per cent.
    """

    text: str
    mark: str = ""
    link: str = ""
    bar: float = 0.0


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


def bars(caption: str, what: str, unit: str, counts: Sequence[tuple[str, float]], marked: Sequence[bool] = ()) -> Table:
    """Return a table with a bar for each number: what others draw as a histogram, with whole labels."""
    largest, total = max((count for _, count in counts), default=0), sum(count for _, count in counts)
    marks = marked or [False] * len(counts)
    rows = (
        (
            label,
            Cell(_written(count), "bad" if mark and count else "", bar=100 * count / (largest or 1)),
            share(count, total),
        )
        for (label, count), mark in zip(counts, marks, strict=True)
    )
    return table(caption, (what, unit, "share"), rows, numbers=(1, 2))


def _written(value: float) -> str:
    return number(value) if isinstance(value, int) else f"{value:.1f}"


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


class ShownRefusal(NamedTuple):
    """What was refused, in words: the smallest combination, how often, the message, and the line that refuses."""

    what: str
    cases: str
    share: str
    message: str
    place: Place | None


def refusal(refused: CountedRefusal, counts: Statistics, places: Places) -> ShownRefusal:
    """Return the refusals of one place in short."""
    every = counts.cases + counts.refused + counts.not_judged
    message = f"{refused.refusal.error}: {refused.refusal.message}".partition("\n")[0][:200]
    words = combinations_in_words(refused)
    if words == UNKNOWN or (words == EVERY_CASE and counts.cases):  # nothing that they have in common was found
        words, message = message, ""
    return ShownRefusal(
        safe(_capital(words)),
        number(refused.cases),
        share(refused.cases, every),
        safe(message),
        places.of_site(refused.refusal.location) if refused.refusal.location else None,
    )


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


def ratio_tables(log: RunLog) -> Iterator[Table]:
    """Yield how many cases had which ``err / bound``, for each output dtype."""
    for dtype, bins in sorted((log.distributions.ratios if log.distributions else {}).items()):
        numbers = [(_ratio_words(index), bins.get(index, 0)) for index in range(min(bins), max(bins) + 1)]
        beyond = [index > 0 for index in range(min(bins), max(bins) + 1)]
        yield bars(f"err / bound of {dtype}", "up to", "cases", numbers, beyond)


def _ratio_words(index: int) -> str:
    if index == EXACT:
        return "0"
    if index == LARGEST:
        return "more"
    return f"1/{2**-index}" if index < 0 else f"{2**index}"


def length_tables(log: RunLog) -> Iterator[Table]:
    """Yield how often each length was drawn."""
    for what, bins in (log.distributions.lengths if log.distributions else {}).items():
        numbers = [(_length_words(index), bins.get(index, 0)) for index in range(max(bins) + 1)]
        yield bars(what.capitalize(), "length", "sequences" if what != "keys of a case" else "cases", numbers)


def _length_words(bits: int) -> str:
    return str(bits) if bits < 2 else f"{2 ** (bits - 1)} to {2**bits - 1}"


def size_tables(log: RunLog) -> Iterator[Table]:
    """Yield how often each size was drawn, and each type; none where all are the launcher's."""
    found = log.distributions
    for what, sizes in (found.sizes if found else {}).items():
        if set(sizes) != {0}:
            yield bars(_capital(what), "size", "cases", [(str(size), sizes[size]) for size in sorted(sizes)])
    for what, types in (found.types if found else {}).items():
        words = {"q": "queries", "kv": "caches", "out": "output"}.get(what, what)
        yield bars(f"Type of the {words}", "type", "cases", sorted(types.items(), key=lambda item: -item[1]))


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def speed_figure(log: RunLog) -> Figure | None:
    """Return the cases a second over time; None where the log has fewer than two counts."""
    points = list(_rates(log.history))
    if not points:
        return None
    fastest, last = max(rate for _, rate in points), points[-1][1]
    words = f"Cases a second over {points[-1][0]:.0f} s: at most {fastest:.1f}, {last:.1f} in the last interval"
    line = charts.Line([0.0, *(at for at, _ in points)], [points[0][1], *(rate for _, rate in points)])
    svg = charts.line_chart(line, "seconds", words, steps=True)
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
    line = charts.Line([each.seconds for each in moments], [each.outcomes for each in moments])
    svg = charts.line_chart(line, "seconds", words)
    rows = ((f"{each.seconds:.0f}", str(each.outcomes)) for each in moments)
    return Figure(
        "Mask outcomes seen", svg, words, table("Mask outcomes", ("seconds", "outcomes"), rows, numbers=[0, 1])
    )


def time_table(log: RunLog) -> Table | None:
    """Return where the time of all workers went; None where the log does not say."""
    found = log.distributions
    if found is None or not found.seconds:
        return None
    parts = [(words, found.seconds.get(why, 0.0)) for why, words in _WHY.items() if found.seconds.get(why)]
    whole = log.statistics.seconds * log.statistics.shards
    if whole > sum(spent for _, spent in parts):
        parts.append((REST, whole - sum(spent for _, spent in parts)))
    return bars("Where the time of all workers went", "what", "seconds", parts)


def keys_table(log: RunLog) -> Table | None:
    """Return how many compile keys had how many cases; None where the log does not list them."""
    cases = log.statistics.compile_keys.values()
    if not cases:
        return None
    counts = [0] * (max(cases).bit_length() + 1)
    for each in cases:
        counts[each.bit_length()] += 1
    numbers = [(_length_words(bits), keys) for bits, keys in enumerate(counts) if bits]
    return bars("Cases of a compile key", "cases", "keys", numbers)


def pairs_drawing(log: RunLog) -> Markup | None:
    """Return which pairs of features met in a case as a small matrix; None where the log does not say."""
    found = log.distributions
    names = features_of(log)
    if found is None or len(names) < 2:
        return None
    counts = [
        [
            found.together.get(name, {}).get(other, 0) if _is_possible(log, name, other) else None
            for other in names[:index]
        ]
        for index, name in enumerate(names)
    ]
    seen = covered_pairs(log) or (0, 0)
    words = f"{seen[0]} of {seen[1]} pairs of features met in a case. The table of all pairs holds the numbers."
    return charts.pairs_chart([_WORDS[name] for name in names], counts, words)


def keys_drawing(log: RunLog) -> Markup | None:
    """Return the compile keys covered over time; None where the log counts them less than once."""
    points = [moment for moments in log.history for moment in moments if moment.keys]
    if not points or len(log.history) != 1:
        return None
    words = f"{number(points[-1].keys)} compile keys after {points[-1].seconds:.0f} seconds"
    line = charts.Line([0.0, *(each.seconds for each in points)], [0, *(each.keys for each in points)])
    return charts.line_chart(line, "seconds", words)


def unseen_lines(log: RunLog) -> list[str]:
    """Return the lines of kernels of which a mask was not seen both ways and mixed, and nothing explains it."""
    gaps = mask_gaps.gaps(log.statistics.masks, log.target)
    return list(dict.fromkeys(f"{gap.mask.file}:{gap.mask.line}" for gap in gaps if not gap.because))
