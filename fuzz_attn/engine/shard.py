"""A shard of a run in its own process: ``python -P -m fuzz_attn.engine.shard`` runs one campaign.

It receives a :class:`ShardPlan`, and nothing after that, and sends its events. What other shards have found it reads
from a file (:mod:`fuzz_attn.engine.shards`). SIGTERM, the end of the connection and the death of its parent end it;
what it found is saved then.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

from fuzz_attn.engine.campaign import Campaign, Plan
from fuzz_attn.engine.events import Event, Told
from fuzz_attn.engine.run_plan import ShardPlan
from fuzz_attn.engine.shards import INTERRUPTED, NEWS_NAME, RUN_ENDED, NewsReader
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.workers.fork import adopt_orphans, die_with_parent, end_children

SAVE_SECONDS: Final = 10
"""A shard that was asked to end is killed by the system after this time, whatever it does."""
ALONE_SECONDS: Final = 3
"""The same for a shard whose run is gone: nobody waits for it, and nobody else would end it."""


class Shard:
    """Runs the campaign of one connection.

    A signal raises KeyboardInterrupt once, and never while a message is sent: half a message would garble the rest.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._end = select.poll()
        self._end.register(connection.fileno(), select.POLLIN)
        self._sending = False
        self._interrupted = False
        self._lost = False

    def run(self) -> None:
        """Run the campaign. Its last event reports an error too."""
        signal.signal(signal.SIGTERM, self._interrupt)
        signal.signal(signal.SIGINT, self._interrupt)
        plan = plan_of(msgspec.json.decode(self._connection.recv_bytes(), type=ShardPlan))
        os.environ["FUZZ_ATTN_WORKER"] = "1"  # fuzz_attn.verify refuses to start a run in a worker
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(plan.run_folder / ".hypothesis")
        self._read_news = NewsReader(plan.run_folder / NEWS_NAME)
        with contextlib.suppress(FuzzAttnError, KeyboardInterrupt):
            Campaign(plan, self._send, news=self._news).run()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._interrupted:
            return
        self._interrupted = True
        signal.alarm(ALONE_SECONDS if self._has_ended() else SAVE_SECONDS)
        if not self._sending:
            raise KeyboardInterrupt(INTERRUPTED)

    def _send(self, event: Event) -> None:
        """Send an event; raises KeyboardInterrupt once if the run has ended, and sends nothing from then on."""
        if self._lost:
            return
        was_interrupted = self._interrupted
        self._sending = True
        try:
            self._connection.send_bytes(msgspec.json.encode(event))
        except (BrokenPipeError, ConnectionResetError):
            self._lost = self._interrupted = True
            signal.alarm(ALONE_SECONDS)
        finally:
            self._sending = False
        if self._interrupted and not was_interrupted:
            raise KeyboardInterrupt(INTERRUPTED)

    def _has_ended(self) -> bool:
        """Return whether the run has ended: as it sends nothing else, only the end of the connection can be read."""
        return bool(self._end.poll(0))

    def _news(self) -> Sequence[Told]:
        """Return what other shards have found since the last call; raises KeyboardInterrupt if the run has ended."""
        if self._has_ended():
            self._lost = self._interrupted = True
            signal.alarm(ALONE_SECONDS)
            raise KeyboardInterrupt(RUN_ENDED)
        return self._read_news()


def plan_of(message: ShardPlan) -> Plan:
    """Return the plan of the campaign that a message asks for."""
    return Plan(
        setup=message.setup,
        shard=message.shard,
        worker=message.worker,
        covered=message.covered,
        stage=message.stage,
        shards=message.shards,
        seed=message.seed,
        max_time=message.max_time,
        max_cases=message.max_cases,
        saved=message.saved,
        begun=message.begun,
        run_folder=Path(message.run_folder),
        fixtures=Path(message.counterexamples),
    )


if __name__ == "__main__":
    die_with_parent(signal.SIGTERM)
    adopt_orphans()
    try:
        Shard(Connection(int(sys.argv[-1]))).run()
    finally:
        end_children()
