"""Rounds: which shared rounds are ready to be judged, as files in the folder of a run, and who compiles them.

The compile stage writes a file when the kernels of a round are compiled. Each round is begun by one shard. A shard that
finds none that no other has begun plays any of the others, with cases of its own: no case waits for the compiler.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Final, Self

import msgspec

from fuzz_attn.case.plain import Plain
from fuzz_attn.engine.events import WHOLE_RUN, Note, StageEvent
from fuzz_attn.engine.orders import Ready, Setup
from fuzz_attn.oracle.verdict import Site
from fuzz_attn.workers.worker_process import WorkerProcess

CASES: Final = 32
"""Cases of a shard before it looks for another round: enough to see what a compile key shows at once."""
FRUITLESS: Final = 40
"""After so many rounds in which the target refuses every case, and no other, shards draw their own rounds.

They are enough for each head size, since new pairs of values come first; a target may accept only one.
"""
POLL_SECONDS: Final = 0.02
CLAIM_SECONDS: Final = 60.0
"""A place that was claimed so long ago is free again: who claimed it may have died."""

_ENDED: Final = "ended"
_READY, _BEGUN, _TOLD = "ready-", "begun-", "told-"
_CLAIMED, _FOLLOWS = "claimed-", "follows-"


class StagePlan(Plain, frozen=True):
    """What a compile stage does for a run: ``seed`` orders the rounds, and ``folder`` says which of them are ready."""

    setup: Setup
    seed: int
    folder: str
    cores: int
    covered: frozenset[int] = frozenset()


class ReadyRound(Plain, frozen=True):
    """A round whose kernels are compiled; all that its cases need, or only those that could be found out.

    With ``usual``, its cases have the usual variant of their kernels, and with ``narrow`` few windows and widths of
    block tables. ``cases`` is the number that a shard plays before it looks for another round: none where the target
    refuses all of them.
    """

    number: int
    complete: bool
    usual: bool = False
    cases: int = CASES
    narrow: bool = False


class Rounds:
    """The files of one run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready: dict[int, ReadyRound] = {}
        self._begun: set[int] = set()
        self._known: set[str] = set()
        self.played = 0
        """How often :meth:`next` has returned a round."""

    def make(self) -> None:
        """Make the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def set_ready(self, ready: ReadyRound) -> None:
        """Note that the kernels of a round are compiled."""
        path = self._folder / f"{_READY}{ready.number}"
        path.with_suffix(".new").write_bytes(msgspec.json.encode(ready))
        path.with_suffix(".new").rename(path)

    def set_ended(self) -> None:
        """Note that no other round will be ready; shards then compile their own kernels."""
        (self._folder / _ENDED).touch()

    def clear(self) -> None:
        """Take back all rounds."""
        for path in self._folder.glob(f"{_READY}*"):
            path.unlink()
        self._ready.clear()

    def waiting(self) -> int:
        """Return how many rounds are ready that no shard has begun."""
        self._look()
        return len(self._free())

    @contextmanager
    def following(self, shard: int) -> Iterator[None]:
        """Note that a shard follows a failure, and needs no rounds meanwhile."""
        path = self._folder / f"{_FOLLOWS}{shard}"
        path.touch()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    def followers(self) -> int:
        """Return how many shards follow a failure."""
        return sum(name.startswith(_FOLLOWS) for name in os.listdir(self._folder))

    def next(self, random: Random, go_on: Callable[[], bool]) -> ReadyRound | None:
        """Return the round to play: the first that no shard has begun, else any that is ready.

        Waits for the first one as long as ``go_on`` is true. Returns None where there is none.
        """
        while True:
            self._look()
            for number in self._free():
                if self._begin(number):
                    self.played += 1
                    return self._ready[number]
            playable = [ready for ready in self._ready.values() if ready.cases == CASES]
            if (self._folder / _ENDED).exists() or (not playable and len(self._ready) >= FRUITLESS):
                return None
            if playable:
                self.played += 1
                return random.choice(playable)
            if not go_on():
                return None
            time.sleep(POLL_SECONDS)

    def tell(self, name: str, found: bytes) -> None:
        """Tell the other shards something under a name that says what it is about."""
        self._known.add(name)
        path = self._folder / f"{_TOLD}{name}"
        path.with_suffix(".new").write_bytes(found)
        path.with_suffix(".new").rename(path)

    def told(self) -> list[bytes]:
        """Return what other shards have told since the last call."""
        names = {name for name in os.listdir(self._folder) if name.startswith(_TOLD) and not name.endswith(".new")}
        new = sorted({name.removeprefix(_TOLD) for name in names} - self._known)
        self._known.update(new)
        return [(self._folder / f"{_TOLD}{name}").read_bytes() for name in new]

    def claim(self, site: Site) -> bool:
        """Return whether this process is the one that may reduce what is refused in a place; others go on meanwhile."""
        path = self._claim_of(site)
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > CLAIM_SECONDS:
                path.unlink()
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def release(self, site: Site) -> None:
        """Let any process reduce what else is refused in a place."""
        self._claim_of(site).unlink(missing_ok=True)

    def _claim_of(self, site: Site) -> Path:
        name = hashlib.blake2b(msgspec.json.encode(site), digest_size=8).hexdigest()
        return self._folder / f"{_CLAIMED}{name}"

    def _free(self) -> list[int]:
        """Return the numbers of the rounds that no shard is seen to have begun."""
        return sorted(number for number in self._ready.keys() - self._begun if self._ready[number].cases)

    def _begin(self, number: int) -> bool:
        """Return whether this is the first to begin a round."""
        self._begun.add(number)
        try:
            (self._folder / f"{_BEGUN}{number}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _look(self) -> None:
        """See what is new in the folder."""
        for name in os.listdir(self._folder):  # a Path for each of some thousand names would take milliseconds
            kind, number = name[: len(_READY)], name[len(_READY) :]
            if not number.isdigit():
                continue
            if kind == _BEGUN:
                self._begun.add(int(number))
            elif int(number) not in self._ready:
                self._ready[int(number)] = msgspec.json.decode((self._folder / name).read_bytes(), type=ReadyRound)


COMMAND: Final = (sys.executable, "-P", "-m", "fuzz_attn.engine.compiler")
DECODER: Final = msgspec.json.Decoder[StageEvent](StageEvent)


class CompileStage:
    """A process that compiles for a built-in target at once, and for all others when a worker is ready."""

    def __init__(self, plan: StagePlan) -> None:
        self._rounds = Rounds(Path(plan.folder))
        self._rounds.make()
        self._begun = False
        self._process: WorkerProcess[StageEvent] | None = WorkerProcess(COMMAND, DECODER)
        self._process.send(plan)

    def __enter__(self) -> Self:
        """Return the stage; it ends with the context."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the process, whatever it compiles."""
        self._end()

    def begin(self, ready: Ready) -> None:
        """Tell the process, once, what a worker is ready for."""
        if self._begun or self._process is None:
            return
        self._begun = True
        if ready.gpu is None:
            self._end()
        else:
            self._process.send(ready)

    def events(self) -> Iterator[StageEvent | Note]:
        """Yield what the process has sent; if it has died, say so, and shards compile their own kernels from then."""
        while self._process is not None:
            try:
                event = self._process.receive(time.monotonic())
            except TimeoutError:
                return
            if event is not None:
                yield event
                continue
            death = self._process.death(self._process.exit_code())
            self._end()
            yield Note(WHOLE_RUN, f"no kernels were compiled ahead from then on: the compiler {death}")

    def _end(self) -> None:
        self._rounds.set_ended()
        if self._process is not None:
            self._process.end()
            self._process = None
