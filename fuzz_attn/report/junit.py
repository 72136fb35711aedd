"""JUnit XML: the results of a run for continuous integration, one suite for each target, one case for each failure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

from fuzz_attn.engine.listeners.results import FoundFailure, RunReport
from fuzz_attn.errors import OutputError
from fuzz_attn.report.failure import certainty, known_line, plain_text
from fuzz_attn.report.plain_text import visible

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
    suite = SubElement(root, "testsuite", {"name": _clean(report.target), "time": f"{report.seconds:.3f}", **numbers})
    properties = SubElement(suite, "properties")
    for name in ("backend", "seed", "cases", "refused"):
        SubElement(properties, "property", name=name, value=str(getattr(report.statistics, name)))
    for found in failures:
        _add_failure(suite, report, found)
    for found in others:
        test = _test(suite, report, found.counterexample.signature)
        why = known_line(found.counterexample, found.path).plain if found.known else certainty(found.counterexample)
        SubElement(test, "skipped", message=_clean(why))
    for error in errors:
        SubElement(_test(suite, report, "run"), "error", message=_clean(error))
    if not failures and not others and not errors:
        _test(suite, report, f"{report.cases} cases")


def _add_failure(suite: Element, report: RunReport, found: FoundFailure) -> None:
    test = _test(suite, report, found.counterexample.signature)
    failure = SubElement(test, "failure", type=_clean(found.kind), message=_clean(found.message))
    failure.text = _clean(plain_text(found.counterexample, Path(found.path) if found.path else None))


def _test(suite: Element, report: RunReport, name: str) -> Element:
    return SubElement(suite, "testcase", classname=_clean(report.target), name=_clean(name))


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", visible(text))
