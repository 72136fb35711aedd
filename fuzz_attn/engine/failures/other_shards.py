"""Other shards: what they tell of their failures, and which failures of this shard are the same bugs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuzz_attn.engine.events import FailureChanged, FailureFound
from fuzz_attn.engine.failures.triage import KnownFailure, KnownFailures, is_same, trigger_in
from fuzz_attn.engine.failures.waiting import WaitingFailures


class OtherShards:
    """Learns the failures of other shards, for the shard of a number.

    ``living`` returns the failure that the shard is following, and ``end_as`` ends one of its own as another one.
    """

    def __init__(
        self,
        shard: int,
        known: KnownFailures,
        waiting: WaitingFailures,
        living: Callable[[], KnownFailure | None],
        end_as: Callable[[KnownFailure, KnownFailure], None],
    ) -> None:
        self._shard, self._known, self._waiting = shard, known, waiting
        self._living, self._end_as = living, end_as
        self._foreign: dict[tuple[int, int], KnownFailure] = {}
        """What other shards told, by shard and number."""

    def learn(self, news: Sequence[FailureFound | FailureChanged]) -> None:
        """Learn failures; one of this shard that is the same bug as an earlier one ends.

        What is told twice changes nothing. A failure that was only seen says too little, and one without a file has
        nothing that could stand for another.
        """
        for event in news:
            self._waiting.note(event)
            done = isinstance(event, FailureChanged) and event.done and not event.same_as
            certain = event.path and event.counterexample.confirmation != "unconfirmed"
            if done and certain and event.shard != self._shard:
                self._learn_changed(event)

    def _learn_changed(self, event: FailureFound | FailureChanged) -> None:
        """Learn a failure of another shard as it is now, in the place of what was told of it before."""
        name = event.shard, event.failure
        before = self._foreign.get(name)
        if before is not None and (before.found, before.path) == (event.counterexample, event.path):
            return
        other = KnownFailure(event.shard, event.failure, event.counterexample, event.path)
        other.trigger, other.complete = trigger_in(other.found), other.found.shrunk
        self._foreign[name] = other
        if before is not None:
            other.other_triggers, other.other_classes = before.other_triggers, before.other_classes
            self._known.remove(before)
        self._learn(other)

    def _learn(self, other: KnownFailure) -> None:
        """Add a failure of another shard, unless it is one of this shard, which then stays or ends.

        One that is being followed stays for now: it ends as the other when it has been followed.
        """
        for own in self._known:
            if own.shard != self._shard or own is self._living():
                continue
            lost, won = is_same(other, own), is_same(own, other)
            if won and (own.saved or not lost or own.shard < other.shard):
                return
            if lost and not own.saved:
                self._known.remove(own)
                other.other_classes |= {own.failure_class, *own.other_classes}
                self._end_as(own, other)
        self._known.add(other)
