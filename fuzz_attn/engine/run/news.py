"""News: what shards have found, as lines of a file that all shards on a machine read.

A message could fill the connection of a shard that does not read while it shrinks, and its sender would wait for that
shard, perhaps for ever. To append to a file never waits, and each shard reads on where it stopped, when it has time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from fuzz_attn.engine.events import FailureChanged, FailureFound, Told

NEWS_NAME: Final = "news.jsonl"
"""The file in the folder of a run."""
_CHUNK_BYTES: Final = 2**20
_DECODER: Final[msgspec.json.Decoder[Told]] = msgspec.json.Decoder(Told)


def is_news(event: object) -> bool:
    """Return whether other shards can use an event: a failure that is followed from now on, or no longer."""
    if isinstance(event, FailureFound):
        return event.followed and not event.saved
    return isinstance(event, FailureChanged) and event.done


class NewsFile:
    """The writer's end: appends lines. It makes the file; raises OSError where it cannot be made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o644)
        self._cut = False

    def append(self, news: bytes) -> None:
        """Append one event in JSON. Where the disk is full, shards learn nothing of it and may find the same."""
        line = b"\n" * self._cut + news + b"\n"
        with self._lock:
            if self._file is None:
                return
            try:
                self._cut = os.write(self._file, line) < len(line)
            except OSError:
                self._cut = True

    def remove(self) -> None:
        """Delete the file."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None
        self._path.unlink(missing_ok=True)


class NewsReader:
    """A shard's end: each call returns what was appended since the last one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._rest = b""

    def __call__(self) -> Sequence[Told]:
        """Return the new events; a last line that is not complete is left for the next call."""
        lines = (self._rest + self._read()).split(b"\n")
        self._rest = lines.pop()
        return [news for line in lines for news in _decoded(line)]

    def _read(self) -> bytes:
        """Return what was appended, nothing while there is no file."""
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDONLY)
            return os.read(self._file, _CHUNK_BYTES)
        except OSError:
            return b""


def _decoded(line: bytes) -> Sequence[Told]:
    """Return the event of a line; none where a full disk has cut it off."""
    try:
        return [_DECODER.decode(line)]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []
