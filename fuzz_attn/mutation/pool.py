"""The crew: worker processes that examine batches side by side, replaced when they die of a mutant."""

from __future__ import annotations

import contextlib
import os
import queue
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self, TypeAlias

import msgspec

from fuzz_attn.engine.messages import Refused
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.mutation.messages import Alarms, Batch, Finished, Progress, Start, Started, Survey, Surveyed
from fuzz_attn.mutation.results import Outcome
from fuzz_attn.mutation.subjects import Subject

BATCHES_EACH: Final = 2
"""Batches of one worker beside others: each makes every case anew, and none but the last can be waited for."""
SILENCE_SECONDS: Final = 600.0
"""A worker that says nothing for so long hangs where no alarm reaches it."""

Said: TypeAlias = Started | Surveyed | Finished | Progress | Alarms | Refused


class Member:
    """One worker process, and the subjects that it has not finished."""

    def __init__(self, start: Start, heard: queue.SimpleQueue[tuple[Member, Said | None]]) -> None:
        self.place = tempfile.NamedTemporaryFile(prefix="fuzz-attn-audit-")  # noqa: SIM115 - lives as long as we
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - likewise
        self.batch = Batch((), 0)
        self.left: dict[str, Subject] = {}
        self.progress = Progress(0, 0)
        self.spoke = time.monotonic()
        self._heard = heard
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fuzz_attn.mutation.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),
                "OMP_NUM_THREADS": "1",
            },
            process_group=0,  # an interrupt from the keyboard is the parent's to handle
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.say(msgspec.structs.replace(start, place=self.place.name))

    def say(self, message: msgspec.Struct) -> None:
        """Send one message; a worker that is dead is heard of by its silence."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(msgspec.json.encode(message) + b"\n")
            self.process.stdin.flush()

    def give(self, batch: Batch) -> None:
        """Hand out a batch."""
        self.batch, self.left = batch, {subject.name: subject for subject in batch.subjects}
        self.say(batch)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._heard.put((self, msgspec.json.decode(line, type=Said)))
        self._heard.put((self, None))

    def culprit(self) -> tuple[Subject | None, int]:
        """Return which subject it was at when it died, and the number of the case; None where it was at none."""
        case, index = struct.unpack("<qq", Path(self.place.name).read_bytes().ljust(16, b"\xff")[:16])
        subjects = self.batch.subjects
        return (subjects[index] if 0 <= index < len(subjects) else None), case + 1

    def printed(self) -> str:
        """Return the end of what it printed."""
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()[-1500:]

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        self._listener.join()
        for stream in (self.process.stdin, self.process.stdout, self.errors, self.place):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@dataclass
class Crew:
    """Workers that share one target, seed and museum. Use as a context; ends all of them."""

    start: Start
    workers: int
    false_alarms: dict[str, set[int]] = field(default_factory=dict)
    healthy_cases: int = 0

    def __enter__(self) -> Self:
        """Start one worker and wait until it is set up; raises :class:`FuzzAttnError` where it cannot be."""
        self._heard: queue.SimpleQueue[tuple[Member, Said | None]] = queue.SimpleQueue()
        self.members: list[Member] = []
        started = self._asked(self._hired(), Started)
        assert isinstance(started, Started)
        self.started = started
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """End all workers."""
        for member in self.members:
            member.end()

    def survey(self, cases: int) -> tuple[Subject, ...]:
        """Return every mutant of the kernels that the first cases launch."""
        self.members[0].say(Survey(cases))
        surveyed = self._asked(self.members[0], Surveyed)
        assert isinstance(surveyed, Surveyed)
        return surveyed.subjects

    def examine(self, batch: Batch) -> Iterator[Outcome | None]:
        """Yield each outcome of a batch, cut and spread over the workers, as it comes; None while nothing does."""
        waiting = deque(self._parts(batch))
        idle, busy = list(self.members), set[Member]()
        while waiting or busy:
            while waiting and (idle or len(self.members) < self.workers):
                member = idle.pop() if idle else self._hired()
                member.give(waiting.popleft())
                member.spoke = time.monotonic()
                busy.add(member)
            try:
                member, said = self._heard.get(timeout=0.5)
            except queue.Empty:
                self._silence(busy)
                yield None
                continue
            member.spoke = time.monotonic()
            if isinstance(said, Finished):
                member.left.pop(said.outcome.subject.name, None)
                yield said.outcome
            elif isinstance(said, Progress):
                member.progress = said
            elif isinstance(said, Alarms):
                self._alarmed(said)
                busy.discard(member)
                idle.append(member)
            elif isinstance(said, Refused):
                raise FuzzAttnError(said.reason)
            elif said is None and member in busy:
                busy.discard(member)
                outcome, rest = self._buried(member)
                yield outcome
                if rest:
                    waiting.append(msgspec.structs.replace(batch, subjects=rest))

    def _parts(self, batch: Batch) -> Iterator[Batch]:
        """Yield the parts of a batch, each with its share of every kernel: neighbours live equally long."""
        parts = 1 if self.workers == 1 else min(len(batch.subjects), BATCHES_EACH * self.workers)
        for first in range(parts):
            yield msgspec.structs.replace(batch, subjects=batch.subjects[first::parts])

    def _hired(self) -> Member:
        member = Member(self.start, self._heard)
        self.members.append(member)
        return member

    def _asked(self, member: Member, kind: type[Surveyed] | type[Started]) -> Surveyed | Started:
        """Return the answer of that kind from a member; others wait meanwhile."""
        while True:
            speaker, said = self._heard.get()
            if isinstance(said, kind):
                return said
            if isinstance(said, Refused):
                raise FuzzAttnError(said.reason)
            if said is None and speaker is member:
                raise FuzzAttnError(f"the audit's worker ended before it was set up:\n{member.printed()}")

    def _alarmed(self, said: Alarms) -> None:
        self.healthy_cases = max(self.healthy_cases, said.cases)
        for rule, places in said.places.items():
            self.false_alarms.setdefault(rule, set()).update(places)

    def _silence(self, busy: set[Member]) -> None:
        for member in busy:
            if time.monotonic() - member.spoke > SILENCE_SECONDS:
                member.process.kill()  # its silence is then heard as a death

    def _buried(self, member: Member) -> tuple[Outcome, tuple[Subject, ...]]:
        """Return the outcome of the subject that a worker died of, and the others that it had not finished."""
        culprit, case = member.culprit()
        self.members.remove(member)
        code, printed = member.process.wait(), member.printed()
        member.end()
        if culprit is None or culprit.name not in member.left:
            raise FuzzAttnError(f"the audit's worker died with status {code}, of no mutant:\n{printed}")
        rules = dict.fromkeys(member.batch.rules, case)
        outcome = Outcome(
            culprit, "killed", "oracle", "crash", f"the process ended with status {code}", case, rules=rules
        )
        return outcome, tuple(subject for name, subject in member.left.items() if name != culprit.name)
