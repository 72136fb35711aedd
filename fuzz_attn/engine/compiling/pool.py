"""Pool: works in forks of this process, which share its imports and what Triton has computed."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from fuzz_attn.workers.descendants import children_of
from fuzz_attn.workers.fork import die_with_parent

SLOW_SECONDS: Final = 10.0
"""A fork that takes longer is set aside: it goes on with what is left of the processor, and others take its place."""
SLOW_NICE: Final = 19
STUCK_SECONDS: Final = 600.0
"""After so long a fork is killed; its work has no result then."""
_PIPE_BYTES: Final = 65536


@dataclass
class _Fork:
    process: int
    number: int
    started: float
    awaited: bool
    aside: bool = False
    received: bytes = b""


class Forks:
    """Forks that each do one piece of work, known by its number, and send its result as bytes."""

    def __init__(self, most_aside: int) -> None:
        self._most_aside = most_aside
        self._forks: dict[int, _Fork] = {}
        """The forks by the pipe that their results come through."""

    @property
    def at_work(self) -> int:
        """The number of forks that are not set aside."""
        return sum(not fork.aside for fork in self._forks.values())

    def start(self, number: int, work: Callable[[], bytes], nice: int = 0, *, awaited: bool = False) -> None:
        """Do a piece of work in a fork; one that others wait for is not set aside."""
        source, sink = os.pipe()
        process = os.fork()
        if not process:
            _work(work, sink, nice)
        os.close(sink)
        self._forks[source] = _Fork(process, number, time.monotonic(), awaited)

    def ended(self, seconds: float) -> Iterator[tuple[int, bytes]]:
        """Wait up to some seconds for forks that end, and yield their numbers and results; empty for one that died."""
        self._kill_stuck()
        self._set_slow_aside()
        for source in select.select(list(self._forks), [], [], seconds)[0]:
            received = os.read(source, _PIPE_BYTES)
            self._forks[source].received += received
            if not received:
                yield self._result(source)

    def kill(self) -> None:
        """End all forks; their work has no result."""
        for fork in self._forks.values():
            os.kill(fork.process, signal.SIGKILL)
        for source in list(self._forks):
            self._result(source)

    def _result(self, source: int) -> tuple[int, bytes]:
        fork = self._forks.pop(source)
        os.close(source)
        status = os.waitpid(fork.process, 0)[1]
        return fork.number, b"" if status else fork.received

    def _kill_stuck(self) -> None:
        for fork in self._forks.values():
            if time.monotonic() - fork.started > STUCK_SECONDS:
                os.kill(fork.process, signal.SIGKILL)

    def _set_slow_aside(self) -> None:
        """Let slow forks go on at the lowest priority, with the compilers that they have started."""
        forks = sorted(self._forks.values(), key=lambda fork: fork.started)
        room = self._most_aside - sum(fork.aside for fork in forks)
        may_wait = [fork for fork in forks if not fork.aside and not fork.awaited]
        slow = [fork for fork in may_wait if time.monotonic() - fork.started > SLOW_SECONDS]
        for fork in slow[: max(0, room)]:
            fork.aside = True
            for process in (fork.process, *children_of(fork.process)):
                with contextlib.suppress(ProcessLookupError):
                    os.setpriority(os.PRIO_PROCESS, process, SLOW_NICE)


def _work(work: Callable[[], bytes], sink: int, nice: int) -> None:
    """Work and send the result, in the fork, which ends then; its status is 1 where the work raised."""
    status = 1
    try:
        die_with_parent()
        os.nice(nice)
        result = memoryview(work())
        while result:
            result = result[os.write(sink, result) :]
        status = 0
    except Exception:  # noqa: BLE001 - the process ends either way
        traceback.print_exc()  # into what the compile stage prints
    finally:
        with contextlib.suppress(OSError):
            os.close(sink)
        os._exit(status)
