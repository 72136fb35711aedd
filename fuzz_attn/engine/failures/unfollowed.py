"""Unfollowed: failures beyond those that a shard follows. They are saved as they were seen, and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from fuzz_attn.counterexamples.counterexample import signature_of
from fuzz_attn.engine.failures.triage import KnownFailure, class_of, has_place
from fuzz_attn.engine.messages import Order
from fuzz_attn.oracle.verdict import Verdict

MOST_FILES: Final = 40
"""So many files have failures that are not followed. After that, only a failure of a new class gets one."""
MOST_CLASSES: Final = 400
"""So many files there are at most; a failure of another class is not counted then, which fails the run too."""

Save: TypeAlias = Callable[[Order, Verdict], KnownFailure]
Count: TypeAlias = Callable[[KnownFailure], None]


class Unfollowed:
    """Groups failures by class and signature, those at one line by their class: the first of a group is saved.

    The others are counted with it.
    ``save`` saves and reports a failure, and ``count`` reports that another case showed it.
    """

    def __init__(self, save: Save, count: Count) -> None:
        self._save = save
        self._count = count
        self._groups: dict[tuple[str, str], KnownFailure] = {}

    def add(self, order: Order, verdict: Verdict) -> None:
        """Save a failure, or count it with one that is saved."""
        name = class_of(verdict), "" if has_place(class_of(verdict)) else signature_of(order.case, verdict)
        group = self._groups.get(name) or self._fallback(name[0])
        if group is None and len(self._groups) < MOST_CLASSES:
            self._groups[name] = self._save(order, verdict)
        elif group is not None:
            self._count(group)

    def _fallback(self, failure_class: str) -> KnownFailure | None:
        """Return the first group of a class where there are too many files for another one."""
        if len(self._groups) < MOST_FILES:
            return None
        return next((group for (name, _), group in self._groups.items() if name == failure_class), None)
