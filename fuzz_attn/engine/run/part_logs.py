"""Part logs: the event logs of several runs, found in folders and kept in the folder where they are merged.

A log is known by its first line, which says when the run began, on what and as which part. So a log that is found twice
counts once, and of two copies of one log the longer is the later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from fuzz_attn.engine.events import Started
from fuzz_attn.engine.listeners.event_log import LOG_NAME, read_log
from fuzz_attn.errors import MergeError, OutputError
from fuzz_attn.foreign_files import content_of, write_new

PARTS: Final = "parts"
"""The folder of a merged folder that keeps the logs of its parts."""
LARGEST_LOG: Final = 4 * 2**30
"""Bytes of the largest log that is merged."""


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
