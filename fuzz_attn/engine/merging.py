"""Merging: the union of several runs of one target, as the log and the counterexamples of one run.

The merged folder keeps the logs of all parts and follows from them only. So merging again changes nothing, and neither
does the order of the parts.

A log is known by its first line, which says when the run began, on what and as which part. So a log that is found twice
counts once, and of two copies of one log the longer is the later.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from fuzz_attn import counterexamples
from fuzz_attn.counterexamples import Counterexample
from fuzz_attn.engine.events import (
    ONLY_PART,
    WHOLE_RUN,
    CaseExcused,
    CaseJudged,
    CaseRefused,
    CaseUnfinished,
    CaseUnsupported,
    Event,
    FailureChanged,
    FailureFound,
    FailureSeenAgain,
    Finished,
    Note,
    RefusalReduced,
    SavedPassed,
    Started,
    WorkerLost,
    WorkerReady,
)
from fuzz_attn.engine.failures import triage
from fuzz_attn.engine.listeners import distributions, statistics
from fuzz_attn.engine.listeners.distributions import Distributions
from fuzz_attn.engine.listeners.event_log import LOG_NAME, DistributionsLine, Line, StatisticsLine, read_log, report_of
from fuzz_attn.engine.listeners.results import FoundFailure, RunReport
from fuzz_attn.engine.listeners.statistics import Statistics
from fuzz_attn.engine.run_folder import counterexample_folder, folder_name, make_folder
from fuzz_attn.errors import CounterexampleError, MergeError, OutputError
from fuzz_attn.foreign_files import content_of, write_new

OfOneShard = (
    WorkerReady
    | CaseExcused
    | CaseJudged
    | CaseRefused
    | RefusalReduced
    | CaseUnsupported
    | CaseUnfinished
    | SavedPassed
    | WorkerLost
    | Note
    | Finished
)
"""The events that the merged log repeats. Those of failures are written anew: one bug is one failure."""
TOLD_ONCE: Final = (SavedPassed, Note)
LONGEST_NAME: Final = 200
MOST_NAMED: Final = 20
"""So many missing parts are named."""
PARTS: Final = "parts"
"""The folder of a merged folder that keeps the logs of its parts."""
RESERVED: Final = (PARTS, "counterexamples", "")
"""Names of an output directory that no target's folder may have."""
LARGEST_LOG: Final = 4 * 2**30
"""Bytes of the largest log that is merged."""


@dataclass(frozen=True)
class MergedRun:
    """The merged parts of one target: the folder of its log and its report."""

    folder: Path
    report: RunReport
    is_whole: bool
    """Whether every part is there to its end."""


def merge(places: Iterable[Path], out: Path) -> list[MergedRun]:
    """Merge the runs below some places, and those merged into ``out`` before, into ``out``; one result for each target.

    Raises :class:`MergeError` for a place without a run, and for an ``out`` that holds anything else.
    """
    if out.is_dir() and any(out.iterdir()) and not (out / PARTS).is_dir():
        raise MergeError(f"--out={out} must be a new folder or one that merge has written")
    make_folder(out)
    logs = gathered(places, out / PARTS)
    by_target = itertools.groupby(logs, lambda log: log.started.target)
    every = {target: [_MergedPart(log) for log in own] for target, own in by_target}
    folders = _different({target: folder_name(target)[:LONGEST_NAME] for target in every}, RESERVED)
    slugs = _different({target: _slug_of(parts) for target, parts in every.items()}, ("",))
    kept = counterexample_folder(out)
    return [_merge_target(out / folders[target], kept / slugs[target], parts) for target, parts in every.items()]


def _merge_target(folder: Path, kept: Path, parts: Sequence[_MergedPart]) -> MergedRun:
    make_folder(folder)
    try:
        failures = _saved(_failures_of(parts), kept, folder / LOG_NAME)
        lines = b"".join(msgspec.json.encode(line) + b"\n" for line in _lines(parts, failures))
        write_new(folder / LOG_NAME, lines)
    except OSError as error:
        raise OutputError(f"{error.filename}: cannot be written: {error.strerror}") from error
    return MergedRun(folder, report_of(folder / LOG_NAME), not any(_lacking(parts)))


