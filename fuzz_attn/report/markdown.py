"""Markdown: the results of a run or a replay for the page of a job of continuous integration."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from fuzz_attn.engine.listeners.results import FoundFailure, RunReport
from fuzz_attn.engine.replay import Replayed
from fuzz_attn.errors import OutputError
from fuzz_attn.report.failure import replay_command
from fuzz_attn.report.plain_text import count, visible
from fuzz_attn.report.summary import failure_in_words, rows_of, smallest_case

_ESCAPED: Final = {ord(character): f"\\{character}" for character in "\\`*_{}[]<>#|~&"}

_LINK: Final = re.compile(r"(?i)(\w(?=://)|\bwww(?=\.))")
"""Where GitHub's Markdown would see an address."""


def append(path: Path, text: str) -> None:
    """Append a text to a file; raises :class:`OutputError` if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


def of_run(reports: Sequence[RunReport], exit_status: int) -> str:
    """Return the results of all targets of a run."""
    found = sum(failure.fails for report in reports for failure in report.failures)
    headline = count(found, "failure") if found or not exit_status else f"exit status {exit_status}"
    lines = [f"## fuzz-attn: {headline}", ""]
    for report in reports:
        lines += _of_target(report)
    return "\n".join((*lines, ""))


def _of_target(report: RunReport) -> Iterator[str]:
    statistics = report.statistics
    rate = report.cases / report.seconds if report.seconds else 0.0
    yield f"### {_escaped(report.target)}"
    yield ""
    words = [f"{count(report.cases, 'case')} in {report.seconds:.0f} s ({rate:.1f} cases/s)"]
    words += [count(len(statistics.compile_keys), "compile key"), f"seed {statistics.seed}"]
    words += [f"{statistics.refused} refused"] if statistics.refused else []
    yield f"{', '.join(words)}, on {statistics.backend or 'no backend'}."
    yield ""
    if report.failures:
        yield from _table(("failure", "cases", "smallest case", "status", "replay"), _failure_rows(report.failures))
    for error in report.problems:
        yield f"- **Error:** {_escaped(error)}"
    for note in report.notes:
        yield f"- {_escaped(note)}"
    yield ""


def _failure_rows(failures: Sequence[FoundFailure]) -> Iterator[tuple[str, ...]]:
    for found, cases, status in rows_of(failures):
        words = f"{failure_in_words(found)}: {found.message}"
        known = f" ({found.counterexample.reference})" if found.known else ""
        command = replay_command(Path(found.path), found.counterexample) if found.path else ""
        cells = words, str(cases), smallest_case(found), f"{status}{known}"
        yield (*map(_escaped, cells), _code(command))


def of_replay(replayed: Sequence[Replayed], errors: Sequence[str]) -> str:
    """Return the results of a replay."""
    failed = sum(each.still_fails for each in replayed)
    lines = [f"## fuzz-attn: {len(replayed)} replayed, {failed} failed", ""]
    if replayed:
        rows = ((each.status, _code(str(each.path)), _escaped(_why(each))) for each in replayed)
        lines += _table(("status", "file", "why"), rows)
    lines += [f"- **Error:** {_escaped(error)}" for error in errors]
    return "\n".join((*lines, ""))


def _why(replayed: Replayed) -> str:
    if replayed.status == "CHANGED":
        return replayed.message
    if replayed.found.status == "known":
        return f"{replayed.found.because} ({replayed.found.reference})"
    return replayed.refused or ("" if replayed.verdict.passed else replayed.verdict.message)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{' --- |' * len(headings)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _escaped(text: str) -> str:
    """Return a text in one line in which nothing is markup or a link: messages contain what a target says."""
    return _LINK.sub(r"\1\\", " ".join(visible(text).translate(_ESCAPED).split()))


def _code(text: str) -> str:
    """Return a text as code, which needs no escapes but those of a table's cell."""
    one_line = " ".join(visible(text).split()).replace("`", "").replace("|", "\\|")
    return f"`{one_line}`" if one_line else ""
