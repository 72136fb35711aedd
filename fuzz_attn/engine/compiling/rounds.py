"""Rounds: which shared rounds are ready to be judged, as files in the folder of a run.

The compile stage writes a file when the kernels of a round are compiled. A shard plays the newest round that is ready,
and then cases of the last few, until the next is ready: no case waits for the compiler.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from fuzz_attn.case.plain import Plain
from fuzz_attn.engine.messages import Setup

CASES: Final = 120
"""Cases of a shard before it looks for another round."""
LAST_ROUNDS: Final = 4
"""So many rounds are played in turn while no new one is ready, so that cases of several keys follow each other."""
AHEAD: Final = 2
"""So many rounds are compiled that no shard has begun."""
POLL_SECONDS: Final = 0.02

_ENDED: Final = "ended"
_COMPLETE: Final = "complete"


class StagePlan(Plain, frozen=True):
    """What a compile stage does for a run: ``seed`` orders the rounds, and ``folder`` says which of them are ready."""

    setup: Setup
    seed: int
    folder: str
    cores: int
    covered: frozenset[int] = frozenset()


class ReadyRound(NamedTuple):
    """A round whose kernels are compiled; all that its cases need, or only those that could be found out."""

    number: int
    complete: bool


class Rounds:
    """The files of one run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._newest = -1

    @property
    def ready(self) -> int:
        """The number of rounds that were seen to be ready."""
        return self._newest + 1

    def make(self) -> None:
        """Make the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def set_ready(self, number: int, *, complete: bool) -> None:
        """Note that the kernels of a round are compiled."""
        path = self._folder / f"ready-{number}"
        path.with_suffix(".new").write_text(_COMPLETE if complete else "")
        path.with_suffix(".new").rename(path)

    def set_ended(self) -> None:
        """Note that no other round will be ready; shards then compile their own kernels."""
        (self._folder / _ENDED).touch()

    def begun(self, number: int) -> bool:
        """Return whether a shard has begun a round."""
        return (self._folder / f"begun-{number}").exists()

    def next(self, random: Random, go_on: Callable[[], bool]) -> ReadyRound | None:
        """Return the round to play, which is the newest once and then one of the last few.

        Waits for the first one as long as ``go_on`` is true. Returns None where there is none.
        """
        while self._newest < 0 and not self._has(0) and not self._ended():
            if not go_on():
                return None
            time.sleep(POLL_SECONDS)
        if self._has(self._newest + 1):
            self._advance()
            return self._ready(self._newest)
        if self._ended():
            return None
        return self._ready(random.randrange(max(0, self._newest - LAST_ROUNDS + 1), self._newest + 1))

    def _advance(self) -> None:
        """Go to the newest round that is ready, and note that it and those before are begun."""
        while self._has(self._newest + 1):
            self._newest += 1
            (self._folder / f"begun-{self._newest}").touch()

    def _ended(self) -> bool:
        return (self._folder / _ENDED).exists()

    def _has(self, number: int) -> bool:
        return (self._folder / f"ready-{number}").exists()

    def _ready(self, number: int) -> ReadyRound:
        return ReadyRound(number, (self._folder / f"ready-{number}").read_text() == _COMPLETE)
