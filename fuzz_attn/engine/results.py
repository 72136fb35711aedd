"""Results of a run: what a listener keeps of its events."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fuzz_attn.counterexamples.counterexample import Counterexample
from fuzz_attn.engine.events import Event, FailureChanged, FailureFound, FailureSeenAgain, Note
from fuzz_attn.engine.statistics import Statistics, Tally


@dataclass
class FoundFailure:
    """A failure of a run: its counterexample and file, how many cases showed it, and when the first did.

    ``done`` is false while it is confirmed or shrunk.
    """

    counterexample: Counterexample
    path: Path
    first_seen: float
    cases: int = 1
    done: bool = False


class Results:
    """The failures, notes and statistics of a run; call it with each event."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.notes: list[str] = []
        self._failures: dict[tuple[int, int], FoundFailure] = {}
        self._names: dict[str, tuple[int, int]] = {}

    def __call__(self, event: Event) -> None:
        """Keep what an event reports."""
        self.tally(event)
        match event:
            case FailureFound():
                name = event.shard, event.failure
                self._failures[name] = FoundFailure(event.counterexample, Path(event.path), event.seconds)
                self._names[event.path] = name
            case FailureChanged():
                self._change(event)
            case FailureSeenAgain():
                self._count(event.path, 1)
            case Note():
                self.notes.append(event.text)

    def _change(self, event: FailureChanged) -> None:
        name = event.shard, event.failure
        if event.same_as:
            self._count(event.same_as, self._failures.pop(name).cases)
            self._names[event.path] = self._names.get(event.same_as, name)
            return
        found = self._failures[name]
        found.counterexample, found.path, found.done = event.counterexample, Path(event.path), event.done
        self._names[event.path] = name

    def _count(self, path: str, cases: int) -> None:
        found = self._failures.get(self._names.get(path, (-1, -1)))
        if found is not None:
            found.cases += cases

    @property
    def failures(self) -> tuple[FoundFailure, ...]:
        """The failures in the order in which they were first seen; those with one file are one."""
        by_path: dict[Path, FoundFailure] = {}
        for found in sorted(self._failures.values(), key=lambda found: found.first_seen):
            by_path.setdefault(found.path, found)
        return tuple(by_path.values())

    @property
    def failure(self) -> Counterexample | None:
        """The failure that was seen first."""
        return self.failures[0].counterexample if self.failures else None

    @property
    def path(self) -> Path | None:
        """The file of the failure that was seen first."""
        return self.failures[0].path if self.failures else None

    @property
    def statistics(self) -> Statistics:
        """The counts so far."""
        return self.tally.statistics()
