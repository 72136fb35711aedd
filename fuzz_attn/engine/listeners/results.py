"""Results of a run: what a listener keeps of its events, and the report that it returns at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from fuzz_attn import counterexamples
from fuzz_attn.case.plain import Plain, Seconds, Whole
from fuzz_attn.counterexamples import Counterexample
from fuzz_attn.engine.events import (
    Event,
    FailureChanged,
    FailureFound,
    FailureSeenAgain,
    Finished,
    Note,
    SavedPassed,
    Which,
    name_of,
)
from fuzz_attn.engine.failures import triage
from fuzz_attn.engine.failures.reduction import simplicity
from fuzz_attn.engine.failures.triage import KnownFailure, contracts_of, is_same, naming, trigger_in
from fuzz_attn.engine.listeners.statistics import CountedRefusal, Statistics, Tally, merged
from fuzz_attn.errors import CounterexampleError
from fuzz_attn.operations.registry import FAMILIES

FAILED: Final = 1
BROKEN: Final = 2
INTERRUPTED: Final = 128
"""Exit status of shells for a program that a signal ended, without the signal's number."""
LEAST_JUDGED: Final = 0.1
"""A run that judged a smaller part of its cases says too little about the target to have the exit status 0."""


class FoundFailure(Plain, frozen=True, omit_defaults=False):
    """A failure of a run: its smallest case and file, how many cases showed it, and after how many seconds the first.

    ``path`` is empty where the file could not be written. ``done`` is false where the run ended before the failure was
    shrunk completely. A ``saved`` one has a file from before the run. One that is not ``followed`` is saved as it was
    seen, because there were too many others.
    """

    counterexample: Counterexample
    path: str
    first_seen: Seconds
    cases: Whole = 1
    done: bool = False
    saved: bool = False
    followed: bool = True

    @property
    def kind(self) -> str:
        """The property that failed and how, for example ``oracle (mismatch)``."""
        return self.counterexample.verdict.what

    @property
    def message(self) -> str:
        """What is wrong, in words."""
        return self.counterexample.verdict.message

    @property
    def known(self) -> bool:
        """Whether the file says that the failure is known, so that it does not fail the run."""
        return self.counterexample.status == "known"

    @property
    def fails(self) -> bool:
        """Whether the failure fails the run.

        A known one does not, and neither does a launch that took too long once, when the time was up before it could
        run again: on a busy machine, a correct kernel may do that.
        """
        found = self.counterexample
        slow_once = found.verdict.kind == "timeout" and found.confirmation == "unconfirmed"
        return not self.known and not slow_once


