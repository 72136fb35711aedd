"""Shards: what a run needs of the place where its shards are, those of this machine, and the news between them.

A message could fill the connection of a shard that does not read while it shrinks, and its sender would wait for that
shard, perhaps for ever. To append to a file never waits, and each shard reads on where it stopped, when it has time.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final, Protocol

import msgspec

from fuzz_attn.backends.gpus import visible_gpus
from fuzz_attn.engine.events import Event, FailureChanged, FailureFound, Told
from fuzz_attn.engine.run_plan import ShardPlan
from fuzz_attn.workers.worker_process import START_SECONDS, WorkerProcess

NEWS_NAME: Final = "news.jsonl"
"""The file in the folder of a run."""
_CHUNK_BYTES: Final = 2**20
_DECODER: Final[msgspec.json.Decoder[Told]] = msgspec.json.Decoder(Told)


def is_news(event: object) -> bool:
    """Return whether other shards can use an event: a failure that is followed from now on, or no longer."""
    if isinstance(event, FailureFound):
        return event.followed and not event.saved
    return isinstance(event, FailureChanged) and event.done


class NewsFile:
    """The writer's end: appends lines. It makes the file; raises OSError where it cannot be made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o644)
        self._cut = False

    def append(self, news: bytes) -> None:
        """Append one event in JSON. Where the disk is full, shards learn nothing of it and may find the same."""
        line = b"\n" * self._cut + news + b"\n"
        with self._lock:
            if self._file is None:
                return
            try:
                self._cut = os.write(self._file, line) < len(line)
            except OSError:
                self._cut = True

    def remove(self) -> None:
        """Delete the file."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None
        self._path.unlink(missing_ok=True)


class NewsReader:
    """A shard's end: each call returns what was appended since the last one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._rest = b""

    def __call__(self) -> Sequence[Told]:
        """Return the new events; a last line that is not complete is left for the next call."""
        lines = (self._rest + self._read()).split(b"\n")
        self._rest = lines.pop()
        return [news for line in lines for news in _decoded(line)]

    def _read(self) -> bytes:
        """Return what was appended, nothing while there is no file."""
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDONLY)
            return os.read(self._file, _CHUNK_BYTES)
        except OSError:
            return b""


def _decoded(line: bytes) -> Sequence[Told]:
    """Return the event of a line; none where a full disk has cut it off."""
    try:
        return [_DECODER.decode(line)]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []


INTERRUPTED: Final = "interrupted"
RUN_ENDED: Final = "the run has ended"
"""What the last event of a shard says that was asked to end, and of one whose run is gone."""
COMMAND: Final = (sys.executable, "-P", "-m", "fuzz_attn.engine.shard")
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
