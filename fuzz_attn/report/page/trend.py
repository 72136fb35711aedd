"""The page of several runs: how cases, failures and coverage changed from run to run of each target."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from fuzz_attn.engine.listeners.results import FoundFailure
from fuzz_attn.report import mask_gaps
from fuzz_attn.report.outcome import rows_of
from fuzz_attn.report.page import charts
from fuzz_attn.report.page.failures import title_of
from fuzz_attn.report.page.run_log import RunLog
from fuzz_attn.report.page.run_page import PAGE_NAME, moment, render, verdict_in_words
from fuzz_attn.report.page.sections import Cell, Figure, Row, Table, covered_pairs, number, table
from fuzz_attn.report.printing import count, safe

_SHOWN_RUNS: Final = 12
"""The table of failures has a column for each of so many of the last runs."""
_MARKS: Final[Mapping[str, str]] = {"open": "bad", "regressed": "bad", "known": "known", "passes": "good"}


def trend_page(logs: Sequence[RunLog], place: Path, made: float) -> str:
    """Return the page of the logs of several runs; it links to each run's page from the folder where it lies."""
    in_order = sorted(logs, key=lambda log: (log.target, log.started.time if log.started else 0.0))
    targets = [_target(name, list(runs), place) for name, runs in groupby(in_order, key=lambda log: log.target)]
    runs = len({log.folder for log in logs})
    title = f"Trend of {count(runs, 'run')}"
    title += f" of {safe(logs[0].target)}" if len(targets) == 1 else ""
    return render("trend.html", title=title, targets=targets, live=False, made=moment(made))


def _target(name: str, logs: list[RunLog], place: Path) -> dict[str, Any]:
    last = verdict_in_words(logs[-1])
    return {
        "target": safe(name),
        "verdict": last,
        "when": _began(logs[-1]),
        "next": _next(logs[-1], place),
        "changes": _changes(logs),
        "table": _runs_table(logs, place),
        "figures": list(_figures(logs)),
        "failures": _failures_table(logs[-_SHOWN_RUNS:], len(logs), place),
        "nothing": _nothing(logs),
    }


def _next(log: RunLog, place: Path) -> tuple[str, str]:
    """Return what to do next in words, and the address that they lead to."""
    page = _address(log, place)
    rows = enumerate(rows_of(log.report.failures), 1)
    first = next((index for index, (found, _, _) in rows if found.fails), None)
    if first is not None:
        return f"See failure {first} of the last run", f"{page}#failure-{first}"
    if verdict_in_words(log).mark != "good":
        return "See why the last run says so little", page
    return "Nothing to mend; see what the last run covered", f"{page}#covered"


def _address(log: RunLog, place: Path) -> str:
    """Return the address of a run's page, relative to a folder."""
    return quote(os.path.relpath(log.folder / PAGE_NAME, place))


def _began(log: RunLog) -> str:
    return moment(log.started.time)[:16] if log.started else log.folder.name


def _day(log: RunLog) -> str:
    return datetime.fromtimestamp(log.started.time, UTC).strftime("%d %b %H:%M") if log.started else log.folder.name


def _numbered(logs: Sequence[RunLog], runs: int) -> list[str]:
    """Return the day of each of the last of ``runs`` runs behind its number, which the charts have too."""
    first = runs - len(logs) + 1
    return [f"{index}: {_day(log)}" for index, log in enumerate(logs, first)]


def _runs_table(logs: list[RunLog], place: Path) -> Table:
    head = ("run", "began", "result", "cases", "cases/s", "open", "known", "regressed", "fixed", "masks seen", "pairs")
    rows = [(str(index), *_row(log, place)) for index, log in reversed(list(enumerate(logs, 1)))]
    return table("Runs, the newest first (UTC)", head, rows, numbers=range(3, len(head)))


def _row(log: RunLog, place: Path) -> Row:
    statistics, verdict = log.statistics, verdict_in_words(log)
    counts, pairs = numbers_of(log), covered_pairs(log)
    return (
        Cell(_began(log), link=_address(log, place)),
        Cell(verdict.words, verdict.mark),
        number(statistics.cases),
        f"{statistics.cases / statistics.seconds:.1f}" if statistics.seconds else "none",
        *(Cell(str(counts[name]), _MARKS.get(name, "") if counts[name] else "quiet") for name in counts),
        f"{seen_masks(log)} of {len(statistics.masks)}" if statistics.masks else "not recorded",
        f"{pairs[0]} of {pairs[1]}" if pairs else "not recorded",
    )


def numbers_of(log: RunLog) -> dict[str, int]:
    """Return how many failures are open, known and regressed, and how many saved ones passed."""
    states = [state_of(found) for found in log.report.failures]
    return {name: states.count(name) for name in ("open", "known", "regressed")} | {"fixed": len(log.passed)}


def state_of(found: FoundFailure) -> str:
    """Return the state of a failure: one whose file is marked as fixed has regressed."""
    status = found.counterexample.status
    return "regressed" if status == "fixed" else status


