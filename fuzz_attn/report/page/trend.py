"""The page of several runs: how cases, failures and coverage changed from run to run of each target."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from fuzz_attn.engine.listeners.results import FoundFailure
from fuzz_attn.report import mask_gaps
from fuzz_attn.report.outcome import failure_in_words
from fuzz_attn.report.page import charts
from fuzz_attn.report.page.run_log import RunLog
from fuzz_attn.report.page.run_page import PAGE_NAME, moment, render, verdict_of
from fuzz_attn.report.page.sections import Cell, Figure, Row, Table, covered_pairs, number, table
from fuzz_attn.report.printing import count, safe

PAGE_OF_RUNS: Final = "trend.html"
_SHOWN_RUNS: Final = 12
"""The table of failures has a column for each of so many of the last runs."""


def trend_page(logs: Sequence[RunLog], place: Path, made: float) -> str:
    """Return the page of the logs of several runs; it links to each run's page from the folder where it lies."""
    in_order = sorted(logs, key=lambda log: (log.target, log.started.time if log.started else 0.0))
    targets = [_target(name, list(runs), place) for name, runs in groupby(in_order, key=lambda log: log.target)]
    runs = len({log.folder for log in logs})
    return render("trend.html", title=count(runs, "run"), targets=targets, live=False, made=moment(made))


def _target(name: str, logs: list[RunLog], place: Path) -> dict[str, Any]:
    return {
        "target": safe(name),
        "runs": [_link(log, place) for log in logs],
        "table": _runs_table(logs),
        "figures": list(_figures(logs)),
        "failures": _failures_table(logs[-_SHOWN_RUNS:]),
        "changes": _changes(logs),
    }


def _link(log: RunLog, place: Path) -> tuple[str, str]:
    """Return the address of a run's page, relative to a folder, and its words."""
    path = os.path.relpath(log.folder / PAGE_NAME, place)
    return quote(path), f"{_began(log)}: {verdict_of(log).headline}"


def _began(log: RunLog) -> str:
    return moment(log.started.time) if log.started else log.folder.name


def _runs_table(logs: list[RunLog]) -> Table:
    head = ("run", "result", "cases", "cases/s", "open", "known", "regressed", "fixed", "masks seen", "pairs")
    return table("Runs from old to new", head, map(_row, logs), numbers=range(2, len(head)))


def _row(log: RunLog) -> Row:
    statistics, verdict = log.statistics, verdict_of(log)
    counts = numbers_of(log)
    pairs = covered_pairs(log)
    return (
        _began(log),
        Cell(verdict.headline, verdict.mark),
        number(statistics.cases),
        f"{statistics.cases / statistics.seconds:.1f}" if statistics.seconds else "none",
        *(Cell(str(counts[name]), "bad" if name in ("open", "regressed") and counts[name] else "") for name in counts),
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
    if len(logs) < 2:
        return
    counts = [numbers_of(log) for log in logs]
    yield _figure("Cases", {"cases": [log.statistics.cases for log in logs]})
    yield _figure("Failures", {name: [each[name] for each in counts] for name in counts[0]})
    if any(log.statistics.masks for log in logs):
        yield _figure("Masks seen all true, all false and mixed", {"masks": [seen_masks(log) for log in logs]})


def _figure(title: str, values: dict[str, list[int]]) -> Figure:
    runs = range(1, 1 + len(next(iter(values.values()))))
    ends = ", ".join(f"{name} from {each[0]} to {each[-1]}" for name, each in values.items())
    words = f"{title} over {len(runs)} runs: {ends}"
    lines = [charts.Line(name, list(runs), each) for name, each in values.items()]
    rows: list[Row] = [(run, *(number(each[run - 1]) for each in values.values())) for run in runs]
    numbers = table(title, ("run", *values), rows, numbers=range(1, 1 + len(values)))
    return Figure(title, charts.line_chart(lines, "run, from old to new", title.lower(), words), words, numbers)


def _name(found: FoundFailure) -> str:
    """Return what identifies a failure in several runs: its file, which runs share."""
    return Path(found.path).name or found.counterexample.signature


def _states(log: RunLog) -> dict[str, str]:
    passed = {Path(event.path).name: "passes" for event in log.passed}
    return passed | {_name(found): state_of(found) for found in log.report.failures}


def _failures_table(logs: list[RunLog]) -> Table | None:
    """Return the state of each failure in each run; None where there are no failures."""
    words = {_name(found): safe(failure_in_words(found)) for log in logs for found in log.report.failures}
    if not words:
        return None
    states = [_states(log) for log in logs]
    rows: list[Row] = [
        (f"{what} ({name})", *(_state(state.get(name)) for state in states)) for name, what in words.items()
    ]
    return table("Each failure in each run", ("failure", *map(_began, logs)), rows)


def _state(state: str | None) -> Cell:
    marks = {"open": "bad", "regressed": "bad", "passes": "good"}
    return Cell(state or "not seen", marks.get(state or "", "quiet"))


def _changes(logs: list[RunLog]) -> list[str]:
    """Return in sentences what the last run changed."""
    if len(logs) < 2:
        return []
    before, after = _states(logs[-2]), _states(logs[-1])
    new = [name for name, state in after.items() if state in ("open", "regressed") and before.get(name) != state]
    gone = [name for name, state in before.items() if state != "passes" and name not in after]
    fixed = [name for name, state in after.items() if state == "passes" and before.get(name, "passes") != "passes"]
    lists = (("New or regressed", new), ("Passes now", fixed), ("Not seen again", gone))
    return list(_sentences(lists)) or ["The last run shows the same failures as the one before."]


def _sentences(lists: Iterable[tuple[str, list[str]]]) -> Iterator[str]:
    return (f"{words}: {safe(', '.join(names))}." for words, names in lists if names)