class RunReport(Plain, frozen=True, omit_defaults=False):
    """The results of fuzzing one target.

    - ``failures`` in the order in which they were first seen.
    - ``notes`` are what a reader must know but no failures; ``errors`` say why a worker ended early.
    - ``stopped_by`` is the number of the signal that ended the run, 0 if none did.
    """

    statistics: Statistics
    failures: tuple[FoundFailure, ...] = ()
    notes: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    stopped_by: int = 0

    @property
    def target(self) -> str:
        """The target that was fuzzed."""
        return self.statistics.target

    @property
    def refusals(self) -> tuple[CountedRefusal, ...]:
        """What the target or the compiler refused, the most frequent first."""
        return self.statistics.refusals

    @property
    def cases(self) -> int:
        """The number of cases that were judged, without those of confirming and shrinking."""
        return self.statistics.cases

    @property
    def seconds(self) -> float:
        """How long the run took."""
        return self.statistics.seconds

    @property
    def ok(self) -> bool:
        """Whether enough cases were judged, nothing was found that fails the run, and no worker ended early."""
        return self.exit_status == 0

    @property
    def reason(self) -> str:
        """Why the run judged nothing or too little, in one line; empty if it judged enough cases."""
        if self.cases:
            return self._too_few
        if self.failures:
            return ""
        refused = self.statistics.refused
        if refused:
            first = self.refusals[0].refusal
            return f"no case was judged: {self.target} refused all {refused}; most with {first.error}: {first.message}"
        if self.statistics.unsupported:
            return f"no case was judged: {self.statistics.fallback}"
        if self.statistics.unfinished:
            return f"no case was judged: the first launch still ran after {self.statistics.unfinished_seconds:.0f} s"
        return "no case was judged: the run ended before the first launch did"

    @property
    def _too_few(self) -> str:
        """Say that most cases were refused, or could not be run; empty if enough were judged.

        A built-in target must not refuse what its domain promises, and with ``--strict`` a refusal is a failure.
        """
        counts = self.statistics
        if counts.judged_share >= LEAST_JUDGED or self.target in FAMILIES:
            return ""
        every = self.cases + counts.refused + counts.not_judged
        few = f"only {self.cases} of {every} cases were judged, fewer than one in {1 / LEAST_JUDGED:.0f}"
        if counts.not_judged > counts.refused:
            return f"{few}: the backend could not run the others: {counts.fallback}"
        first = self.refusals[0].refusal
        return f"{few}: {self.target} refused {counts.refused}; most with {first.error}: {first.message}"

    @property
    def lost(self) -> str:
        """Say that failing cases of the log are in no failure of the report; empty if all of them are."""
        lost = self.statistics.lost
        if not lost:
            return ""
        of = f"{self.statistics.failing} cases failed"
        return f"{of}, and {lost} of their failures are in no row of the table: the log of the run has these cases"

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the run itself, each in one line: errors, too little judged, failures that are lost."""
        return (*(self.errors or filter(None, (self.reason,))), *filter(None, (self.lost,)))

    @property
    def exit_status(self) -> int:
        """The exit status: 1 for a failure, else 128 and a signal, else 2 for too little judged or an error, else 0.

        A failure that could not be saved is 2. Only those count that fail the run, and those that no row accounts for.
        """
        failing = [found for found in self.failures if found.fails]
        if failing or self.lost:
            return FAILED if all(found.path for found in failing) else BROKEN
        if self.stopped_by:
            return INTERRUPTED + self.stopped_by
        return BROKEN if self.reason or self.errors else 0


@dataclass
class _Failure:
    """A failure while the run goes on."""

    counterexample: Counterexample
    path: str
    first_seen: float
    cases: int = 1
    done: bool = False
    saved: bool = False
    followed: bool = True
    merged: tuple[Counterexample, ...] = ()
    """Contracts of other arguments that are in its row."""

    def found(self) -> FoundFailure:
        own = {name: value for name, value in vars(self).items() if name != "merged"}
        return FoundFailure(**{**own, "counterexample": naming(self.counterexample, *self.merged)})


class Results:
    """The failures, refusals, notes and statistics of a run; call it with each event."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.notes: list[str] = []
        self.errors: list[str] = []
        self.stopped_by = 0
        self._failures: dict[Which, _Failure] = {}
        self._names: dict[str, Which] = {}
        self._rows: dict[Which, Which] = {}
        """For each failure the one whose row it is in: itself, or what it turned out to be the same as."""

    def __call__(self, event: Event) -> None:
        """Keep what an event reports."""
        self.tally(event)
        match event:
            case FailureFound():
                name = event.shard, event.failure
                self._failures[name] = _Failure(
                    event.counterexample, event.path, event.seconds, saved=event.saved, followed=event.followed
                )
                self._name(name, event.path)
            case FailureChanged():
                self._change(event)
            case FailureSeenAgain():
                self._count(self._row_of(event.which, event.path), event.cases)
            case SavedPassed() if event.counterexample.status != "fixed":
                self.notes.append(pass_in_words(event))
            case Note() if event.text not in self.notes:
                self.notes.append(event.text)
            case Finished():
                self.errors += [event.error] if event.error else []
                self.stopped_by = self.stopped_by or event.stopped_by

    def _change(self, event: FailureChanged) -> None:
        name = event.shard, event.failure
        # An interrupt may come between the failure and its first event.
        new = _Failure(event.counterexample, event.path, self.statistics.seconds)
        failure = self._failures.setdefault(name, new)
        other = self._row_of(event.same, event.same_as) if event.same_as else None
        self._name(name, event.path)
        if other is not None and other != name and other in self._failures:
            gone, row = self._failures.pop(name), self._failures[other]
            row.cases += gone.cases
            row.merged += tuple(each for each in (gone.counterexample, *gone.merged) if contracts_of(each))
            self._rows = {each: other if row == name else row for each, row in self._rows.items()}
            return
        # Of two failures that ended as each other, one has to stay.
        failure.counterexample, failure.path, failure.done = event.counterexample, event.path, event.done

    def _name(self, name: Which, path: str) -> None:
        """Let a failure have a row of its own, and a path."""
        self._names[name_of(*name, path)] = name
        self._rows[name] = name

    def _row_of(self, which: Which | None, path: str) -> Which | None:
        """Return the failure in whose row one is, which logs of earlier versions name by a path that it has or had."""
        name = which if which in self._rows else self._names.get(path)
        return None if name is None else self._rows.get(name)

    def _count(self, row: Which | None, cases: int) -> None:
        if row in self._failures:
            self._failures[row].cases += cases

    @property
    def failures(self) -> tuple[FoundFailure, ...]:
        """The failures in the order in which they were first seen; those with one file are one."""
        return one_for_each_file(failure.found() for failure in self._failures.values())

    @property
    def failure(self) -> Counterexample | None:
        """The failure that was seen first."""
        return self.failures[0].counterexample if self.failures else None

    @property
    def path(self) -> Path | None:
        """The file of the failure that was seen first."""
        return Path(self.failures[0].path) if self.failures else None

    @property
    def statistics(self) -> Statistics:
        """The counts so far."""
        return self.tally.statistics()

    def report(self, statistics: Statistics | None = None) -> RunReport:
        """Return the report, with other statistics where the events were not all of the run's."""
        return RunReport(
            self._with_failures(statistics),
            self.failures,
            tuple(self.notes),
            tuple(dict.fromkeys(self.errors)),
            self.stopped_by,
        )

    def _with_failures(self, given: Statistics | None) -> Statistics:
        """Return the counts with the files of the failures as they are now.

        Of what is lost, the smaller number is right where both are known: counts in the middle of a run come before
        the failure, and a merged log has no longer what became of each failure.
        """
        own = self.statistics
        counts = given or own
        lost = min(counts.lost, own.lost) if own.failing else counts.lost
        rows = self._failures.values()
        known = sorted({row.path for row in rows if row.counterexample.status == "known"})
        others = sorted({row.path for row in rows if row.counterexample.status != "known"})
        return msgspec.structs.replace(counts, lost=lost, counterexamples=tuple(others), known=tuple(known))


def pass_in_words(event: SavedPassed) -> str:
    """Return that a saved failure passes, and what to do about it."""
    found = event.counterexample
    what = f"the known failure {event.path} ({found.reference})" if found.status == "known" else event.path
    return f"an unexpected pass: {what} does not fail any more; mark it as fixed if the bug is"


def one_for_each_file(failures: Iterable[FoundFailure]) -> tuple[FoundFailure, ...]:
    """Return failures in the order in which they were first seen; those with one file are one, with all their cases."""
    by_path: dict[str, FoundFailure] = {}
    for failure in sorted(failures, key=lambda failure: failure.first_seen):
        name = failure.path or f"{len(by_path)}"  # without a file, each is a failure of its own
        known = by_path.get(name)
        by_path[name] = failure if known is None else _with(known, failure)
    return tuple(by_path.values())


def _with(known: FoundFailure, same: FoundFailure) -> FoundFailure:
    """Return a failure with the cases of another one that is the same bug, whose contracts it names too."""
    return msgspec.structs.replace(
        known,
        counterexample=naming(known.counterexample, same.counterexample),
        cases=known.cases + same.cases,
        first_seen=min(known.first_seen, same.first_seen),
    )


def one_for_each_bug(report: RunReport) -> RunReport:
    """Return a report without the failures that are the same bug as another one, and delete their files.

    Shards that found a bug at the same time, shortly before the end, could not tell each other. A file from before the
    run stays. A failure that has lost its file gets it back, and one that stands for contracts of other arguments names
    them in its file.
    """
    left, same = without_duplicates(report)
    for path in map(Path, same):
        with contextlib.suppress(OSError, CounterexampleError):
            counterexamples.load(path)  # the path may come from a log: nothing else is deleted
            path.unlink(missing_ok=True)
    for failure in left.failures:
        if failure.path and not failure.saved:
            _restore(failure.counterexample, Path(failure.path))
    return left


def _restore(found: Counterexample, path: Path) -> None:
    """Write a file again that has gone, for example with a failure that it was taken for, or that names too little."""
    with contextlib.suppress(OSError, CounterexampleError):
        named = contracts_of(found)
        if not path.exists() or (named and not set(named) <= set(contracts_of(counterexamples.load(path)))):
            counterexamples.overwrite(found, path)


def without_duplicates(report: RunReport) -> tuple[RunReport, tuple[str, ...]]:
    """Return a report without the failures that are the same bug as another one, and the files of these."""
    found = {failure.path: failure for failure in report.failures if failure.path}
    same = dict(_same_bugs(found))
    for path, kept in same.items():
        found[kept] = _with(found[kept], found.pop(path))
    failures = tuple(found.get(failure.path, failure) for failure in report.failures if failure.path not in same)
    counted = report.statistics
    left = msgspec.structs.replace(
        counted,
        counterexamples=tuple(path for path in counted.counterexamples if path not in same),
        known=tuple(path for path in counted.known if path not in same),
    )
    return msgspec.structs.replace(report, statistics=left, failures=failures), tuple(same)


def _same_bugs(found: dict[str, FoundFailure]) -> Iterator[tuple[str, str]]:
    """Yield each file that is the same bug as another one, and that: one from before the run where there is one."""
    merged = triage.merged((path, failure.counterexample) for path, failure in found.items())
    groups: dict[str, list[str]] = {}
    for path in found:
        groups.setdefault(merged.get(path, path), []).append(path)
    for best, group in groups.items():
        saved = [path for path in group if found[path].saved]
        kept = best if best in saved or not saved else saved[0]
        yield from ((path, kept) for path in group if path != kept and path not in saved)


def merged_reports(reports: Iterable[RunReport]) -> RunReport | None:
    """Return the reports of all shards of one target as one; None when there are none."""
    parts = tuple(reports)
    statistics = merged(part.statistics for part in parts)
    if statistics is None:
        return None
    return RunReport(
        statistics,
        one_for_each_file(failure for part in parts for failure in part.failures),
        tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        tuple(dict.fromkeys(error for part in parts for error in part.errors)),
        max(part.stopped_by for part in parts),
    )


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
            found, changed = counterexamples.load(path), path.stat().st_mtime
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
