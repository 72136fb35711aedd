"""RayShards: the shards of a run as actors of a Ray cluster, which places them wherever it has processors or GPUs.

All that a shard needs and finds travels as messages: no disk is shared. A shard whose node is lost ends as lost; the
run starts what is left of its work as another shard.
"""

from __future__ import annotations

import logging
import math
import socket
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from fuzz_attn import counterexamples
from fuzz_attn.engine.events import (
    Event,
    FailureChanged,
    FailureFound,
    FailureSeenAgain,
    Note,
    SavedPassed,
    Told,
    WorkerReady,
)
from fuzz_attn.engine.ray_actor import Batch, ShardActor
from fuzz_attn.engine.run_folder import counterexample_folder
from fuzz_attn.engine.run_plan import ShardPlan
from fuzz_attn.engine.shards import DECODER
from fuzz_attn.errors import FuzzAttnError

try:
    import ray
except ImportError as _error:
    raise FuzzAttnError("--ray needs Ray: pip install 'fuzz-attn[ray]'") from _error

ANSWER_SECONDS: Final = 10.0
"""How long a cluster's first machine may take to answer; Ray itself tries for minutes."""
LARGEST_PORT: Final = 65535
THREADS: Final = 4
"""An actor's calls that may run at once: its events, and what is told meanwhile."""


@dataclass
class _RemoteShard:
    """An actor, the stream of what it sends, and what is known of it."""

    plan: ShardPlan
    actor: Any  # Ray's type of it knows no `options`
    batches: Any
    folder: str = ""
    death: str = ""
    lost: bool = False
    waiting: list[Event | None] = field(default_factory=list)


