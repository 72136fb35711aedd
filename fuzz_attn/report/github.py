"""Annotations of GitHub Actions: a line for each failure, which the page of the job and of the commit shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fuzz_attn.engine.listeners.results import FoundFailure, RunReport
from fuzz_attn.engine.replay import Replayed
from fuzz_attn.report.plain_text import visible
from fuzz_attn.report.summary import NOT_FOLLOWED, failure_in_words

_DATA: Final = {ord("%"): "%25", ord("\r"): "%0D", ord("\n"): "%0A"}
_PROPERTY: Final = {**_DATA, ord(":"): "%3A", ord(","): "%2C"}


def of_run(reports: Iterable[RunReport]) -> Iterator[str]:
    """Yield an error for each failure and for whatever ended a run, and a notice for each known failure."""
    for report in reports:
        for found in report.failures:
            yield _of_failure(report.target, found)
        for error in report.problems:
            yield _line("error", f"fuzz-attn: {report.target}", "", error)


def of_replay(replayed: Iterable[Replayed], errors: Iterable[str]) -> Iterator[str]:
    """Yield an error for each file that fails or cannot be replayed, and a notice for each known failure."""
    for each in replayed:
        if each.still_fails:
            yield _line("error", f"{each.status}: {each.found.target}", str(each.path), each.message)
        elif each.status in ("KNOWN", "PASSES"):
            words = f"{each.found.because} ({each.found.reference})"
            yield _line("notice", f"{each.status}: {each.found.target}", str(each.path), words)
    for error in errors:
        yield _line("error", "fuzz-attn replay", "", error)


def _of_failure(target: str, found: FoundFailure) -> str:
    title = f"{target}: {failure_in_words(found)}"
    if found.known:
        return _line("notice", f"known: {title}", found.path, found.counterexample.reference)
    if not found.fails:
        return _line("warning", f"unconfirmed: {title}", found.path, found.message)
    title = title if found.followed else f"{NOT_FOLLOWED}: {title}"
    return _line("error", title, found.path, found.message)


def _line(level: str, title: str, file: str, text: str) -> str:
    """Return one annotation; a line that a target's message would begin is no command, as its line ends are escaped."""
    place = f"file={_one_text(file).translate(_PROPERTY)}," if file else ""
    return f"::{level} {place}title={_one_text(title).translate(_PROPERTY)}::{_one_text(text).translate(_DATA)}"


def _one_text(text: str) -> str:
    return visible(text.replace("\r\n", "\n"))
