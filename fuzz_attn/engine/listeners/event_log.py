"""EventLog: the events of a run as JSON lines, with counts every ten seconds in place of passing cases."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self, TypeAlias

import msgspec

from fuzz_attn.case.plain import Plain
from fuzz_attn.engine.events import WHOLE_RUN, CaseJudged, CaseNotCompiled, Event, Finished
from fuzz_attn.engine.listeners.distributions import Distributions, DistributionsTally
from fuzz_attn.engine.listeners.results import Results, RunReport
from fuzz_attn.engine.listeners.statistics import Statistics, Tally
from fuzz_attn.engine.run_folder import EVENT_LOGS, make_folder
from fuzz_attn.errors import OutputError
from fuzz_attn.foreign_files import opened

LOG_NAME: Final = "events.jsonl"
STATISTICS_SECONDS: Final = 10.0
LONGEST_LINE: Final = 256 * 2**20
"""Bytes; the longest are those of all masks of a run, of a few megabytes."""
WHOLE_SHARE: Final = 0.1
"""Everything is written again when a run has become so much longer, so that it takes little room in a long log."""


class StatisticsLine(Plain, frozen=True, tag_field="event", tag="statistics"):
    """The counts so far. Compile keys and masks are long, so only some lines have them, and the last one."""

    statistics: Statistics


class DistributionsLine(Plain, frozen=True, tag_field="event", tag="distributions"):
    """How the cases so far are spread; beside each line of statistics with compile keys and masks."""

    distributions: Distributions


Line: TypeAlias = Event | StatisticsLine | DistributionsLine
_DECODER: Final = msgspec.json.Decoder[Line](Line)


class EventLog:
    """Writes the events of a run to a file; call it with each.

    ``last_shard`` is the shard number of the event :class:`Finished` that ends the log. If the file cannot be written
    any more, for example because the disk is full, ``error`` says why and the run goes on. Raises :class:`OutputError`
    where the file cannot be made.
    """

    def __init__(self, path: Path, last_shard: int = WHOLE_RUN) -> None:
        self.error = ""
        self._path = path
        self._last_shard = last_shard
        self._tally = Tally()
        self._distributions = DistributionsTally()
        make_folder(path.parent)
        try:
            self._file: IO[bytes] | None = path.open("wb")
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {error.strerror}") from error
        self._began = self._written = self._wrote_all = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._close()

    def __call__(self, event: Event) -> None:
        """Write an event, if it is no case that passed or was dropped, and the counts, if it is time."""
        self._tally(event)
        self._distributions(event)
        self._write_counts(last=isinstance(event, Finished) and event.shard == self._last_shard)
        passed = isinstance(event, CaseJudged) and all(verdict.passed for verdict in event.verdicts)
        if not passed and not isinstance(event, CaseNotCompiled):
            self._write(event)

    def _write_counts(self, *, last: bool) -> None:
        """Write the counts at the end and every ten seconds, and from time to time all of them."""
        now = time.monotonic()
        if not last and now - self._written < STATISTICS_SECONDS:
            return
        whole = last or now - self._wrote_all >= WHOLE_SHARE * (self._wrote_all - self._began)
        self._written = now
        self._write(StatisticsLine(_shortened(self._tally.statistics(), whole=whole)))
        if whole:
            self._wrote_all = now
            self._write(DistributionsLine(self._distributions.distributions()))

    def _write(self, line: Line) -> None:
        if self._file is None:
            return
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
        except OSError as error:
            self.error = f"{self._path}: cannot be written: {error.strerror}"
            self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self.error = f"{self._path}: cannot be written: {error.strerror}"


def _shortened(statistics: Statistics, *, whole: bool) -> Statistics:
    return statistics if whole else msgspec.structs.replace(statistics, compile_keys={}, masks=())


def read_log(path: Path, *, skipped: Collection[str] = ()) -> Iterator[Line]:
    """Yield the lines of a log, without a last one that is cut off and without some kinds of events.

    Raises OSError for what is no file, and :class:`msgspec.DecodeError` for a line that is no event or is too long.
    """
    beginnings = tuple(f'{{"event":"{name}"'.encode() for name in skipped)
    with opened(path) as file:
        while text := file.readline(LONGEST_LINE):
            if len(text) == LONGEST_LINE:
                raise msgspec.DecodeError(f"a line has more than {LONGEST_LINE} bytes")
            if text.endswith(b"\n") and not text.startswith(beginnings):
                yield _decoded(text)


def _decoded(text: bytes) -> Line:
    try:
        line: Line = _DECODER.decode(text)
    except RecursionError as error:
        raise msgspec.DecodeError("a line is nested too deeply") from error
    return line


def report_of(log: Path) -> RunReport:
    """Return the report of a log, whose statistics are those of its last line of them."""
    results, statistics = Results(), None
    for line in read_log(log):
        if isinstance(line, StatisticsLine):
            statistics = line.statistics
        elif not isinstance(line, DistributionsLine):
            results(line)
    return results.report(statistics)


def logs_in(folder: Path) -> list[Path]:
    """Return the logs in a run's folder and the folders below it."""
    return sorted(folder.rglob(EVENT_LOGS))