def _different(names: dict[str, str], reserved: Collection[str]) -> dict[str, str]:
    """Return a name of each target that no other has: what two would share would overwrite one's failures.

    Names that differ in capitals only are one on some file systems.
    """
    counts = Counter(name.casefold() for name in names.values())
    return {
        target: name
        if counts[name.casefold()] == 1 and name not in reserved
        else f"{name or 'target'}-{hashlib.blake2b(target.encode(errors='replace'), digest_size=4).hexdigest()}"
        for target, name in names.items()
    }


class _MergedPart:
    """What a log says."""

    def __init__(self, log: PartLog) -> None:
        self.log = log
        self.started = log.started
        self.lines = tuple(read_log(log.path))
        self.report = report_of(log.path)

    @property
    def slugs(self) -> list[str]:
        return [line.ready.slug for line in self.lines if isinstance(line, WorkerReady)]

    @property
    def distributions(self) -> Distributions:
        """How its cases are spread, as its last line of them says."""
        lines = (line.distributions for line in reversed(self.lines) if isinstance(line, DistributionsLine))
        return next(lines, Distributions())

    @property
    def ended(self) -> bool:
        last = self.lines[-1]
        return isinstance(last, Finished) and last.shard == WHOLE_RUN

    def shards(self) -> list[int]:
        numbers = {line.shard for line in self.lines if isinstance(line, OfOneShard)}
        return sorted(numbers - {WHOLE_RUN})


def _slug_of(parts: Iterable[_MergedPart]) -> str:
    """Return the name of the folder of a target's counterexamples, empty where no worker was ready."""
    return next((slug for part in parts for slug in part.slugs), "")


def _failures_of(parts: Iterable[_MergedPart]) -> list[FoundFailure]:
    """Return the failures of all parts, in the order in which they were first seen; one bug is one failure."""
    found = [failure for part in parts for failure in part.report.failures]
    return sorted(united(found), key=_seen_first)


def _seen_first(failure: FoundFailure) -> tuple[float, bytes]:
    return failure.first_seen, msgspec.json.encode(failure.counterexample)


def united(found: Iterable[FoundFailure]) -> list[FoundFailure]:
    """Return failures of several runs; those that are the same bug are one, which is a saved one where there is one.

    Each run plays the saved counterexamples. Two of them stay two, as within one run.
    """
    every = sorted(found, key=_seen_first)
    rows = [*_one_for_each_case(failure for failure in every if failure.saved)]
    rows += [failure for failure in every if not failure.saved]
    same = triage.merged((str(number), failure.counterexample) for number, failure in enumerate(rows))
    groups: dict[str, list[FoundFailure]] = {}
    for number, failure in enumerate(rows):
        groups.setdefault(same.get(str(number), str(number)), []).append(failure)
    return [row for kept, group in groups.items() for row in _of_one_bug(rows[int(kept)], group)]


def _one_for_each_case(saved: Iterable[FoundFailure]) -> Iterator[FoundFailure]:
    """Yield saved failures; those of the same case, class and status, which several runs played, are one."""
    by_case: dict[tuple[bytes, str, str], list[FoundFailure]] = {}
    for failure in saved:
        found = failure.counterexample
        by_case.setdefault((*_failure_of(found), found.status), []).append(failure)
    for same in by_case.values():
        yield _joined(same[0], same[1:])


def _failure_of(found: Counterexample) -> tuple[bytes, str]:
    """Return what a mark is about: the case, and the class of its failure. Another failure of the case is a new one."""
    return msgspec.json.encode((found.case, found.relation)), triage.class_of(found.verdict)


def _of_one_bug(kept: FoundFailure, group: Sequence[FoundFailure]) -> Iterator[FoundFailure]:
    """Yield the saved failures of a group that is one bug; the first one, or else the one to keep, takes the others."""
    saved = [failure for failure in group if failure.saved]
    first = saved[0] if saved else kept
    yield _joined(first, [failure for failure in group if failure is not first and not failure.saved])
    yield from saved[1:]


def _joined(kept: FoundFailure, others: Sequence[FoundFailure]) -> FoundFailure:
    cases = kept.cases + sum(other.cases for other in others)
    first_seen = min((kept.first_seen, *(other.first_seen for other in others)))
    return msgspec.structs.replace(kept, cases=cases, first_seen=first_seen)


