"""Novelty: when a run last saw anything new, which decides whether it is worth going on."""

from __future__ import annotations

import time
from collections.abc import Callable

from fuzz_attn.backends.mask_coverage import Outcome
from fuzz_attn.engine.events import CaseJudged, Event, FailureChanged, FailureFound, WorkerReady


class Novelty:
    """Notes the time of each event that shows a new compile key, failure signature or outcome of a mask.

    The time before the first worker is ready does not count.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None
        self._keys: set[int] = set()
        self._signatures: set[str] = set()
        self._outcomes: set[tuple[object, Outcome]] = set()

    def __call__(self, event: Event) -> None:
        """Note the time if the event shows anything new."""
        if self._is_new(event):
            self._last = self._clock()

    def seconds_without(self) -> float:
        """Return the seconds since anything was new."""
        return 0.0 if self._last is None else self._clock() - self._last

    def _is_new(self, event: Event) -> bool:
        before = self._known()
        match event:
            case WorkerReady():
                return self._last is None
            case CaseJudged():
                self._keys.add(event.order.case.compile_key.number)
                self._outcomes.update((mask.place, outcome) for mask in event.masks for outcome in mask.seen)
            case FailureFound() | FailureChanged():
                self._signatures.add(event.counterexample.signature)
        return self._known() > before

    def _known(self) -> int:
        return len(self._keys) + len(self._signatures) + len(self._outcomes)
