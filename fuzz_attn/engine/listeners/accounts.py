"""Accounts: whether the failures of a run account for every failing case of its log."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fuzz_attn.counterexamples.counterexample import Counterexample
from fuzz_attn.engine.events import (
    CaseExcused,
    CaseJudged,
    Event,
    FailureChanged,
    FailureFound,
    FailureSeenAgain,
    Which,
    name_of,
)
from fuzz_attn.engine.failures.triage import OUTPUT, UNWRITTEN, class_of, has_place
from fuzz_attn.engine.orders import Order
from fuzz_attn.operations.registry import operation_of

EITHER = "output or unwritten"
"""A wrong fp8 output: a NaN there has the bits of an element that was never written."""


@dataclass
class _Row:
    """A failure: how many cases showed it, and every class that it has stood for."""

    cases: int = 1
    classes: set[str] = field(default_factory=set)

    def add(self, found: Counterexample) -> None:
        found_as = () if found.elsewhere is None else found.elsewhere.found_as
        self.classes |= {_without_words(name) for name in (class_of(found.verdict), *found.also, *found_as)}

    def covers(self, failure_class: str) -> bool:
        wanted = {OUTPUT, UNWRITTEN} if failure_class == EITHER else {failure_class}
        return not wanted.isdisjoint(self.classes)


class Accounts:
    """Counts failing cases and what they are counted as, for each class of failure; call it with each event."""

    def __init__(self) -> None:
        self.failing = 0
        """Cases of the search, and saved ones, that failed."""
        self.excused = 0
        """Cases that failed in a process that had judged others, and passed in a fresh one."""
        self._shown: Counter[str] = Counter()
        """How many of them showed a class; a saved case that is run several times counts once."""
        self._saved: set[tuple[Order, str]] = set()
        self._not_repeated: Counter[str] = Counter()
        self._rows: dict[Which, _Row] = {}
        self._names: dict[str, Which] = {}

    @property
    def lost(self) -> int:
        """How many failed verdicts no failure and no excuse accounts for; in the middle of a run they may follow."""
        return sum(max(0, cases - self._accounted(name)) for name, cases in self._shown.items())

    def _accounted(self, failure_class: str) -> int:
        rows = {id(row): row for row in self._rows.values()}.values()
        return self._not_repeated[failure_class] + sum(row.cases for row in rows if row.covers(failure_class))

    def __call__(self, event: Event) -> None:
        """Count an event."""
        match event:
            case CaseJudged() if event.phase in ("saved", "search"):
                self._judged(event)
            case CaseExcused():
                self.excused += 1
                self._not_repeated[_without_words(class_of(event.verdict))] += event.judged
            case FailureFound():
                self._row(event).add(event.counterexample)
            case FailureChanged():
                self._row(event).add(event.counterexample)
                if event.same_as:
                    self._unite(event)
            case FailureSeenAgain():
                row = self._known(event.which, event.path)
                if row is not None:
                    row.cases += event.cases

    def _judged(self, event: CaseJudged) -> None:
        classes = {_without_words(class_of(verdict)) for verdict in event.verdicts if not verdict.passed}
        if operation_of(event.order.case).has_fp8_output(event.order.case) and classes & {OUTPUT, UNWRITTEN}:
            classes = classes - {OUTPUT, UNWRITTEN} | {EITHER}
        self.failing += bool(classes)
        if event.phase == "saved":
            classes = {name for name in classes if (event.order, name) not in self._saved}
            self._saved |= {(event.order, name) for name in classes}
        self._shown.update(classes)

    def _row(self, event: FailureFound | FailureChanged) -> _Row:
        name = event.shard, event.failure
        self._names[name_of(event.shard, event.failure, event.path)] = name
        return self._rows.setdefault(name, _Row())

    def _known(self, which: Which | None, path: str) -> _Row | None:
        """Return the row of a failure, which logs of earlier versions name by its path only."""
        name = which if which in self._rows else self._names.get(path)
        return None if name is None else self._rows.get(name)

    def _unite(self, event: FailureChanged) -> None:
        """Let a failure and the one that it turned out to be have one row."""
        own, other = self._rows[event.shard, event.failure], self._known(event.same, event.same_as)
        if other is None or other is own:
            return
        other.cases += own.cases
        other.classes |= own.classes
        for name in [name for name, row in self._rows.items() if row is own]:
            self._rows[name] = other


def _without_words(failure_class: str) -> str:
    """Return the line of a class that names one: a finding and an exception at the same line may be one failure."""
    return failure_class.rpartition(" ")[2] if has_place(failure_class) else failure_class
