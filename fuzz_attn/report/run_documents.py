"""Run documents: the results of a run or a replay for other programs, and for jobs of continuous integration.

They are one JSON document, JUnit XML, Markdown for the page of a job, and annotations of GitHub Actions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

import msgspec

from fuzz_attn.engine.listeners.results import FoundFailure, RunReport
from fuzz_attn.engine.listeners.statistics import Statistics
from fuzz_attn.engine.replay import Replayed
from fuzz_attn.errors import OutputError
from fuzz_attn.report.failure import certainty, known_line, plain_text, replay_command
from fuzz_attn.report.outcome import NOT_FOLLOWED, failure_in_words, rows_of, smallest_case
from fuzz_attn.report.printing import count, visible

SCHEMA: Final = 1
"""The version of the document."""


def json_document(reports: Sequence[RunReport], exit_status: int) -> str:
    """Return the reports of all targets as JSON text."""
    content = {
        "schema": SCHEMA,
        "ok": exit_status == 0,
        "exit_status": exit_status,
        "targets": [_json_of_target(report) for report in reports],
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=1).decode()


def json_numbers(statistics: Statistics) -> dict[str, Any]:
    """Return statistics without the masks, which are in ``coverage.json``."""
    content: dict[str, Any] = msgspec.to_builtins(statistics)
    del content["masks"], content["shrinking_now"]
    return content


def _json_of_target(report: RunReport) -> dict[str, Any]:
    return {
        "target": report.target,
        "ok": report.ok,
        "reason": report.reason,
        "lost": report.lost,
        "failures": [_json_of_failure(found) for found in report.failures],
        "refusals": msgspec.to_builtins(report.refusals),
        "notes": report.notes,
        "errors": report.errors,
        "stopped_by": report.stopped_by,
        "statistics": json_numbers(report.statistics),
    }


def _json_of_failure(found: FoundFailure) -> dict[str, Any]:
    return {"kind": found.kind, "message": found.message, **msgspec.to_builtins(found)}


_FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold."""


def save_junit(reports: Iterable[RunReport], path: Path) -> None:
    """Write the reports to a file; raises :class:`OutputError` if it cannot be written."""
    root = Element("testsuites", name="fuzz-attn")
    for report in reports:
        _add_suite(root, report)
    indent(root)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


def _add_suite(root: Element, report: RunReport) -> None:
    """Add a suite: a test for each failure, or one test that passed, or one that could not run.

    A failure that does not fail the run is a skipped test.
    """
    failures = [found for found in report.failures if found.fails]
    others = [found for found in report.failures if not found.fails]
    errors = report.problems
    tests = len(failures) + len(others) + len(errors) or 1
    numbers = {
        "tests": str(tests),
        "failures": str(len(failures)),
        "errors": str(len(errors)),
        "skipped": str(len(others)),
    }
    suite = SubElement(
        root, "testsuite", {"name": _clean_xml(report.target), "time": f"{report.seconds:.3f}", **numbers}
    )
    properties = SubElement(suite, "properties")
    for name in ("backend", "seed", "cases", "refused"):
        SubElement(properties, "property", name=name, value=str(getattr(report.statistics, name)))
    for found in failures:
        _add_failure(suite, report, found)
    for found in others:
        test = _add_test(suite, report, found.counterexample.signature)
        why = known_line(found.counterexample, found.path).plain if found.known else certainty(found.counterexample)
        SubElement(test, "skipped", message=_clean_xml(why))
    for error in errors:
        SubElement(_add_test(suite, report, "run"), "error", message=_clean_xml(error))
    if not failures and not others and not errors:
        _add_test(suite, report, f"{report.cases} cases")


def _add_failure(suite: Element, report: RunReport, found: FoundFailure) -> None:
    test = _add_test(suite, report, found.counterexample.signature)
    failure = SubElement(test, "failure", type=_clean_xml(found.kind), message=_clean_xml(found.message))
    failure.text = _clean_xml(plain_text(found.counterexample, Path(found.path) if found.path else None))


def _add_test(suite: Element, report: RunReport, name: str) -> Element:
    return SubElement(suite, "testcase", classname=_clean_xml(report.target), name=_clean_xml(name))


def _clean_xml(text: str) -> str:
    return _FORBIDDEN.sub("?", visible(text))


_ESCAPED: Final = {ord(character): f"\\{character}" for character in "\\`*_{}[]<>#|~&"}

_LINK: Final = re.compile(r"(?i)(\w(?=://)|\bwww(?=\.))")
"""Where GitHub's Markdown would see an address."""


