"""Targets that fail now in one way, now in another: each failure is in a row, and following them ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest

from fuzz_attn import counterexamples
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import Sequence
from fuzz_attn.counterexamples import Step
from fuzz_attn.engine.campaign import Campaign, Plan
from fuzz_attn.engine.events import CaseExcused, CaseJudged, Event, FailureFound, Note
from fuzz_attn.engine.isolated_worker import IsolatedWorker, Wait
from fuzz_attn.engine.listeners.results import Results, RunReport
from fuzz_attn.engine.orders import Answer, Order, Ready, Setup
from fuzz_attn.errors import OutOfTimeError
from fuzz_attn.oracle.verdict import Verdict

PASSED = Answer(Verdict("oracle", ratio=0.5))
WRONG = Answer(Verdict("oracle", "mismatch", "wrong", ratio=7.0))
CRASH = Answer(Verdict("oracle", "crash", "died of SIGABRT"))
KILLED = Answer(Verdict("oracle", "crash", "died of SIGKILL"), killed=True)
SHORT, LONG = AttentionCase((Sequence(1, 3),)), AttentionCase((Sequence(1, 30),))
MOST_LAUNCHES = 3000
"""More than following a few failures takes."""


class Unsteady(IsolatedWorker):
    """A worker whose answers a function returns, of an order and the number of its launch."""

    def __init__(self, answer: Callable[[Order, int], Answer]) -> None:
        super().__init__(Setup("fake"))
        self.ready = Ready("fake", "fake", "unified", "simulator", domain=Domain())
        self.answer = answer
        self.launches = 0

    def __enter__(self) -> Self:
        return self

    def renew(self) -> None:
        pass

    def judge(self, order: Order, *, deadline: float | None = None, wait: Wait = "full") -> Answer:
        if order.digest:
            return Answer(digest="0")
        self.launches += 1
        assert self.launches < MOST_LAUNCHES, "following failures has no end"
        return self.answer(order, self.launches)


class Run:
    """A campaign of some cases on an unsteady target; the first event that ``interrupt`` chooses ends it."""

    def __init__(
        self,
        folder: Path,
        answer: Callable[[Order, int], Answer],
        cases: int,
        interrupt: Callable[[Event], bool] = lambda event: False,
    ) -> None:
        self.events: list[Event] = []
        self.interrupt = interrupt
        plan = Plan(Setup("fake"), 0, 1, 1, None, cases, folder / "run", folder / "saved")
        try:
            Campaign(plan, self._emit, Unsteady(answer)).run()
            self.interrupted = False
        except KeyboardInterrupt:
            self.interrupted = True

    def _emit(self, event: Event) -> None:
        self.events.append(event)
        if self.interrupt(event):
            self.interrupt = lambda event: False
            raise KeyboardInterrupt

    @property
    def report(self) -> RunReport:
        results = Results()
        for event in self.events:
            results(event)
        return results.report()

    @property
    def kinds(self) -> set[str]:
        """The kinds of the failures of the report, all of which have a file."""
        found = [counterexamples.load(Path(row.path)) for row in self.report.failures]
        return {each.verdict.kind for each in found}

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)


def save(folder: Path, **fields: Any) -> Path:
    """Save a mismatch of an earlier run."""
    found = counterexamples.signed("fake", "unified", None, LONG, WRONG.verdict)
    found = msgspec.structs.replace(found, **{"confirmation": "flaky", "failed": 2, "tries": 5, **fields})
    return counterexamples.save(found, folder / "saved" / "fake")


KNOWN = {"status": "known", "reference": "#7", "because": "waits"}


def test_two_failures_that_alternate_are_followed_to_an_end(tmp_path: Path) -> None:
    run = Run(tmp_path, lambda order, launch: CRASH if launch % 2 else WRONG, cases=20)
    assert run.kinds == {"mismatch", "crash"}
    assert (run.report.exit_status, run.report.lost) == (1, "")


def test_what_fails_only_once_is_saved(tmp_path: Path) -> None:
    run = Run(tmp_path, lambda order, launch: WRONG if launch == 1 else PASSED, cases=5)
    (row,) = run.report.failures
    assert counterexamples.load(Path(row.path)).verdict.message == "wrong"


def test_a_saved_failure_that_fails_in_another_way_several_times_counts_once(tmp_path: Path) -> None:
    save(tmp_path, **KNOWN)
    run = Run(tmp_path, lambda order, launch: CRASH if launch < 4 else WRONG if order.case == LONG else PASSED, cases=5)
    assert run.kinds == {"mismatch", "crash"}
    assert run.report.lost == ""


def test_the_end_of_the_time_in_the_middle_of_a_saved_file_loses_no_failure(tmp_path: Path) -> None:
    save(tmp_path, **KNOWN)

    def answer(order: Order, launch: int) -> Answer:
        if launch > 1:
            raise OutOfTimeError
        return CRASH

    run = Run(tmp_path, answer, cases=5)
    assert (run.kinds, run.report.exit_status, run.report.lost) == ({"crash"}, 1, "")


@pytest.mark.parametrize(("answer", "kind", "fails"), [(WRONG, "mismatch", False), (CRASH, "crash", True)])
def test_an_interrupt_right_after_a_saved_case_failed_loses_nothing(
    answer: Answer, kind: str, fails: bool, tmp_path: Path
) -> None:
    path = save(tmp_path, **KNOWN)
    run = Run(tmp_path, lambda order, launch: answer, cases=5, interrupt=lambda event: isinstance(event, CaseJudged))
    assert run.interrupted
    assert (run.kinds, run.report.exit_status == 1, run.report.lost) == ({kind}, fails, "")
    assert counterexamples.load(path).status == "known"


def test_a_worker_that_is_killed_in_a_saved_case_before_the_end_is_no_failure(tmp_path: Path) -> None:
    save(tmp_path, confirmation="state", sequence=(Step(SHORT),), failed=0, tries=0)
    run = Run(tmp_path, lambda order, launch: KILLED, cases=5, interrupt=lambda event: isinstance(event, CaseJudged))
    assert run.interrupted
    assert (run.kinds, run.count(CaseExcused), run.report.lost) == (set(), 1, "")


def test_an_interrupt_while_one_failure_of_saved_files_is_followed_loses_no_other(tmp_path: Path) -> None:
    save(tmp_path, confirmation="state", sequence=(Step(SHORT), Step(LONG)), failed=0, tries=0)
    other = Answer(Verdict("oracle", "exception", "the target raised ValueError: no", site="/kernel.py:3"))
    answers = {1: CRASH, 2: other}
    run = Run(
        tmp_path,
        lambda order, launch: answers.get(launch, PASSED),
        cases=5,
        interrupt=lambda event: isinstance(event, CaseJudged) and event.phase == "confirm",
    )
    assert run.interrupted
    assert (run.kinds, run.report.exit_status, run.report.lost) == ({"crash", "exception"}, 1, "")


@pytest.mark.parametrize("again", [WRONG, CRASH, PASSED])
def test_a_killed_worker_whose_case_fails_in_another_is_excused_for_the_kill_only(
    again: Answer, tmp_path: Path
) -> None:
    run = Run(tmp_path, lambda order, launch: KILLED if launch == 3 else again if launch > 3 else PASSED, cases=20)
    assert run.kinds == {again.verdict.kind} - {"ok"}
    assert run.count(CaseExcused) == (again != CRASH)
    notes = [event.text for event in run.events if isinstance(event, Note)]
    assert any("a worker was ended from outside" in note for note in notes) == (again != CRASH)
    assert run.report.lost == ""


def test_a_marked_failure_that_was_only_seen_is_confirmed_when_it_is_played(tmp_path: Path) -> None:
    """So each shard learns it, and its mark covers the cases that have all of its traits."""
    path = save(tmp_path, **KNOWN, confirmation="unconfirmed", failed=0, tries=0, shrunk=False)
    before = path.read_bytes()
    run = Run(tmp_path, lambda order, launch: WRONG if order.case.max_seq_len > 20 else PASSED, cases=40)
    (row,) = run.report.failures
    assert (row.counterexample.confirmation, row.known, row.saved) == ("confirmed", True, True)
    assert row.cases > 1
    assert run.report.exit_status == 0
    assert path.read_bytes() == before


def test_files_that_the_end_of_a_run_leaves_unplayed_are_counted(tmp_path: Path) -> None:
    for _ in range(5):
        save(tmp_path, confirmation="confirmed")

    def answer(order: Order, launch: int) -> Answer:
        if launch > 2:
            raise OutOfTimeError
        return PASSED

    run = Run(tmp_path, answer, cases=5)
    assert "the run ended before it had played 3 of 5 saved counterexamples" in run.report.notes
    assert run.report.statistics.cases == 2
    assert not any("had played" in note for note in Run(tmp_path, lambda order, launch: PASSED, cases=2).report.notes)


def test_a_file_that_another_worker_has_just_saved_is_not_from_before_the_run(tmp_path: Path) -> None:
    before, new = save(tmp_path, confirmation="confirmed"), save(tmp_path, confirmation="confirmed")
    saved = frozenset((str(before.relative_to(tmp_path / "saved")),))
    plan = Plan(Setup("fake"), 0, 2, 1, None, 3, tmp_path / "run", tmp_path / "saved", saved=saved)
    events: list[Event] = []
    Campaign(plan, events.append, Unsteady(lambda order, launch: WRONG if order.case == LONG else PASSED)).run()
    found = [event.path for event in events if isinstance(event, FailureFound) and event.saved]
    assert found == [str(before)]
    assert new.exists()
