"""Records: the files of a shard's failures, and the events that report them. Each change is in both.

Failures beyond those that a shard follows are saved as they were seen, and counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from fuzz_attn import counterexamples
from fuzz_attn.counterexamples import Counterexample, signature_of
from fuzz_attn.engine.events import CaseExcused, Emit, FailureChanged, FailureFound, FailureSeenAgain, Note, Which
from fuzz_attn.engine.failures.triage import KnownFailure, class_of, has_place
from fuzz_attn.engine.orders import Order
from fuzz_attn.operations.registry import operation_of
from fuzz_attn.oracle.verdict import Verdict


class Records:
    """Writes and reports the failures of one shard. A file that cannot be written is a note, and no error."""

    def __init__(self, shard: int, emit: Emit, folder: Callable[[], Path], elapsed: Callable[[], float]) -> None:
        self.shard = shard
        self.emit = emit
        self._folder = folder
        self._elapsed = elapsed
        self._count = 0

    def note(self, text: str) -> None:
        """Report something that a reader of the summary must know."""
        self.emit(Note(self.shard, text))

    def seen_again(self, known: KnownFailure) -> None:
        """Report that another case showed a failure."""
        self.emit(FailureSeenAgain(self.shard, known.name, which=known.which))

    def excused(self, verdict: Verdict, *, judged: bool) -> None:
        """Report a failure that did not recur in a fresh process."""
        self.emit(CaseExcused(self.shard, verdict, judged))

    def save(self, found: Counterexample, *, followed: bool = True) -> KnownFailure:
        """Save a new failure in a file of its own, and report it."""
        return self.enter(found, self._new_file(found), followed=followed)

    def enter(self, found: Counterexample, path: str, *, saved: bool = False, followed: bool = True) -> KnownFailure:
        """Report a failure of this run that has a file."""
        failure = KnownFailure(self.shard, self._count, found, path, saved=saved)
        self._count += 1
        self.emit(FailureFound(self.shard, failure.number, found, path, self._elapsed(), saved, followed))
        return failure

    def change(self, failure: KnownFailure, **fields: object) -> None:
        """Change the counterexample, in its file too, and report it."""
        found: Counterexample = msgspec.structs.replace(failure.found, digest="", **fields)
        if not found.shrunk and found.confirmation == "confirmed":
            needed = operation_of(found.case).aspects.needed_by(found.case, found.relation)
            found = msgspec.structs.replace(found, trigger=needed)
        failure.found = msgspec.structs.replace(found, signature=signature_of(found.case, found.verdict))
        self._write(failure)
        self.report(failure)

    def report(
        self, failure: KnownFailure, *, done: bool = False, same_as: str = "", same: Which | None = None
    ) -> None:
        """Report a failure as it is now."""
        number, found, path = failure.number, failure.found, failure.path
        self.emit(FailureChanged(self.shard, number, found, path, done=done, same_as=same_as, same=same))

    def finish(self, failure: KnownFailure, digest: str) -> None:
        """Write and report a failure for the last time, its file named by its signature."""
        failure.found = msgspec.structs.replace(failure.found, digest=digest)
        if failure.path:
            self._write(failure)
        else:
            failure.path = self._new_file(failure.found)  # there may be room on the disk again
        with contextlib.suppress(OSError):
            failure.path = failure.path and str(counterexamples.rename(Path(failure.path), failure.found))
        self.report(failure, done=True)

    def rewrite(self, failure: KnownFailure) -> None:
        """Write and report a failure that had ended, once more."""
        self._write(failure)
        self.report(failure, done=True)

    def end_as(self, failure: KnownFailure, earlier: KnownFailure) -> None:
        """End a failure that is the same bug as an earlier one: its file goes, or is that of one without a file."""
        name = earlier.name
        if failure.path and not earlier.path:
            earlier.path = failure.path
            self.rewrite(earlier)
            failure.path = ""
        try:
            self.report(failure, done=True, same_as=name, same=earlier.which)
        finally:
            with contextlib.suppress(OSError):  # what is left of it is the same bug
                if failure.path:
                    Path(failure.path).unlink(missing_ok=True)

    def _write(self, failure: KnownFailure) -> None:
        try:
            if failure.path:
                counterexamples.overwrite(failure.found, Path(failure.path))
        except OSError as error:
            self._cannot_save(error)

    def _new_file(self, found: Counterexample) -> str:
        """Return the path of a new file with a counterexample, or nothing if it cannot be written."""
        try:
            return str(counterexamples.save(found, self._folder()))
        except OSError as error:
            self._cannot_save(error)
            return ""

    def _cannot_save(self, error: OSError) -> None:
        self.note(f"a failure cannot be saved: {error}")


MOST_FILES: Final = 40
"""So many files have failures that are not followed. After that, only a failure of a new class gets one."""
MOST_CLASSES: Final = 400
"""So many files there are at most; a failure of another class is not counted then, which fails the run too."""

Save: TypeAlias = Callable[[Order, Verdict], KnownFailure]
Count: TypeAlias = Callable[[KnownFailure], None]


class Unfollowed:
    """Groups failures by class and signature, those at one line by their class: the first of a group is saved.

    The others are counted with it.
    ``save`` saves and reports a failure, and ``count`` reports that another case showed it.
    """

    def __init__(self, save: Save, count: Count) -> None:
        self._save = save
        self._count = count
        self._groups: dict[tuple[str, str], KnownFailure] = {}

    def add(self, order: Order, verdict: Verdict) -> None:
        """Save a failure, or count it with one that is saved."""
        name = class_of(verdict), "" if has_place(class_of(verdict)) else signature_of(order.case, verdict)
        group = self._groups.get(name) or self._fallback(name[0])
        if group is None and len(self._groups) < MOST_CLASSES:
            self._groups[name] = self._save(order, verdict)
        elif group is not None:
            self._count(group)

    def _fallback(self, failure_class: str) -> KnownFailure | None:
        """Return the first group of a class where there are too many files for another one."""
        if len(self._groups) < MOST_FILES:
            return None
        return next((group for (name, _), group in self._groups.items() if name == failure_class), None)
