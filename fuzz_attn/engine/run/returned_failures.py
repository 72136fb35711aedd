"""ReturnedFailures: saves here what shards on other machines found, and names the files of this machine in events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from fuzz_attn.counterexamples import counterexample
from fuzz_attn.engine.events import (
    Event,
    FailureChanged,
    FailureFound,
    FailureSeenAgain,
    Note,
    SavedPassed,
    WorkerReady,
)


class ReturnedFailures:
    """Saves failures of other machines below a folder, in a folder for each target, as a shard saves its own here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._slug = ""
        self._paths: dict[tuple[int, str], str] = {}
        """The file here for each shard's file there, also under names that it had before."""
        self._saved: set[tuple[int, int]] = set()
        """The failures that have a file from before the run."""
        self._files: dict[tuple[int, int], Path] = {}
        """The file here of each other failure, named as in events by its shard and its number."""

    def local(self, number: int, there: str, event: Event) -> Iterator[Event]:
        """Yield the events that stand for one of a shard whose counterexamples are in the folder ``there``.

        The event itself with the names of files here, and a note if a file could not be written.
        """
        try:
            yield self._local(number, there, event)
        except OSError as error:
            yield Note(number, f"a failure cannot be saved: {error}")
            if isinstance(event, FailureFound | FailureChanged):
                yield msgspec.structs.replace(event, path="")

    def _local(self, number: int, there: str, event: Event) -> Event:
        match event:
            case WorkerReady():
                self._slug = event.ready.slug
            case FailureFound():
                return self._found(number, there, event)
            case FailureChanged():
                return self._changed(number, there, event)
            case FailureSeenAgain() | SavedPassed():
                return msgspec.structs.replace(event, path=self._path(number, there, event.path))
            case Note():
                return msgspec.structs.replace(event, text=event.text.replace(there, str(self._folder)))
        return event

    def _path(self, number: int, there: str, path: str) -> str:
        """Return the path here of a file that a shard names: its own, one that it was sent, or another shard's."""
        sent = path.replace(there, str(self._folder)) if there and path.startswith(there) else path
        return self._paths.get((number, path), sent)

    def _found(self, number: int, there: str, event: FailureFound) -> FailureFound:
        if event.saved:
            self._saved.add((number, event.failure))
            return msgspec.structs.replace(event, path=self._path(number, there, event.path))
        return msgspec.structs.replace(event, path=self._new(number, event))

    def _changed(self, number: int, there: str, event: FailureChanged) -> FailureChanged:
        name = number, event.failure
        if name in self._saved:
            return msgspec.structs.replace(event, path=self._path(number, there, event.path))
        if event.same_as:
            path = self._files.pop(name, None)
            if path is not None:
                path.unlink(missing_ok=True)
            own = self._path(number, there, event.path)
            return msgspec.structs.replace(event, path=own, same_as=self._path(number, there, event.same_as))
        if name not in self._files:  # an interrupt may come between the failure and its first event
            return msgspec.structs.replace(event, path=self._new(number, event))
        return msgspec.structs.replace(event, path=self._rewritten(number, event))

    def _new(self, number: int, event: FailureFound | FailureChanged) -> str:
        """Save a failure in a new file; return its path."""
        path = counterexample.save(event.counterexample, self._folder / self._slug)
        return self._noted(number, event, path)

    def _rewritten(self, number: int, event: FailureChanged) -> str:
        """Write a failure into its file, which has the name of its signature at the end; return its path."""
        path = self._files[number, event.failure]
        counterexample.overwrite(event.counterexample, path)
        return self._noted(number, event, counterexample.rename(path, event.counterexample) if event.done else path)

    def _noted(self, number: int, event: FailureFound | FailureChanged, path: Path) -> str:
        self._files[number, event.failure] = path
        self._paths[number, event.path] = str(path)
        return str(path)
