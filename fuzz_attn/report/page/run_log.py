"""RunLog: what the event logs of one run say of one target, read line by line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from fuzz_attn.engine.events import WHOLE_RUN, Finished, SavedPassed, Started, WorkerLost, WorkerReady
from fuzz_attn.engine.listeners.distributions import Distributions
from fuzz_attn.engine.listeners.distributions import merged as merged_distributions
from fuzz_attn.engine.listeners.event_log import DistributionsLine, Line, StatisticsLine, logs_in, read_log
from fuzz_attn.engine.listeners.results import Results, RunReport, merged_reports, without_duplicates
from fuzz_attn.engine.listeners.statistics import Statistics
from fuzz_attn.engine.orders import Ready
from fuzz_attn.engine.run_folder import is_run_folder
from fuzz_attn.errors import ReportError

COUNTED = ("case_judged", "case_refused", "case_unsupported")
"""Events that the statistics count. They are most of a log, so they are not decoded."""


class Moment(NamedTuple):
    """The counts of a run after some seconds; ``keys`` is 0 where the log does not say how many there were."""

    seconds: float
    cases: int
    outcomes: int
    failures: int
    keys: int = 0


@dataclass
class RunLog:
    """One log, or all logs of one target in a run's folder.

    ``history`` holds a tuple of moments for each log. ``distributions`` is None where the log has none, and
    ``finished`` is false where the run still goes on or was killed.
    """

    folder: Path
    report: RunReport
    started: Started | None = None
    ready: Ready | None = None
    history: tuple[tuple[Moment, ...], ...] = ()
    distributions: Distributions | None = None
    finished: bool = False
    passed: tuple[SavedPassed, ...] = ()
    deaths: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """The target that was fuzzed."""
        return self.report.target or (self.started.target if self.started else "")

    @property
    def statistics(self) -> Statistics:
        """The last counts of the log."""
        return self.report.statistics


@dataclass
class _Reader:
    """Keeps what a report needs of the lines of one log; call it with each."""

    results: Results = field(default_factory=Results)
    started: Started | None = None
    ready: Ready | None = None
    statistics: Statistics | None = None
    distributions: Distributions | None = None
    whole: Statistics | None = None
    moments: list[Moment] = field(default_factory=list)
    passed: list[SavedPassed] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)
    open_shards: set[int] = field(default_factory=set)
    finished: bool = False

    def __call__(self, line: Line) -> None:
        if isinstance(line, StatisticsLine):
            self._count(line.statistics)
        elif isinstance(line, DistributionsLine):
            self.distributions = line.distributions
        else:
            self.results(line)
        match line:
            case Started():
                self.started = line
            case WorkerReady():
                self.ready = self.ready or line.ready
                self.open_shards.add(line.shard)
            case SavedPassed():
                self.passed.append(line)
            case WorkerLost():
                self.deaths.append(line.reason)
            case Finished():
                self.open_shards.discard(line.shard)
                self.finished = line.shard == WHOLE_RUN or not self.open_shards

    def _count(self, counts: Statistics) -> None:
        """Keep the counts, and those of the last line that has compile keys and masks too."""
        self.statistics = counts
        if counts.compile_keys or self.whole is None:
            self.whole = counts
        failures = len(counts.counterexamples)
        keys = len(counts.compile_keys)
        self.moments.append(Moment(counts.seconds, counts.cases, counts.outcomes, failures, keys))

    def log(self, folder: Path) -> RunLog:
        """Return what was kept."""
        report = self.results.report(self._statistics())
        return RunLog(
            folder,
            report,
            self.started,
            self.ready,
            (tuple(self.moments),) if self.moments else (),
            self.distributions,
            self.finished,
            tuple(self.passed),
            tuple(self.deaths),
        )

    def _statistics(self) -> Statistics:
        """Return the last counts, with the compile keys and masks of the last line that has them."""
        if self.statistics is None or self.whole is None:
            return Statistics(self.started.target if self.started else "")
        return msgspec.structs.replace(self.statistics, compile_keys=self.whole.compile_keys, masks=self.whole.masks)


def read_run(folder: Path) -> list[RunLog]:
    """Return a log for each target of a run; raises :class:`ReportError` where the folder holds none that can be read.

    Logs of one target in one folder are those of its shards.
    """
    paths = logs_in(folder) if folder.is_dir() else []
    if not paths:
        raise ReportError(f"{folder}: holds no events*.jsonl, so it is no folder of a run")
    logs = sorted((_read(path) for path in paths), key=_identity)
    return [_joined(tuple(shards)) for _, shards in groupby(logs, key=_identity)]


def _identity(log: RunLog) -> tuple[Path, str]:
    return log.folder, log.target


def _read(path: Path) -> RunLog:
    reader = _Reader()
    try:
        for line in read_log(path, skipped=COUNTED):
            reader(line)
    except OSError as error:
        raise ReportError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"{path}: is no log of a run by this version: {error}") from error
    return reader.log(path.parent)


def _joined(logs: tuple[RunLog, ...]) -> RunLog:
    """Return the logs of all shards of a target as one, in which each bug is one failure."""
    first = logs[0]
    merged = merged_reports(log.report for log in logs) if len(logs) > 1 else None
    report = merged or first.report
    distributions = [log.distributions for log in logs if log.distributions]
    return RunLog(
        first.folder,
        without_duplicates(report)[0],
        min((log.started for log in logs if log.started), key=lambda started: started.time, default=None),
        next((log.ready for log in logs if log.ready), None),
        tuple(moments for log in logs for moments in log.history),
        merged_distributions(distributions),
        all(log.finished for log in logs),
        tuple(each for log in logs for each in log.passed),
        tuple(each for log in logs for each in log.deaths),
    )


def run_before(folder: Path, target: str) -> Path | None:
    """Return the folder of the newest earlier run of a target beside a run's folder, None if there is none.

    Of each log only the first line is read.
    """
    beside = folder.absolute().parent
    earlier = sorted(path for path in beside.iterdir() if path.name < folder.name and is_run_folder(path))
    return next((path for path in reversed(earlier) if target in _targets_in(path)), None)


def _targets_in(folder: Path) -> Iterator[str]:
    for path in logs_in(folder):
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            yield from (line.target for line in islice(read_log(path), 1) if isinstance(line, Started))


def runs_in(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield each folder of a run, and in place of a folder that holds such folders, all of them from old to new."""
    for folder in folders:
        inner = sorted(path for path in folder.iterdir() if is_run_folder(path)) if folder.is_dir() else []
        yield from inner or (folder,)