def _saved(failures: Sequence[FoundFailure], folder: Path, old_log: Path) -> list[FoundFailure]:
    """Write the counterexamples into a folder and return the failures with the paths of their files.

    A status that a file was given since it was merged stays. Files that an earlier merge wrote and that are now the
    same bug as another one are deleted.
    """
    old = [Path(failure.path) for failure in report_of(old_log).failures] if old_log.exists() else []
    marks = {_failure_of(found): found for found in _loaded(folder / path.name for path in old)}
    names: Counter[str] = Counter()
    written = []
    folder.mkdir(parents=True, exist_ok=True)
    for failure in failures:
        found = _marked(failure.counterexample, marks.get(_failure_of(failure.counterexample)))
        names[found.signature] += 1
        number = names[found.signature]
        path = folder / f"{found.signature}{f'-{number}' if number > 1 else ''}.json"
        counterexamples.overwrite(found, path)
        written.append(msgspec.structs.replace(failure, counterexample=found, path=str(path)))
    for name in {path.name for path in old} - {Path(failure.path).name for failure in written}:
        (folder / name).unlink(missing_ok=True)
    return written


def _loaded(paths: Iterable[Path]) -> Iterator[Counterexample]:
    for path in paths:
        try:
            yield counterexamples.load(path)
        except CounterexampleError:  # deleted or edited since; it is written again
            continue


def _marked(found: Counterexample, old: Counterexample | None) -> Counterexample:
    if old is None or found.status != "open":
        return found
    return msgspec.structs.replace(found, status=old.status, reference=old.reference, because=old.because)


def _lines(parts: Sequence[_MergedPart], failures: Sequence[FoundFailure]) -> Iterator[Line]:
    """Yield the lines of the merged log: the events of the parts, the failures, the statistics and the end."""
    every = _statistics(parts, failures)
    yield _started([part.started for part in parts])
    yield from _repeated(parts)
    for number, failure in enumerate(failures):
        yield from _events_of(failure, number)
    yield StatisticsLine(every)
    spread = distributions.merged(part.distributions for part in parts)
    if spread is not None:
        yield DistributionsLine(spread)
    stopped_by = max(part.report.stopped_by for part in parts)
    yield Finished(WHOLE_RUN, every.seconds, "; ".join((*_lacking(parts), *_errors_of(parts))), stopped_by)


def _errors_of(parts: Sequence[_MergedPart]) -> Iterator[str]:
    """Yield why whole runs could not go on, each once; the errors of their shards are among the repeated events."""
    ends = (line for part in parts for line in part.lines if isinstance(line, Finished) and line.shard == WHOLE_RUN)
    yield from dict.fromkeys(end.error for end in ends if end.error)


def _started(parts: Sequence[Started]) -> Started:
    """Return the start of the merged run: workers add up, limits are the largest."""
    seconds = [part.max_time for part in parts]
    cases = [part.max_cases for part in parts]
    return msgspec.structs.replace(
        parts[0],
        workers=sum(part.workers for part in parts),
        time=min(part.time for part in parts),
        max_time=None if None in seconds else max(limit for limit in seconds if limit is not None),
        max_cases=None if None in cases else max(limit for limit in cases if limit is not None),
        part=ONLY_PART,
    )


def _repeated(parts: Sequence[_MergedPart]) -> Iterator[Event]:
    """Yield the events of single shards, which get new numbers: two runs may have given the same one."""
    numbers = itertools.count()
    told: set[bytes] = set()
    for part in parts:
        renumbered = {shard: next(numbers) for shard in part.shards()} | {WHOLE_RUN: WHOLE_RUN}
        for line in part.lines:
            if not isinstance(line, OfOneShard) or (line.shard == WHOLE_RUN and not isinstance(line, Note)):
                continue
            if isinstance(line, TOLD_ONCE):
                text = msgspec.json.encode(msgspec.structs.replace(line, shard=0))
                if text in told:
                    continue
                told.add(text)
            yield msgspec.structs.replace(line, shard=renumbered[line.shard])


def _events_of(failure: FoundFailure, number: int) -> Iterator[Event]:
    """Yield the events from which a listener learns all of a failure, as if one shard had found it."""
    found, path = failure.counterexample, failure.path
    yield FailureFound(0, number, found, path, failure.first_seen, failure.saved, failure.followed)
    if failure.cases > 1:
        yield FailureSeenAgain(0, path, failure.cases - 1, (0, number))
    yield FailureChanged(0, number, found, path, failure.done)


