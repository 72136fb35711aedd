"""Watchdog: a thread that says what a run waits for where it stands still, and ends one that does not end by itself."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol, Self

STILL_SECONDS: Final = 20.0
"""A run whose loop has not come round for so long says what it waits for."""
LATE_SECONDS: Final = 10.0
"""A run that goes on so long after its limit says what it waits for."""
LOOK_SECONDS: Final = 1.0
ALIVE_SECONDS: Final = 60.0
_STANDARD_ERROR: Final = 2


class Watched(Protocol):
    """What the watchdog knows of a run. It reads all of this in a thread of its own."""

    def waits_for(self) -> str:
        """Return what the run waits for, in words."""

    def limit(self) -> float:
        """Return when the run is to end, a time of ``time.monotonic``; infinity where it has no limit."""

    def last_moment(self) -> float:
        """Return when the run must have ended."""

    def strike(self) -> None:
        """Kill the processes of the run and wait for nothing."""

    def show_alive(self) -> None:
        """Let others see that the run goes on."""


class Watchdog:
    """Watches a run for the time of a ``with`` block. The run calls :meth:`beat` whenever its loop comes round."""

    def __init__(self, run: Watched, say: Callable[[str], None] | None = None) -> None:
        self._run = run
        self._say = say or say_on_standard_error
        self._beat = time.monotonic()
        self._shown = 0.0
        self._said_still = self._said_late = self._struck = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog of a run", daemon=True)

    def __enter__(self) -> Self:
        with contextlib.suppress(RuntimeError):  # no other thread is allowed: then nobody watches
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._ended.set()

    def beat(self) -> None:
        """Note that the run goes on."""
        self._beat = time.monotonic()
        self._said_still = False

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Say what has to be said at a time, and end the run if that is over."""
        if now > self._shown + ALIVE_SECONDS:
            self._shown = now
            self._run.show_alive()
        still, late = now - self._beat, now - self._run.limit()
        if still > STILL_SECONDS and not self._said_still:
            self._said_still = True
            self._say(f"no progress for {still:.0f} s: waiting for {self._run.waits_for()}")
        if late > LATE_SECONDS and not self._said_late:
            self._said_late = True
            self._say(f"the run goes on {late:.0f} s after its limit: waiting for {self._run.waits_for()}")
        if now > self._run.last_moment() and not self._struck:
            self._struck = True
            waited = self._run.waits_for()
            self._run.strike()
            self._say(f"all workers were killed: the run did not end by itself, and waited for {waited}")


def say_on_standard_error(text: str) -> None:
    """Print one line on standard error, unless that would wait for its reader."""
    with contextlib.suppress(OSError, ValueError):
        writable = select.poll()
        writable.register(_STANDARD_ERROR, select.POLLOUT)
        if writable.poll(0):
            os.write(_STANDARD_ERROR, f"fuzz-attn: {' '.join(text.split())}\n".encode(errors="replace")[:4096])
