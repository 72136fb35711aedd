"""Shards: what a run needs of the place where its shards are, and the shards of a run on this machine."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final, Protocol

import msgspec

from fuzz_attn.backends.gpus import visible_gpus
from fuzz_attn.engine.events import Event, Told
from fuzz_attn.engine.run.news import NEWS_NAME, NewsFile
from fuzz_attn.engine.run.run_plan import ShardPlan
from fuzz_attn.workers.worker_process import START_SECONDS, WorkerProcess

INTERRUPTED: Final = "interrupted"
RUN_ENDED: Final = "the run has ended"
"""What the last event of a shard says that was asked to end, and of one whose run is gone."""
COMMAND: Final = (sys.executable, "-P", "-m", "fuzz_attn.engine.run.shard")
DECODER: Final = msgspec.json.Decoder[Event](Event)


class Shards(Protocol):
    """The shards of a run, wherever they are. Each has the number of its plan."""

    start_seconds: float
    """A shard that is not ready so long after its start hangs."""

    def start(self, plan: ShardPlan) -> None:
        """Start a shard."""

    def events(self, seconds: float) -> Iterator[tuple[int, Event | None]]:
        """Yield what shards have sent, with their numbers, and None at a shard's end; wait so long for the first."""

    def tell(self, news: Told) -> None:
        """Let all shards know what one of them has found. This waits for none of them."""

    def stop(self, number: int) -> None:
        """Ask a shard to save what it found and to end."""

    def kill(self, number: int) -> None:
        """End a shard at once."""

    def strike(self) -> None:
        """Kill all shards where that waits for nothing: a signal handler or another thread calls this."""

    def unplaced(self) -> Collection[int]:
        """Return the shards that wait for a free processor or GPU."""

    def forget(self, number: int) -> str:
        """Release what an ended shard holds; return how it ended, in words."""

    def was_lost(self, number: int) -> bool:
        """Return whether an ended shard ended because its machine is gone, so that it can go on elsewhere."""

    def end(self) -> None:
        """End all shards at once."""


class LocalShards:
    """Processes of this machine. The first worker of each GPU checks its arithmetic, which compiles some 20 kernels."""

    start_seconds: float = 2 * START_SECONDS

    def __init__(self) -> None:
        self._processes: dict[int, WorkerProcess[Event]] = {}
        self._never_started: set[int] = set()
        """Shards that were asked to end before a fork server had forked them."""
        self._news: NewsFile | None = None

    def start(self, plan: ShardPlan) -> None:
        """Start the process of a shard."""
        self._news = self._news or NewsFile(Path(plan.run_folder) / NEWS_NAME)
        process = self._processes[plan.shard] = WorkerProcess(COMMAND, DECODER, plan.worker, end_signal=signal.SIGTERM)
        process.send(plan if plan.worker < max(1, len(visible_gpus(os.environ))) else _without_check(plan))

    def events(self, seconds: float) -> Iterator[tuple[int, Event | None]]:
        """Yield one event of each shard that has sent any."""
        while self._never_started:
            yield self._never_started.pop(), None
        numbers = {process.connection: number for number, process in self._processes.items()}
        for connection in wait(list(numbers), seconds):
            assert isinstance(connection, Connection)
            number = numbers[connection]
            yield number, self._processes[number].receive()

    def tell(self, news: Told) -> None:
        """Let all shards read what one of them has found."""
        if self._news is not None:
            self._news.append(msgspec.json.encode(news))

    def stop(self, number: int) -> None:
        """Ask a shard to save what it found and to end."""
        if not self._processes[number].ask_to_end():
            self._never_started.add(number)

    def kill(self, number: int) -> None:
        """End a shard at once; what it has sent can still be received."""
        process = self._processes[number]
        if process.started is None:
            self._never_started.add(number)
        process.kill()

    def strike(self) -> None:
        """Kill all shards and wait for nothing."""
        for process in list(self._processes.values()):
            process.strike()

    def unplaced(self) -> Collection[int]:
        """Return no shard: each process starts at once."""
        return ()

    def forget(self, number: int) -> str:
        """Release what an ended shard holds; return how it ended, in words."""
        process = self._processes.pop(number)
        never = process.started is None
        death = "could not be started" if never else process.death(process.exit_code())
        process.end()
        return death

    def was_lost(self, number: int) -> bool:
        """Return False: this machine is still here."""
        return False

    def end(self) -> None:
        """Kill all shards; their workers end with them."""
        for process in self._processes.values():
            process.end()
        self._processes.clear()
        if self._news is not None:
            self._news.remove()
            self._news = None


def _without_check(plan: ShardPlan) -> ShardPlan:
    """Return the plan of a shard whose GPU another one checks."""
    return msgspec.structs.replace(plan, setup=msgspec.structs.replace(plan.setup, checks_device=False))