def _statistics(parts: Sequence[_MergedPart], failures: Sequence[FoundFailure]) -> Statistics:
    every = statistics.merged(part.report.statistics for part in parts)
    assert every is not None, "a target has at least one part"
    return msgspec.structs.replace(
        every,
        counterexamples=tuple(sorted(failure.path for failure in failures if not failure.known)),
        known=tuple(sorted(failure.path for failure in failures if failure.known)),
    )


def _lacking(parts: Sequence[_MergedPart]) -> Iterator[str]:
    """Yield what the union lacks: the ends of runs that were cut off, and parts that are not there."""
    for part in parts:
        if not part.ended:
            yield f"the log of {part.log.words} is cut off: its last seconds are lost"
    present = {(part.started.seed, part.started.part.of, part.started.part.number) for part in parts}
    for seed, of in dict.fromkeys((seed, of) for seed, of, _ in present):
        absent = [str(number) for number in range(1, of + 1) if (seed, of, number) not in present]
        more = f" and {len(absent) - MOST_NAMED} more" if len(absent) > MOST_NAMED else ""
        if absent:
            yield f"of {of} parts with seed {seed} there is none of {', '.join(absent[:MOST_NAMED])}{more}"


@dataclass(frozen=True)
class PartLog:
    """One log: the file that holds it and its first event."""

    path: Path
    started: Started

    @property
    def name(self) -> str:
        """The name of the log among the parts: what its first line says."""
        part, digest = self.started.part, hashlib.blake2b(msgspec.json.encode(self.started), digest_size=8)
        return f"{part.number}-of-{part.of}-{digest.hexdigest()}.jsonl"

    @property
    def order(self) -> tuple[str, int, int, int, float, str]:
        """A key that sorts parts the same way wherever they were found."""
        started = self.started
        return started.target, started.seed, started.part.of, started.part.number, started.time, self.name

    @property
    def words(self) -> str:
        """The part in words."""
        part = self.started.part
        return f"part {part.number} of {part.of} with seed {self.started.seed}"


def gathered(places: Iterable[Path], folder: Path) -> list[PartLog]:
    """Copy the logs below some places into a folder, beside those that it holds, and return all of them in order.

    Raises :class:`MergeError` for a place that holds no log, and for a log that cannot be read.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for place in places:
            for log in _logs_below(place):
                _keep(log, folder)
    except OSError as error:
        raise OutputError(f"{error.filename or folder}: cannot be read or written: {error.strerror}") from error
    return sorted((_opened(path) for path in folder.glob("*.jsonl")), key=lambda log: log.order)


def _logs_below(place: Path) -> list[PartLog]:
    if not place.exists():
        raise MergeError(f"{place}: does not exist")
    logs = [_opened(path) for path in _paths_below(place) if not _is_empty(path)]
    if not logs:
        raise MergeError(f"{place}: holds no {LOG_NAME} of a run")
    return logs


def _is_empty(path: Path) -> bool:
    """Return whether a file was made and not written, as at the start of a run."""
    try:
        return path.stat().st_size == 0
    except OSError:  # of a link that leads nowhere, which is named when it is opened
        return False


def _paths_below(place: Path) -> Iterator[Path]:
    """Yield the logs of runs below a place; of what was merged before, those of its parts."""
    if place.is_file():
        yield place
        return
    merged = {path.parent.parent for path in place.rglob(f"{PARTS}/*.jsonl")}
    for folder in merged:
        yield from (folder / PARTS).glob("*.jsonl")
    for path in place.rglob(LOG_NAME):
        if merged.isdisjoint(path.parents):
            yield path


def _opened(path: Path) -> PartLog:
    """Return the log in a file, all of which is read once, so that an error names the file."""
    started = None
    try:
        for line in read_log(path):
            started = started or line
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MergeError(f"{path}: is no log of a run: {error}") from error
    except OSError as error:
        raise MergeError(f"{path}: cannot be read: {error.strerror}") from error
    if not isinstance(started, Started):
        raise MergeError(f"{path}: is no log of a run: its first event is not the start of one")
    return PartLog(path, started)


def _keep(log: PartLog, folder: Path) -> None:
    """Copy a log into a folder, unless a longer one of the same run is there."""
    kept, content = folder / log.name, content_of(log.path, LARGEST_LOG)
    old = content_of(kept, LARGEST_LOG) if kept.exists() else b""
    if (len(content), content) > (len(old), old):
        write_new(kept, content)