def append_markdown(path: Path, text: str) -> None:
    """Append a text to a file; raises :class:`OutputError` if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


def markdown_of_run(reports: Sequence[RunReport], exit_status: int) -> str:
    """Return the results of all targets of a run."""
    found = sum(failure.fails for report in reports for failure in report.failures)
    headline = count(found, "failure") if found or not exit_status else f"exit status {exit_status}"
    lines = [f"## fuzz-attn: {headline}", ""]
    for report in reports:
        lines += _markdown_of_target(report)
    return "\n".join((*lines, ""))


def _markdown_of_target(report: RunReport) -> Iterator[str]:
    statistics = report.statistics
    rate = report.cases / report.seconds if report.seconds else 0.0
    yield f"### {_escaped_markdown(report.target)}"
    yield ""
    words = [f"{count(report.cases, 'case')} in {report.seconds:.0f} s ({rate:.1f} cases/s)"]
    words += [count(len(statistics.compile_keys), "compile key"), f"seed {statistics.seed}"]
    words += [f"{statistics.refused} refused"] if statistics.refused else []
    yield f"{', '.join(words)}, on {statistics.backend or 'no backend'}."
    yield ""
    if report.failures:
        yield from _markdown_table(
            ("failure", "cases", "smallest case", "status", "replay"), _failure_rows(report.failures)
        )
    for error in report.problems:
        yield f"- **Error:** {_escaped_markdown(error)}"
    for note in report.notes:
        yield f"- {_escaped_markdown(note)}"
    yield ""


def _failure_rows(failures: Sequence[FoundFailure]) -> Iterator[tuple[str, ...]]:
    for found, cases, status in rows_of(failures):
        words = f"{failure_in_words(found)}: {found.message}"
        known = f" ({found.counterexample.reference})" if found.known else ""
        command = replay_command(Path(found.path), found.counterexample) if found.path else ""
        cells = words, str(cases), smallest_case(found), f"{status}{known}"
        yield (*map(_escaped_markdown, cells), _markdown_code(command))


def markdown_of_replay(replayed: Sequence[Replayed], errors: Sequence[str]) -> str:
    """Return the results of a replay."""
    failed = sum(each.still_fails for each in replayed)
    lines = [f"## fuzz-attn: {len(replayed)} replayed, {failed} failed", ""]
    if replayed:
        rows = ((each.status, _markdown_code(str(each.path)), _escaped_markdown(_why(each))) for each in replayed)
        lines += _markdown_table(("status", "file", "why"), rows)
    lines += [f"- **Error:** {_escaped_markdown(error)}" for error in errors]
    return "\n".join((*lines, ""))


def _why(replayed: Replayed) -> str:
    if replayed.status == "CHANGED":
        return replayed.message
    if replayed.found.status == "known":
        return f"{replayed.found.because} ({replayed.found.reference})"
    return replayed.refused or ("" if replayed.verdict.passed else replayed.verdict.message)


def _markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{' --- |' * len(headings)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _escaped_markdown(text: str) -> str:
    """Return a text in one line in which nothing is markup or a link: messages contain what a target says."""
    return _LINK.sub(r"\1\\", " ".join(visible(text).translate(_ESCAPED).split()))


def _markdown_code(text: str) -> str:
    """Return a text as code, which needs no escapes but those of a table's cell."""
    one_line = " ".join(visible(text).split()).replace("`", "").replace("|", "\\|")
    return f"`{one_line}`" if one_line else ""


_DATA: Final = {ord("%"): "%25", ord("\r"): "%0D", ord("\n"): "%0A"}
_PROPERTY: Final = {**_DATA, ord(":"): "%3A", ord(","): "%2C"}


def annotations_of_run(reports: Iterable[RunReport]) -> Iterator[str]:
    """Yield an error for each failure and each problem of a run, and a notice for each known failure."""
    for report in reports:
        for found in report.failures:
            yield _annotation_of_failure(report.target, found)
        for error in report.problems:
            yield _annotation("error", f"fuzz-attn: {report.target}", "", error)


def annotations_of_replay(replayed: Iterable[Replayed], errors: Iterable[str]) -> Iterator[str]:
    """Yield an error for each file that fails or cannot be replayed, and a notice for each known failure."""
    for each in replayed:
        if each.still_fails:
            yield _annotation("error", f"{each.status}: {each.found.target}", str(each.path), each.message)
        elif each.status in ("KNOWN", "PASSES"):
            words = f"{each.found.because} ({each.found.reference})"
            yield _annotation("notice", f"{each.status}: {each.found.target}", str(each.path), words)
    for error in errors:
        yield _annotation("error", "fuzz-attn replay", "", error)


def _annotation_of_failure(target: str, found: FoundFailure) -> str:
    title = f"{target}: {failure_in_words(found)}"
    if found.known:
        return _annotation("notice", f"known: {title}", found.path, found.counterexample.reference)
    if not found.fails:
        return _annotation("warning", f"unconfirmed: {title}", found.path, found.message)
    title = title if found.followed else f"{NOT_FOLLOWED}: {title}"
    return _annotation("error", title, found.path, found.message)


def _annotation(level: str, title: str, file: str, text: str) -> str:
    """Return one annotation; a line that a target's message would begin is no command, as its line ends are escaped."""
    place = f"file={_one_text(file).translate(_PROPERTY)}," if file else ""
    return f"::{level} {place}title={_one_text(title).translate(_PROPERTY)}::{_one_text(text).translate(_DATA)}"


def _one_text(text: str) -> str:
    return visible(text.replace("\r\n", "\n"))
