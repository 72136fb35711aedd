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

from fuzz_attn.engine.events import Event, Told
from fuzz_attn.engine.run.local_shards import DECODER
from fuzz_attn.engine.run.ray_actor import Batch, ShardActor
from fuzz_attn.engine.run.returned_failures import ReturnedFailures
from fuzz_attn.engine.run.run_plan import ShardPlan
from fuzz_attn.engine.run_folder import counterexample_folder
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
