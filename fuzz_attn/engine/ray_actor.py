"""ShardActor: one shard of a run on a node of a Ray cluster, as a process of that node, and its folder there.

An actor holds a lock on a file beside its folder as long as it lives; the system takes it away with the process. So a
lock that is free says that the folder belongs to nobody, also where containers share the place of the folders.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import msgspec

from fuzz_attn.case.plain import FileName, Plain
from fuzz_attn.engine.events import Event
from fuzz_attn.engine.run_folder import counterexample_folder
from fuzz_attn.engine.run_plan import ShardPlan
from fuzz_attn.engine.shards import COMMAND, DECODER, NEWS_NAME, NewsFile
from fuzz_attn.workers.worker_process import LONGEST_MESSAGE, WorkerProcess

BATCH_SECONDS: Final = 0.25
LONGEST_BATCH: Final = 1000
"""Events that are sent at once at most."""
PREFIX: Final = "fuzz-attn-ray-"
LOCK: Final = ".lock"
YOUNG_SECONDS: Final = 60.0
"""A lock file that is younger may belong to an actor that has not taken the lock yet."""


class Batch(Plain, frozen=True):
    """What an actor sends: events as JSON, or at the end how its process died and what it left in the run's folder.

    The first batch holds nothing but the folder in which this shard writes; its events name files there.
    """

    folder: str = ""
    events: tuple[bytes, ...] = ()
    death: str = ""
    left: dict[FileName, bytes] = {}  # noqa: RUF012 - msgspec copies it for each struct


class ShardActor:
    """Runs one shard. Its methods run in threads of one process: :meth:`run` until the end, others meanwhile."""

    def __init__(self) -> None:
        self._news: NewsFile | None = None
        self._process: WorkerProcess[Event] | None = None
        self._stopped = False

    def run(self, plan: bytes, saved: Mapping[str, bytes], search_path: Sequence[str]) -> Iterator[bytes]:
        """Yield what the shard sends, as batches in JSON.

        ``saved`` holds the saved counterexamples, by their paths in their folder. ``search_path`` is where the caller's
        process finds its modules; the folders that are here too serve this one.
        """
        sys.path.extend(entry for entry in search_path if entry not in sys.path and Path(entry).exists())
        with node_folder() as folder:
            for path, content in saved.items():
                target = counterexample_folder(folder) / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            (folder / "run").mkdir()
            self._news = NewsFile(folder / "run" / NEWS_NAME)
            yield msgspec.json.encode(Batch(folder=str(folder)))
            for batch in self._batches(msgspec.json.decode(plan, type=ShardPlan), folder):
                yield msgspec.json.encode(batch)

    def tell(self, news: Sequence[bytes]) -> None:
        """Pass on what other shards have found, in the file that the shard reads."""
        for line in news:
            if self._news is not None:
                self._news.append(line)

    def stop(self) -> None:
        """Ask the shard to save what it found and to end."""
        self._stopped = True
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None:
                os.kill(self._process.pid, signal.SIGTERM)

    def _batches(self, plan: ShardPlan, folder: Path) -> Iterator[Batch]:
        own = {"run_folder": f"{folder}/run", "counterexamples": str(counterexample_folder(folder))}
        here = msgspec.structs.replace(plan, begun=time.time(), **own)
        process: WorkerProcess[Event] = WorkerProcess(COMMAND, DECODER, plan.worker)
        try:
            process.send(here)
            self._process = process
            if self._stopped:
                self.stop()
            yield from (Batch(events=events) for events in _events(process.connection))
            left = {path.name: path.read_bytes() for path in Path(here.run_folder).glob("*.json")}
            yield Batch(death=process.death(process.exit_code()), left=left)
        finally:
            self._process = None
            process.end()


def _events(connection: Connection) -> Iterator[tuple[bytes, ...]]:
    """Yield the messages of a connection as they come, those of a quarter of a second together."""
    ended = False
    while not ended:
        messages: list[bytes] = []
        try:
            messages.append(connection.recv_bytes(LONGEST_MESSAGE))
            until = time.monotonic() + BATCH_SECONDS
            while len(messages) < LONGEST_BATCH and connection.poll(max(0.0, until - time.monotonic())):
                messages.append(connection.recv_bytes(LONGEST_MESSAGE))
        except (EOFError, OSError):
            ended = True
        if messages:
            yield tuple(messages)


@contextmanager
def node_folder(place: Path | None = None) -> Iterator[Path]:
    """Make a folder for a ``with`` block, by default among temporary files, and delete abandoned ones."""
    place = Path(tempfile.gettempdir()) if place is None else place
    _delete_abandoned(place)
    handle, name = tempfile.mkstemp(prefix=PREFIX, suffix=LOCK, dir=place)
    lock, folder = Path(name), Path(name.removesuffix(LOCK))
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.unlink(missing_ok=True)
        os.close(handle)


def _delete_abandoned(place: Path) -> None:
    """Delete the folders whose locks nobody holds."""
    for lock in place.glob(f"{PREFIX}*{LOCK}"):
        with contextlib.suppress(OSError):  # of another user, or deleted by another actor meanwhile
            if time.time() - lock.stat().st_mtime > YOUNG_SECONDS:
                _delete_unless_held(lock)


def _delete_unless_held(lock: Path) -> None:
    """Delete a folder and its lock; raises OSError where an actor holds it."""
    with lock.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(lock.with_name(lock.name.removesuffix(LOCK)), ignore_errors=True)
        lock.unlink()
