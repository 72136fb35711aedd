"""The sections of a run's page, made from its log. What the log does not hold is said, never guessed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

from fuzz_attn.case.features import CASE_FEATURES
from fuzz_attn.engine.listeners.distributions import EXACT, LARGEST, Distributions
from fuzz_attn.engine.refusals.counts import CountedRefusal
from fuzz_attn.report.page import charts
from fuzz_attn.report.page.run_log import Moment, RunLog
from fuzz_attn.report.page.tables import Cell, Figure, Row, Table, number, share, table
from fuzz_attn.report.plain_text import safe
from fuzz_attn.report.refusals import combinations_in_words

_WORDS: Final[Mapping[str, str]] = {feature.name: feature.words for feature in CASE_FEATURES}
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
    promised = {feature.name for feature in CASE_FEATURES if log.ready and log.ready.domain.allows(feature.name)}
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
