"""LaunchClock: how long an order has run, without what a busy machine and the compiler take of it.

A correct kernel is slow where other processes use the processors, so the time that a process waits for a processor does
not count (``run_delay`` of ``/proc/PID/task/TID/schedstat``). What does count is time in which it computes, sleeps or
waits for a GPU. Where the system does not tell, all time counts.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

COMPILE_SECONDS: Final = 120.0
"""A kernel has to compile, or a device to start, within this time, which does not count as part of the launch."""
COMPILES_SECONDS: Final = 600.0
"""All kernels of an order have to compile within this time."""
FIRST_LOOK_SECONDS: Final = 1.0
"""How long a process has waited is asked after so long for the first time: nearly all orders take less."""
NEXT_LOOK_SECONDS: Final = 0.1
MOST_WAITING: Final = 10.0
"""A process that waits for a processor is waited for so many times as long as its limit."""

Delays = Mapping[int, float]
"""For each thread of a process how many seconds it has waited for a processor."""


class LaunchClock:
    """Counts the time of one order from now on, of which a launch may take so many ``seconds``.

    ``delays`` returns the delays of the threads that may carry out the order.
    """

    def __init__(self, seconds: float, delays: Callable[[], Delays]) -> None:
        self._seconds = seconds
        self._delays = delays
        self._used = self._passed = self._compiled = 0.0
        """How much of the time before the current part counts, how much it was, and how long kernels compiled."""
        self._compiling = False
        self._begin()

    def _begin(self) -> None:
        """Begin a part of the order: a launch up to the next kernel that compiles, or that."""
        self._since, self._before = time.monotonic(), None

    _before: Delays | None

    def compiling(self, *, ended: bool) -> None:
        """Note that a kernel compiles from now on, or has compiled."""
        if self._compiling:
            self._compiled += self.took
        else:
            self._used, self._passed = self._used + self._counted(), self._passed + self.took
        self._compiling = not ended
        self._begin()

    @property
    def took(self) -> float:
        """The seconds since the order began, or since its last kernel compiled."""
        return time.monotonic() - self._since

    def next_look(self) -> float:
        """Return when to ask next whether the time is over, a time of ``time.monotonic``."""
        if self._compiling:
            return self._since + min(COMPILE_SECONDS, COMPILES_SECONDS - self._compiled)
        left = self._seconds - self._used - self._counted()
        if self._before is None:
            return self._since + min(FIRST_LOOK_SECONDS, self._seconds - self._used)
        return time.monotonic() + max(left, NEXT_LOOK_SECONDS)

    def over(self) -> str:
        """Return in words which limit is reached, empty if none is."""
        if self._compiling:
            total = self._compiled + self.took
            return f"the launch still compiled a kernel after {total:.0f} s" if self._compiling_too_long() else ""
        passed = self._passed + self.took
        if self._used + self._counted() >= self._seconds or passed >= MOST_WAITING * self._seconds:
            return f"the launch did not end within {self._seconds:.0f} s"
        if self._before is None:
            self._before = self._delays()
        return ""

    def _compiling_too_long(self) -> bool:
        return self.took >= COMPILE_SECONDS or self._compiled + self.took >= COMPILES_SECONDS

    def _counted(self) -> float:
        """Return how much of the current part counts: the time less what the thread that waited most has waited."""
        if self._before is None:
            return self.took
        delays = self._delays()
        waited = max((delays[thread] - self._before.get(thread, 0.0) for thread in delays), default=0.0)
        return max(0.0, self.took - waited)


def delays_of(processes: Iterable[int]) -> Delays:
    """Return how long each thread of some processes has waited for a processor; nothing where the system is silent."""
    delays: dict[int, float] = {}
    for process in processes:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{process}/task"):
                with contextlib.suppress(OSError, ValueError, IndexError):
                    text = Path(f"/proc/{process}/task/{thread}/schedstat").read_text()
                    delays[int(thread)] = int(text.split()[1]) / 1e9
    return delays
