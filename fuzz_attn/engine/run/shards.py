"""Shards: what a run needs of the place where its shards are."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, Protocol

from fuzz_attn.engine.events import Event, Told
from fuzz_attn.engine.run.run_plan import ShardPlan

INTERRUPTED: Final = "interrupted"
RUN_ENDED: Final = "the run has ended"
"""What the last event of a shard says that was asked to end, and of one whose run is gone."""


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