def seen_masks(log: RunLog) -> int:
    """Return the number of masks that lack no outcome, or only explained ones."""
    masks = log.statistics.masks
    return len(masks) - sum(not gap.because for gap in mask_gaps.gaps(masks, log.target))


def _figures(logs: list[RunLog]) -> Iterator[Figure]:
    """Yield a chart of each count that changed."""
    counts = {
        "Cases": [log.statistics.cases for log in logs],
        "Failures that fail the run": [sum(found.fails for found in log.report.failures) for log in logs],
        "Masks seen both ways and mixed": [seen_masks(log) for log in logs],
        "Pairs of features that met": [pairs[0] if (pairs := covered_pairs(log)) else 0 for log in logs],
    }
    yield from (_figure(title, values) for title, values in counts.items() if len(set(values)) > 1)


def _figure(title: str, values: list[int]) -> Figure:
    runs = range(1, 1 + len(values))
    words = f"{title} over {len(values)} runs: from {values[0]} to {values[-1]}"
    rows: list[Row] = [(run, number(value)) for run, value in zip(runs, values, strict=True)]
    shown = table(title, ("run", "count"), rows, numbers=(0, 1))
    svg = charts.line_chart(charts.Line(list(runs), values), "run, from old to new", words, first=1)
    return Figure(title, svg, words, shown)


def _name(found: FoundFailure) -> str:
    """Return what identifies a failure in several runs: its file, which runs share."""
    return Path(found.path).name or found.counterexample.signature


def _states(log: RunLog) -> dict[str, str]:
    passed = {Path(event.path).name: "passes" for event in log.passed}
    return passed | {_name(found): state_of(found) for found in log.report.failures}


def _failures_table(logs: list[RunLog], runs: int, place: Path) -> Table | None:
    """Return the state of each failure in each of the last of `runs` runs, the newest first, or None."""
    words = _titles(logs)
    if not words:
        return None
    newest = logs[::-1]
    states = [_states(log) for log in newest]
    links = [_links(log, place) for log in newest]
    rows: list[Row] = [
        (what, *(_state(state.get(name), link.get(name, "")) for state, link in zip(states, links, strict=True)))
        for name, what in words.items()
    ]
    return table("Each failure in each run, the newest first", ("failure", *reversed(_numbered(logs, runs))), rows)


def _titles(logs: Sequence[RunLog]) -> dict[str, str]:
    """Return the title of each failure, as the run says it that explains it."""
    every = [found for log in logs for found in log.report.failures]
    titles = {_name(found): _words(found) for found in every}
    return titles | {_name(found): _words(found) for found in every if found.counterexample.verdict.explanation}


def _words(found: FoundFailure) -> str:
    reason, title = title_of(found)
    return f"{reason}: {title}" if reason else title


def _links(log: RunLog, place: Path) -> dict[str, str]:
    """Return the address of each failure's section in a run's page."""
    rows = enumerate(rows_of(log.report.failures), 1)
    return {_name(found): f"{_address(log, place)}#failure-{index}" for index, (found, _, _) in rows}


def _state(state: str | None, link: str) -> Cell:
    return Cell(state or "not seen", _MARKS.get(state or "", "quiet"), link)


def _changes(logs: list[RunLog]) -> list[str]:
    """Return in sentences what the last run changed."""
    if len(logs) < 2:
        return ["There is one run, so nothing to compare it with yet."]
    titles = _titles(logs)
    titles |= {Path(event.path).name: Path(event.path).name for log in logs for event in log.passed} | titles
    before, after = _states(logs[-2]), _states(logs[-1])
    changed = {name: state for name, state in after.items() if before.get(name) != state}
    failing = {name: state for name, state in changed.items() if state in ("open", "regressed")}
    regressed = [name for name, state in failing.items() if state == "regressed"]
    again = [name for name, state in failing.items() if state == "open" and name in before]
    new = [name for name in failing if name not in before and name not in regressed]
    gone = [name for name, state in before.items() if state != "passes" and name not in after]
    fixed = [name for name, state in after.items() if state == "passes" and before.get(name, "passes") != "passes"]
    lists = (
        ("New", new),
        ("Regressed", regressed),
        ("Fails again", again),
        ("Passes now", fixed),
        ("Not seen again", gone),
    )
    sentences = [f"{words}: {safe('; '.join(map(titles.__getitem__, names)))}." for words, names in lists if names]
    return sentences or [_same(after)]


def _same(states: dict[str, str]) -> str:
    if any(state != "passes" for state in states.values()):
        return "The last run shows the same failures as the one before, and no other."
    return "The last two runs show no failure."


def _nothing(logs: list[RunLog]) -> str:
    """Return what the lack of failures in the shown runs means."""
    judged = sum(log.statistics.cases for log in logs)
    if not judged:
        return "No case was judged in any of these runs, so they say nothing of the target."
    return f"None of the {number(judged)} cases of these runs failed."
