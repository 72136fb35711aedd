"""Waiting failures: what a shard leaves for later, because another one is following what may be the same bug.

Workers meet a frequent bug at the same time. If each followed it, all but one would do so for nothing, and have no time
for other bugs. A failure waits only for those that were found before it, so no two wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from fuzz_attn.engine.events import FailureChanged, FailureFound, Which
from fuzz_attn.engine.failures.triage import KnownFailure, class_of
from fuzz_attn.engine.messages import Answer, Order

MOST_WAITING: Final = 4
"""So many failures wait for what other shards follow; with more a shard follows the first itself."""


class Waiting(NamedTuple):
    """A saved failure that is followed later: the answer that showed it, and the cases before it in its process."""

    failure: KnownFailure
    answer: Answer
    before: Sequence[Order] = ()
    beside: bool = False
    others: frozenset[Which] = frozenset()
    """The failures of its class that other shards had found before it, one of which it may be."""


class WaitingFailures:
    """The failures of one ``shard`` that wait, and the class of each failure that another shard is following."""

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self._waiting: list[Waiting] = []
        self._elsewhere: dict[Which, str] = {}

    def note(self, event: FailureFound | FailureChanged) -> None:
        """Note that another shard begins to follow a failure, or has ended."""
        which = event.shard, event.failure
        if isinstance(event, FailureChanged):
            if event.done:
                self._elsewhere.pop(which, None)
        elif event.shard != self._shard and event.followed and not event.saved:
            self._elsewhere[which] = class_of(event.counterexample.verdict)

    def takes(self, waiting: Waiting) -> bool:
        """Return whether a failure waits from now on, because other shards are following some of its class."""
        name = waiting.failure.failure_class
        others = frozenset(which for which, other in self._elsewhere.items() if other == name)
        if others:
            self._waiting.append(waiting._replace(others=others))
        return bool(others)

    def leaving(self, *, all_of_them: bool) -> Iterator[Waiting]:
        """Yield the failures that wait no longer: all, else those that wait for none, and the first of too many."""
        waiting, self._waiting = self._waiting, []
        for number, each in enumerate(waiting):
            too_many = len(waiting) > MOST_WAITING and number == 0
            if all_of_them or too_many or each.others.isdisjoint(self._elsewhere):
                yield each
            else:
                self._waiting.append(each)
