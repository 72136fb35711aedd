"""Hangs and deaths that need earlier calls in a process: counted at first, and from the third on a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import pytest

from fuzz_attn import counterexamples
from fuzz_attn.case.domain import Domain
from fuzz_attn.counterexamples import Counterexample
from fuzz_attn.engine.campaign import Campaign, Plan
from fuzz_attn.engine.events import CaseExcused, Event, FailureSeenAgain, Note
from fuzz_attn.engine.failures.life import EXCUSED
from fuzz_attn.engine.isolated_worker import IsolatedWorker, Wait
from fuzz_attn.engine.listeners.results import Results, RunReport
from fuzz_attn.engine.orders import Answer, Order, Ready, Setup
from fuzz_attn.oracle.verdict import Verdict

PASSED = Answer(Verdict("oracle", ratio=0.5))


class FailsInUsedProcess(IsolatedWorker):
    """A target that hangs, or kills its process, from its sixth call in a process on; then another one judges."""

    def __init__(self, *, killed: bool, recurs: bool = True, most: int = 10**9) -> None:
        super().__init__(Setup("fake"))
        self.ready = Ready("fake", "fake", "unified", "simulator", domain=Domain())
        self.killed, self.recurs, self.left = killed, recurs, most
        self.judged: list[Order] = []
        """The orders since the process was renewed."""

    def __enter__(self) -> Self:
        return self

    def renew(self) -> None:
        self.judged.clear()

    def judge(self, order: Order, *, deadline: float | None = None, wait: Wait = "full") -> Answer:
        searching = self.killed or wait == "short, then full"
        if order.digest or len(self.judged) < 5 or not self.left or not (searching or self.recurs):
            self.judged += [order] * (not order.digest)
            return PASSED
        self.left -= 1
        self.judged.clear()
        if self.killed:
            return Answer(Verdict("oracle", "crash", "died of SIGKILL"), killed=True)
        hang = Verdict("oracle", "timeout", "the launch did not end within 3 s")
        if wait != "short, then full":
            return Answer(hang)
        self.judged.append(order)
        return Answer(PASSED.verdict, earlier=hang)


class Run:
    """The events of a campaign, and what they come to; ``failures`` are those of the report."""

    def __init__(self, folder: Path, worker: FailsInUsedProcess, *, interrupted: bool = False) -> None:
        self.events: list[Event] = []
        self.folder = folder / "saved" / "fake"
        plan = Plan(Setup("fake"), 0, 1, 1, None, 60, folder / "run", folder / "saved")
        campaign = Campaign(plan, self.events.append, worker)
        if interrupted:
            with pytest.raises(KeyboardInterrupt):
                campaign.run()
        else:
            campaign.run()
        results = Results()
        for event in self.events:
            results(event)
        self.report: RunReport = results.report()
        assert self.report.lost == ""

    @property
    def failures(self) -> list[Counterexample]:
        return [row.counterexample for row in self.report.failures]

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.json"))

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Note)]

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)


@pytest.mark.parametrize(("killed", "kind"), [(False, "timeout"), (True, "crash")])
def test_a_hang_or_death_that_needs_earlier_calls_is_a_failure(killed: bool, kind: str, tmp_path: Path) -> None:
    run = Run(tmp_path, FailsInUsedProcess(killed=killed))
    (found,) = run.failures
    assert (found.verdict.kind, found.confirmation) == (kind, "state")
    assert len(found.sequence) == 5
    assert counterexamples.load(run.files[0]) == found
    assert run.count(CaseExcused) == EXCUSED + 1
    assert run.count(FailureSeenAgain) > 2
    assert run.report.exit_status == 1


@pytest.mark.parametrize("killed", [False, True])
def test_a_hang_or_death_that_never_recurs_is_counted_only(killed: bool, tmp_path: Path) -> None:
    run = Run(tmp_path, FailsInUsedProcess(killed=killed, recurs=False, most=EXCUSED + 1))
    assert not run.failures
    assert not run.files
    assert any("not again after the same cases before it" in note for note in run.notes)
    assert (run.report.statistics.excused, run.report.exit_status) == (EXCUSED + 1, 0)


def test_a_hang_that_needs_earlier_calls_counts_if_the_time_is_up_first(tmp_path: Path) -> None:
    class Interrupted(FailsInUsedProcess):
        def judge(self, order: Order, *, deadline: float | None = None, wait: Wait = "full") -> Answer:
            if wait == "full" and not order.digest:
                raise KeyboardInterrupt
            return super().judge(order, deadline=deadline, wait=wait)

    run = Run(tmp_path, Interrupted(killed=False), interrupted=True)
    (found,) = run.failures
    assert (found.confirmation, found.verdict.kind, len(found.sequence)) == ("state", "timeout", 5)
    assert [counterexamples.load(path) for path in run.files] == [found]
    assert run.report.exit_status == 1