class RayCluster:
    """A connection to a Ray cluster; use it as a context. ``address`` is ``auto`` for the one that Ray finds.

    Raises :class:`FuzzAttnError` where there is none.
    """

    def __init__(self, address: str) -> None:
        _require_answer(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise FuzzAttnError(f"--ray={address}: {error}") from error

    def __enter__(self) -> RayCluster:
        """Return the connection."""
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect; actors that still run end."""
        ray.shutdown()

    def total(self, resource: str) -> float:
        """Return how much the cluster has of a resource, ``CPU`` or ``GPU``."""
        return float(ray.cluster_resources().get(resource, 0.0))  # type: ignore[no-untyped-call] # Ray's


def _require_answer(address: str) -> None:
    """Raise :class:`FuzzAttnError` if nothing answers at an address of the form host:port."""
    host, _, port = address.rpartition(":")
    if not host or "//" in host or not port.isdecimal():
        return
    if not 0 < int(port) <= LARGEST_PORT:
        raise FuzzAttnError(f"--ray={address}: port {port} must be 1 to {LARGEST_PORT}")
    try:
        socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
    except OSError as error:
        raise FuzzAttnError(f"--ray={address}: no Ray cluster answers there ({error})") from error


class RayShards:
    """Actors of the cluster that this process is connected to.

    Each gets a processor, and ``gpu_share`` of a GPU. What it finds is saved below ``counterexamples``, and the journal
    of a shard that died is written to ``run_folder``.
    """

    start_seconds: float = math.inf
    """Ray starts an actor when there is room for it."""

    def __init__(self, run_folder: Path, counterexamples: Path, gpu_share: float = 0.0) -> None:
        self._run_folder = run_folder
        self._counterexamples = counterexamples
        self._returned = ReturnedFailures(counterexamples)
        self._class = ray.remote(ShardActor).options(
            num_cpus=1, num_gpus=gpu_share, max_concurrency=THREADS, max_restarts=0
        )
        self._shards: dict[int, _RemoteShard] = {}
        self._told: list[bytes] = []
        """All that shards were told, as JSON: those that start later learn it too."""

    def start(self, plan: ShardPlan) -> None:
        """Ask for an actor; the first one also gets the saved counterexamples."""
        actor: Any = self._class.remote()
        saved = {} if plan.worker else _files_below(self._counterexamples)
        arguments = msgspec.json.encode(plan), saved, sys.path
        self._shards[plan.shard] = _RemoteShard(
            plan, actor, actor.run.options(num_returns="streaming").remote(*arguments)
        )

    def events(self, seconds: float) -> Iterator[tuple[int, Event | None]]:
        """Yield what has come from all shards, with their numbers."""
        numbers = {shard.batches: number for number, shard in self._shards.items()}
        ended = [number for number, shard in self._shards.items() if None in shard.waiting]
        streams = [stream for stream, number in numbers.items() if number not in ended]
        ready = ray.wait(streams, num_returns=len(streams), timeout=seconds)[0] if streams else []
        for number in [*ended, *(numbers[stream] for stream in ready)]:
            shard = self._shards[number]
            if number not in ended:
                self._receive(shard)
            waiting, shard.waiting = shard.waiting, []
            for event in waiting:
                yield number, event
                if event is None:
                    break

    def _receive(self, shard: _RemoteShard) -> None:
        """Take in one batch of a shard, or its end."""
        try:
            batch = msgspec.json.decode(ray.get(next(shard.batches)), type=Batch)
        except StopIteration:
            shard.waiting.append(None)
        except ray.exceptions.RayTaskError as error:
            shard.death = f"failed: {error}"
            shard.waiting.append(None)
        except ray.exceptions.RayError as error:
            shard.death, shard.lost = f"was lost with its node ({type(error).__name__})", True
            shard.waiting.append(None)
        else:
            self._take(shard, batch)

    def _take(self, shard: _RemoteShard, batch: Batch) -> None:
        if batch.folder:
            shard.folder = batch.folder
            shard.actor.tell.remote(self._told)
        there = str(counterexample_folder(shard.folder)) if shard.folder else ""
        for message in batch.events:
            shard.waiting += self._returned.local(shard.plan.shard, there, DECODER.decode(message))
        shard.death = batch.death or shard.death
        for name, content in batch.left.items():
            with suppress(OSError):
                (self._run_folder / name).write_bytes(content)

    def tell(self, news: Told) -> None:
        """Send all shards what one of them has found; those without a place get it when they have one."""
        message = msgspec.json.encode(news)
        self._told.append(message)
        for shard in self._shards.values():
            if shard.folder:
                shard.actor.tell.remote([message])

    def stop(self, number: int) -> None:
        """Ask a shard to save what it found and to end; one without a place ends at once."""
        if self._shards[number].folder:
            self._shards[number].actor.stop.remote()
        else:
            self.kill(number)

    def kill(self, number: int) -> None:
        """End a shard at once."""
        shard = self._shards[number]
        if None not in shard.waiting:
            ray.kill(shard.actor)
            shard.death = "was ended"
            shard.waiting.append(None)

    def strike(self) -> None:
        """Do nothing: Ray must not be called in a signal handler. Its actors end with this process."""

    def unplaced(self) -> Collection[int]:
        """Return the shards that wait for a free processor or GPU."""
        return [number for number, shard in self._shards.items() if not shard.folder]

    def forget(self, number: int) -> str:
        """Release an ended shard's place; return how it ended, in words."""
        shard = self._shards.pop(number)
        with suppress(ray.exceptions.RayError):
            ray.kill(shard.actor)
        return shard.death or "ended without a word"

    def was_lost(self, number: int) -> bool:
        """Return whether a shard ended because its node is gone."""
        return self._shards[number].lost

    def end(self) -> None:
        """End all shards at once."""
        for number in list(self._shards):
            self.forget(number)


def _files_below(folder: Path) -> Mapping[str, bytes]:
    """Return the counterexamples below a folder, by their paths in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.json"))}


class ReturnedFailures:
    """Saves failures of other machines below a folder, in a folder for each target, as a shard saves its own here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._slug = ""
        self._paths: dict[tuple[int, str], str] = {}
        """The file here for each shard's file there, also under names that it had before."""
        self._saved: set[tuple[int, int]] = set()
        """The failures that have a file from before the run."""
        self._files: dict[tuple[int, int], Path] = {}
        """The file here of each other failure, named as in events by its shard and its number."""

    def local(self, number: int, there: str, event: Event) -> Iterator[Event]:
        """Yield the events that stand for one of a shard whose counterexamples are in the folder ``there``.

        The event itself with the names of files here, and a note if a file could not be written.
        """
        try:
            yield self._local(number, there, event)
        except OSError as error:
            yield Note(number, f"a failure cannot be saved: {error}")
            if isinstance(event, FailureFound | FailureChanged):
                yield msgspec.structs.replace(event, path="")

    def _local(self, number: int, there: str, event: Event) -> Event:
        match event:
            case WorkerReady():
                self._slug = event.ready.slug
            case FailureFound():
                return self._found(number, there, event)
            case FailureChanged():
                return self._changed(number, there, event)
            case FailureSeenAgain() | SavedPassed():
                return msgspec.structs.replace(event, path=self._path(number, there, event.path))
            case Note():
                return msgspec.structs.replace(event, text=event.text.replace(there, str(self._folder)))
        return event

    def _path(self, number: int, there: str, path: str) -> str:
        """Return the path here of a file that a shard names: its own, one that it was sent, or another shard's."""
        sent = path.replace(there, str(self._folder)) if there and path.startswith(there) else path
        return self._paths.get((number, path), sent)

    def _found(self, number: int, there: str, event: FailureFound) -> FailureFound:
        if event.saved:
            self._saved.add((number, event.failure))
            return msgspec.structs.replace(event, path=self._path(number, there, event.path))
        return msgspec.structs.replace(event, path=self._new(number, event))

    def _changed(self, number: int, there: str, event: FailureChanged) -> FailureChanged:
        name = number, event.failure
        if name in self._saved:
            return msgspec.structs.replace(event, path=self._path(number, there, event.path))
        if event.same_as:
            path = self._files.pop(name, None)
            if path is not None:
                path.unlink(missing_ok=True)
            own = self._path(number, there, event.path)
            return msgspec.structs.replace(event, path=own, same_as=self._path(number, there, event.same_as))
        if name not in self._files:  # an interrupt may come between the failure and its first event
            return msgspec.structs.replace(event, path=self._new(number, event))
        return msgspec.structs.replace(event, path=self._rewritten(number, event))

    def _new(self, number: int, event: FailureFound | FailureChanged) -> str:
        """Save a failure in a new file; return its path."""
        path = counterexamples.save(event.counterexample, self._folder / self._slug)
        return self._noted(number, event, path)

    def _rewritten(self, number: int, event: FailureChanged) -> str:
        """Write a failure into its file, which has the name of its signature at the end; return its path."""
        path = self._files[number, event.failure]
        counterexamples.overwrite(event.counterexample, path)
        return self._noted(number, event, counterexamples.rename(path, event.counterexample) if event.done else path)

    def _noted(self, number: int, event: FailureFound | FailureChanged, path: Path) -> str:
        self._files[number, event.failure] = path
        self._paths[number, event.path] = str(path)
        return str(path)
