"""OtherRuns: failures that another run saved in the same folder at the same time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fuzz_attn.counterexamples import counterexample
from fuzz_attn.counterexamples.counterexample import Counterexample
from fuzz_attn.engine.failures.reduction import simplicity
from fuzz_attn.engine.failures.triage import KnownFailure, is_same, trigger_in
from fuzz_attn.engine.listeners.results import FoundFailure, RunReport
from fuzz_attn.errors import CounterexampleError


@dataclass(frozen=True)
class _File:
    path: Path
    found: Counterexample

    @property
    def rank(self) -> tuple[bool, tuple[float, ...], str]:
        """The order in which two runs prefer files, so that both keep the same one."""
        return not self.found.shrunk, simplicity(self.found.case, self.found.relation), self.path.name

    @property
    def known(self) -> KnownFailure:
        return KnownFailure(0, 0, self.found, str(self.path), trigger_in(self.found), complete=self.found.shrunk)


def united_with_other_runs(report: RunReport, began: float) -> RunReport:
    """Return a report in which each bug that another run has saved too since ``began`` has one file.

    That is the simpler one. If it is the other run's, the file of this run goes; the file of another run always stays.
    ``began`` is in seconds since 1970.
    """
    own = [failure for failure in report.failures if failure.path and failure.followed and not failure.saved]
    others = list(_files_of_others(report, {Path(failure.path).parent for failure in own}, began))
    moved: dict[str, str] = {}
    for failure in own:
        mine = _File(Path(failure.path), failure.counterexample)
        better = (each for each in others if each.rank < mine.rank and _is_one_bug(each, mine))
        kept = min(better, key=lambda each: each.rank, default=None)
        if kept is not None:
            moved[failure.path] = str(kept.path)
            with contextlib.suppress(OSError):
                mine.path.unlink(missing_ok=True)
    return _moved(report, moved) if moved else report


def _files_of_others(report: RunReport, folders: set[Path], began: float) -> Iterator[_File]:
    """Yield the confirmed open failures of the same target that are new in some folders and not of this run."""
    paths = {Path(failure.path) for failure in report.failures}
    for path in sorted(path for folder in folders for path in folder.glob("*.json") if path not in paths):
        try:
            found, changed = counterexample.load(path), path.stat().st_mtime
        except (CounterexampleError, OSError):  # gone since, or being written by something else
            continue
        new = changed >= began and found.status == "open" and found.confirmation == "confirmed"
        if new and found.target == report.target:
            yield _File(path, found)


def _is_one_bug(one: _File, other: _File) -> bool:
    confirmed = other.found.confirmation == "confirmed"
    return confirmed and is_same(one.known, other.known) and is_same(other.known, one.known)


def _moved(report: RunReport, moved: dict[str, str]) -> RunReport:
    def place(failure: FoundFailure) -> FoundFailure:
        return msgspec.structs.replace(failure, path=moved.get(failure.path, failure.path))

    counts = report.statistics
    paths = tuple(sorted({moved.get(path, path) for path in counts.counterexamples}))
    notes = (f"another run saved the same bug in a simpler case: {path}" for path in dict.fromkeys(moved.values()))
    return msgspec.structs.replace(
        report,
        statistics=msgspec.structs.replace(counts, counterexamples=paths),
        failures=tuple(place(failure) for failure in report.failures),
        notes=(*report.notes, *notes),
    )
