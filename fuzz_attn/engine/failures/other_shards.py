"""Other shards: what they tell of their failures, and what waits here because one of them follows it.

Workers meet a frequent bug at the same time. If each followed it, all but one would do so for nothing, and have no time
for other bugs. A failure waits only for those that were found before it, so no two wait for each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import Final, NamedTuple

from fuzz_attn.engine.events import FailureChanged, FailureFound, Told, Which
from fuzz_attn.engine.failures.reduction import share_seconds
from fuzz_attn.engine.failures.triage import HANG, KnownFailure, KnownFailures, class_of, is_same, trigger_in
from fuzz_attn.engine.orders import Answer, Order

MOST_WAITING: Final = 2
"""While so many failures wait, the shard does too: a search would find the same ones again."""
SHARES: Final = 2.0
"""A failure waits at most this many times as long as shrinking one may take: the other shard may have been killed."""
PATIENCE: Final = 60.0
"""The seconds that it waits at most in a run without a time limit."""


class Waiting(NamedTuple):
    """A saved failure that is followed later: the answer that showed it, and the cases before it in its process."""

    failure: KnownFailure
    answer: Answer
    before: Sequence[Order] = ()
    beside: bool = False
    others: frozenset[Which] = frozenset()
    """The failures of its class that other shards had found before it, one of which it may be."""
    until: float = 0.0
    """When it waits no longer, a time of ``time.monotonic``."""


class WaitingFailures:
    """The failures of one ``shard`` that wait, and the class of each failure that another shard is following."""

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self._waiting: list[Waiting] = []
        self._elsewhere: dict[Which, str] = {}
        self._begun: dict[Which, float] = {}
        self.longest = 0.0
        """The seconds that another shard has taken for a failure at most, that of a hang aside."""

    def note(self, event: Told) -> None:
        """Note that another shard begins to follow a failure, or has ended."""
        which = event.shard, event.failure
        if isinstance(event, FailureChanged):
            begun = self._begun.pop(which, None) if event.done else None
            if event.done and self._elsewhere.pop(which, HANG) != HANG and begun is not None and not event.same_as:
                self.longest = max(self.longest, time.monotonic() - begun)
        elif event.shard != self._shard and event.followed and not event.saved:
            self._elsewhere[which] = class_of(event.counterexample.verdict)
            self._begun[which] = time.monotonic()

    def takes(self, waiting: Waiting, max_time: float, seconds_left: float) -> bool:
        """Return whether a failure waits from now on, as others follow its class.

        A run of ``max_time`` seconds ends in ``seconds_left``, the last of which are its own.
        """
        name = waiting.failure.failure_class
        others = frozenset(which for which, other in self._elsewhere.items() if other == name)
        share = share_seconds(max_time) if isfinite(max_time) else PATIENCE / SHARES
        seconds = min(SHARES * share, seconds_left - share)
        if not others or seconds <= 0.0:
            return False
        self._waiting.append(waiting._replace(others=others, until=time.monotonic() + seconds))
        return True

    @property
    def full(self) -> bool:
        """Whether the search should wait too."""
        return len(self._waiting) >= MOST_WAITING

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def leaving(self) -> Iterator[Waiting]:
        """Yield the failures that wait no longer: those whose others have ended, or whose patience has."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if each.others.isdisjoint(self._elsewhere) or each.until < time.monotonic():
                yield each
            else:
                self._waiting.append(each)


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
