"""A state machine fuzzes the engine: campaigns on made-up targets, with kills, signals, full disks and odd messages.

The rules say what happens; the checks are what docs/failures.md and docs/commands.md promise, computed from the events
and files only. ``conftest.py`` holds the target and the shards.

    make states EXAMPLES=5000 LOAD=8
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal

import hypothesis
import msgspec
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from fuzz_attn import counterexamples
from fuzz_attn.counterexamples import Counterexample, Elsewhere, Step
from fuzz_attn.engine import campaign as campaign_module
from fuzz_attn.engine import replay as replay_module
from fuzz_attn.engine.events import (
    CaseExcused,
    CaseJudged,
    CaseRefused,
    Event,
    FailureChanged,
    FailureFound,
    FailureSeenAgain,
    Finished,
    SavedPassed,
    WorkerLost,
)
from fuzz_attn.engine.failures import life
from fuzz_attn.engine.listeners.results import RunReport
from fuzz_attn.engine.orders import Setup
from fuzz_attn.errors import CounterexampleError, FuzzAttnError
from tests.engine.state_machine.conftest import (
    BUGS,
    CASES,
    FEATURES,
    NONSENSE,
    Bug,
    FakeWorker,
    Mode,
    Run,
    Shard,
    World,
    class_in,
    files_below,
    was_killed,
)

LEAST_JUDGED: Final = 0.1
"""A run that judged a smaller part of its cases has the exit status 2."""

EXAMPLES: Final = int(os.environ.get("FUZZ_ATTN_EXAMPLES", "40"))
"""How many examples of each machine there are."""
TOGETHER: Final = 250
"""How many of them are one test, so that tests can share them."""
STEPS: Final = 14
PHASES: Final = (Phase.generate, *[Phase.shrink] * ("FUZZ_ATTN_NO_SHRINKING" not in os.environ))
"""To shrink a finding takes minutes."""


@dataclass
class Live:
    """A failure as its events tell it."""

    found: Counterexample
    path: str
    saved: bool
    paths: set[str] = field(default_factory=set)
    same_as: str = ""

    @property
    def fails(self) -> bool:
        """Whether it fails the run, by docs/failures.md."""
        if self.found.status == "known":
            return False
        return not (self.found.verdict.kind == "timeout" and self.found.confirmation == "unconfirmed")


def lives_in(events: Iterable[tuple[int, Event]]) -> dict[tuple[int, int], Live]:
    """Return each failure of a run by its shard and number; checks that its events have an order."""
    lives: dict[tuple[int, int], Live] = {}
    for number, event in events:
        if not isinstance(event, FailureFound | FailureChanged):
            continue
        assert number == event.shard
        name = event.shard, event.failure
        if isinstance(event, FailureFound):
            assert name not in lives, "a failure is found once"
            lives[name] = Live(event.counterexample, event.path, event.saved, {event.path})
            continue
        live = lives[name]
        assert not live.same_as, "a failure that is another one has ended"
        live.found, live.path = event.counterexample, event.path
        live.paths.add(event.path)
        if event.same_as:
            assert event.done
            paths = {path for other in lives.values() if other is not live for path in other.paths}
            unsaved = event.same_as.startswith("failure ") and "" in paths
            assert event.same_as in paths or unsaved, "it is the same as a failure of this run"
            live.same_as = event.same_as
    return lives


class Checks:
    """What must be true of a run, whatever happened."""

    def __init__(self, world: World, run: Run) -> None:
        self.world, self.run = world, run
        self.lives = lives_in(run.events)
        self.left = {name: live for name, live in self.lives.items() if not live.same_as}

    @property
    def disk_failed(self) -> bool:
        """Whether a file could not be written."""
        return self.world.disk.failed > 0

    def during(self) -> None:
        """Check what holds between any two steps."""
        self._files_from_before()
        self._answers_are_events()
        for shard in self.run.shards:
            assert not shard.after_interrupt, "an interrupted campaign launches nothing"
            self._ended_well(shard)
        if not self.disk_failed:
            self._files_are_as_reported()

    def _files_from_before(self) -> None:
        for path, content in self.run.before.items():
            assert path.read_bytes() == content, f"{path} is from before the run"

    def _answers_are_events(self) -> None:
        """Check that each answer of a worker is one event; an interrupt may come in between."""
        for shard in self.run.shards:
            judged = [event for event in shard.events if isinstance(event, CaseJudged)]
            told = Counter(event.order for event in shard.events if isinstance(event, CaseRefused))
            told += Counter(event.order for event in judged if not event.backend)
            explained = Counter(event.order for event in judged if event.backend)
            if explained:
                assert shard.explaining is not None
                assert not explained - Counter(order for order, _ in shard.explaining.answers)
            answered = Counter(order for order, _ in shard.worker.answers)
            assert not told - answered, "a case was reported and not judged"
            assert (answered - told).total() <= shard.is_interrupted, "a case was judged and not reported"

    @staticmethod
    def _ended_well(shard: Shard) -> None:
        if shard.is_running:
            return
        assert isinstance(shard.error, FuzzAttnError | KeyboardInterrupt | None), repr(shard.error)
        assert not isinstance(shard.error, KeyboardInterrupt) or shard.is_interrupted
        finished = [event for event in shard.events if isinstance(event, Finished)]
        assert len(finished) == 1
        assert shard.events[-1] is finished[0]
        assert bool(finished[0].error) == (shard.error is not None)

    def _files_are_as_reported(self) -> None:
        for live in self.left.values():
            assert live.path
            if not live.saved:
                assert counterexamples.load(Path(live.path)) == live.found
        for path in self._ended_files():
            assert not path.exists(), "the file of a failure that is another one is gone"

    def _ended_files(self) -> set[Path]:
        """Return the files of failures that are another one."""
        others = {left.path for left in self.left.values()}
        ended = [live for live in self.lives.values() if live.same_as and not live.saved]
        return {Path(live.path) for live in ended if live.path and live.path not in others}

    def at_end(self, report: RunReport) -> None:
        """Check the report and the folder after a run."""
        kept = self._kept(report)
        self._nothing_lost(kept)
        self._nothing_invented(kept)
        self._nothing_twice(kept)
        self._counts(report)
        self._files_left(kept)
        self._exit_status(kept, report)
        self._saved_files_are_accounted_for(report)
        self._replays(kept)

    def _kept(self, report: RunReport) -> list[Live]:
        """Return the failures of the report, of which shards that met too late may have had several."""
        by_path = {failure.path: failure for failure in report.failures}
        kept = [live for live in self.left.values() if live.path in by_path]
        for live in self.left.values():
            if live.path not in by_path:
                assert not live.saved
                assert any(class_in(other.found.verdict) == class_in(live.found.verdict) for other in kept)
        for failure in report.failures:
            assert any(
                live.path == failure.path and (not live.path or live.found == failure.counterexample) for live in kept
            )
        return kept

    def _nothing_lost(self, kept: list[Live]) -> None:
        """Check that each failing case of the search is a failure of the report."""
        accounted = {class_in(live.found.verdict) for live in kept}
        accounted |= {self._plain(name) for live in kept for name in live.found.also}
        for live in self.lives.values():  # a row that other failures ended as stands for what these were found as
            accounted |= (
                {self._plain(name) for name in live.found.elsewhere.found_as} if live.found.elsewhere else set()
            )
        accounted |= {class_in(event.verdict) for _, event in self.run.events if isinstance(event, CaseExcused)}
        for shard in self.run.shards:
            judged = [event for event in shard.events if isinstance(event, CaseJudged)]
            for index, event in enumerate(judged):
                earlier = judged[index - 1] if index else event
                decides = event.phase == "search" or (earlier.phase == "search" and was_killed(earlier))
                if decides and not was_killed(event):
                    self._accounted(event, accounted)
                elif event.phase == "saved":
                    self._accounted_for_saved(event, accounted)

    @staticmethod
    def _plain(also: str) -> str:
        """Return the class that a counterexample's ``also`` names."""
        if ":" in also:
            return f"{'exception' if also.startswith('exception') else 'out_of_bounds'} {also.rpartition(' ')[2]}"
        return "mismatch" if also == "output" else also

    @staticmethod
    def _accounted(event: CaseJudged, accounted: set[str]) -> None:
        for verdict in event.verdicts:
            assert verdict.passed or class_in(verdict) in accounted, f"lost: {class_in(verdict)}"

    def _accounted_for_saved(self, event: CaseJudged, accounted: set[str]) -> None:
        if not was_killed(event):
            self._accounted(event, accounted)

    def _nothing_invented(self, kept: list[Live]) -> None:
        """Check that each failure is a bug of the target, or workers that were killed often and not looked into."""
        ends = self.run.stopping or self.world.clock.now >= self.deadline
        crowded = len(kept) > life.MOST_FAILURES
        for live in kept:
            name, confirmation = class_in(live.found.verdict), live.found.confirmation
            not_looked_into = (confirmation == "state" and ends) or (confirmation == "unconfirmed" and crowded)
            killed = name == "crash" and self.world.killed > life.EXCUSED and not_looked_into
            assert name in self.world.ever or killed, f"no bug of the target is {name}"

    def _nothing_twice(self, kept: list[Live]) -> None:
        """Check that no two failures of the report are one bug, as far as their cases were shrunk and have files."""
        seen: Counter[tuple[str, tuple[str, ...], bool]] = Counter()
        for live in kept:
            found = live.found
            name = class_in(found.verdict)
            if live.path and not live.saved and found.confirmation == "confirmed" and found.shrunk:
                seen[name, () if ":" in name else tuple(sorted(found.trigger)), found.only_here] += 1
        assert not seen or max(seen.values()) == 1, f"twice: {seen}"
        placed = {class_in(live.found.verdict) for live in kept if live.saved and ":" in class_in(live.found.verdict)}
        new = [class_in(live.found.verdict) for live in kept if live.path and not live.saved]
        assert self.world.explained or placed.isdisjoint(new), "what a file from before the run covers is new"

    def _counts(self, report: RunReport) -> None:
        """Check the numbers of the report against the events."""
        events = [event for _, event in self.run.events]
        judged = [event for event in events if isinstance(event, CaseJudged)]
        searched = sum(event.phase in ("saved", "search") for event in judged)
        statistics = report.statistics
        assert (statistics.cases, statistics.shrinking) == (searched, len(judged) - searched)
        lost = sum(isinstance(event, WorkerLost) for event in events)
        interrupted = sum(shard.is_interrupted for shard in self.run.shards)
        assert statistics.deaths == lost
        assert lost <= sum(shard.worker.deaths for shard in self.run.shards) <= lost + interrupted
        refused = sum(isinstance(event, CaseRefused) and event.phase in ("saved", "search") for event in events)
        assert statistics.refused == refused
        assert not statistics.lost, "a failing case is in no row"
        assert statistics.shrinking_now == 0
        again = [event for event in events if isinstance(event, FailureSeenAgain)]
        if all(event.path for event in again) and not self.disk_failed:
            found = sum(isinstance(event, FailureFound) for event in events)
            assert sum(failure.cases for failure in report.failures) == found + len(again)
            paths = {failure.path for failure in report.failures}
            assert set(statistics.counterexamples) | set(statistics.known) == paths

    def _files_left(self, kept: list[Live]) -> None:
        """Check that the folder has the files from before and one of each failure, and each new one loads."""
        files = set(files_below(self.world.saved))
        reported = {Path(live.path) for live in kept if live.path}
        assert files - set(self.run.before) <= reported, "a file without a failure"
        assert reported <= files, "a failure without its file"
        assert not list(self.world.saved.glob(".*.part"))
        for path in files - set(self.run.before):
            counterexamples.load(path)

    def _exit_status(self, kept: list[Live], report: RunReport) -> None:
        failing = [live for live in kept if live.fails]
        errors = [shard.error for shard in self.run.shards if shard.error and not self.run.stopping]
        if failing:
            expected = 1 if all(live.path for live in failing) else 2
        elif self.run.stopping:
            expected = 128 + 15
        else:
            too_few = report.cases < LEAST_JUDGED * (report.cases + report.statistics.refused)
            nothing = not report.cases and not kept
            expected = 2 if errors or nothing or (too_few and report.cases) else 0
        assert report.exit_status == expected

    def _saved_files_are_accounted_for(self, report: RunReport) -> None:
        """Check that the first shard has said something of each file from before, unless it had to end."""
        first = self.run.shards[0]
        if first.is_interrupted or first.error:
            return
        told = {event.path for event in first.events if isinstance(event, FailureFound | SavedPassed)}
        counted = any("had played" in note for note in report.notes)
        for path in self.run.before:
            assert str(path) in told or any(str(path) in note for note in report.notes) or counted

    @property
    def deadline(self) -> float:
        """When the time of the first shard is up."""
        first = self.run.shards[0].campaign
        return float("inf") if first.plan.max_time is None else first._started + first.plan.max_time

    def _replays(self, kept: list[Live]) -> None:
        """Check that each new file of a steady target fails again."""
        if not self.world.steady or self.run.changed_target or self.world.refuses or self.disk_failed:
            return
        certain = [Path(live.path) for live in kept if live.found.confirmation in ("confirmed", "state") and live.path]
        certain = [path for path in certain if path not in self.run.before]
        failed = set(self._failing_on(certain, there=False))
        if self.world.explained:
            failed |= set(self._failing_on(certain, there=True))
        assert failed == set(certain), "a file does not fail again"

    def _failing_on(self, paths: list[Path], *, there: bool) -> Iterator[Path]:
        """Yield the files that fail on one of the backends."""
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(replay_module, "IsolatedWorker", partial_class(self.world, there=there))
            for entry in replay_module.replay(tuple(paths), target="fake"):
                if entry.status == "FAILED":
                    yield entry.path


def partial_class(world: World, *, there: bool) -> type[FakeWorker]:
    """Return the class of fake workers of a world, which takes a set-up only."""

    class OfWorld(FakeWorker):
        def __init__(self, setup: Setup, **_: Any) -> None:
            super().__init__(setup, world, there=there)

    return OfWorld


def loaded(path: Path) -> Counterexample | None:
    """Return the counterexample in a file, None where there is none."""
    try:
        return counterexamples.load(path)
    except CounterexampleError:
        return None


def modules_with_a_clock() -> Iterator[ModuleType]:
    """Yield the modules of campaigns and failures that read the time."""
    for name, module in tuple(sys.modules.items()):
        if name.startswith(WITH_A_CLOCK) and hasattr(module, "time"):
            yield module


WITH_A_CLOCK: Final = ("fuzz_attn.engine.failures", "fuzz_attn.engine.campaign", "fuzz_attn.engine.isolated_worker")


cases = st.sampled_from(sorted(CASES))
shard_numbers = st.integers(0, 2)


class CampaignMachine(RuleBasedStateMachine):
    """What can happen to campaigns over one folder."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-attn-states-")))
        self.world = World(folder)
        self.run: Run | None = None
        self.sound = True
        """Whether each rule so far has come to its end."""
        patched = self.stack.enter_context(pytest.MonkeyPatch.context())
        for module in modules_with_a_clock():
            patched.setattr(module, "time", self.world.clock)
        patched.setattr(life, "MOST_FAILURES", 2)
        patched.setattr(campaign_module, "play_round", self._play_round)
        for guard in (self.world.disk, self.world.journals):
            for name in ("write_bytes", "replace", "hardlink_to"):
                patched.setattr(Path, name, guard.guarded(getattr(Path, name)))
            patched.setattr(shutil, "copyfile", guard.guarded(shutil.copyfile))

    def _play_round(self, *arguments: Any, **named: Any) -> None:
        assert self.run is not None
        self.run.play_round(*arguments, **named)

    def teardown(self) -> None:
        try:
            if self.run is not None and self.sound:
                self.end_run()
        finally:
            for shard in [] if self.run is None else self.run.running:
                shard.stop()
            self.stack.close()

    def shard(self, number: int) -> Shard | None:
        """Return one of the running shards."""
        running = [] if self.run is None else self.run.running
        return running[number % len(running)] if running else None

    def check(self) -> None:
        """Check what must be true between steps; the last statement of a rule."""
        self.world.judged = 0
        if self.run is not None:
            Checks(self.world, self.run).during()
        self.sound = True

    @initialize(
        bugs=st.lists(BUGS, min_size=1, max_size=3),
        shards=st.sampled_from((1, 2, 0)),
        explained=st.booleans(),
        early=cases,
    )
    def make_target(self, bugs: list[Bug], shards: int, explained: bool, early: str) -> None:
        """Give the target some bugs and start a run, or with no shards begin with files."""
        self.world.explained = explained
        for bug in bugs:
            self.world.add(bug)
        if shards:
            self.start_run(shards, None, None, early)

    @precondition(lambda self: self.run is None)
    @rule(
        shards=st.sampled_from((1, 1, 2, 3)),
        max_time=st.sampled_from((None, None, 60.0)),
        signal=st.none() | st.none() | st.tuples(st.integers(0, 12), st.integers(0, 12)),
        early=cases,
    )
    def start_run(self, shards: int, max_time: float | None, signal: tuple[int, int] | None, early: str) -> None:
        """Start a run, which plays the saved files. Others have judged a case by then, and a signal may come."""
        self.sound = False
        self.run = Run(self.world, shards, max_time)
        if signal is not None:
            self._interrupt(*signal)
        first, *others = self.run.shards
        for shard in others:
            shard.start()
            if shard.is_running:
                shard.try_case(CASES[early], may_skip=False)
        first.start()
        self.check()

    @precondition(lambda self: self.run is not None)
    @rule(number=shard_numbers, case=cases, may_skip=st.booleans())
    def judge_case(self, number: int, case: str, may_skip: bool) -> None:
        if shard := self.shard(number):
            self.sound = False
            shard.try_case(CASES[case], may_skip=may_skip)
            self.check()

    @precondition(lambda self: self.run is not None)
    @rule(number=shard_numbers, several=st.lists(cases, min_size=3, max_size=6))
    def judge_cases(self, number: int, several: list[str]) -> None:
        for case in several:
            self.judge_case(number, case, may_skip=False)

    @precondition(lambda self: self.run is not None)
    @rule(number=shard_numbers, names=st.frozensets(st.sampled_from(FEATURES), min_size=1, max_size=2))
    def judge_cases_with(self, number: int, names: frozenset[str]) -> None:
        """Judge all cases with some features and at most two others, first those with few."""
        for case in sorted(CASES, key=len):
            if names <= set(case.split("+")) and len(case.split("+")) <= len(names) + 2:
                self.judge_case(number, case, may_skip=True)

    @precondition(lambda self: self.run is not None)
    @rule(number=shard_numbers, mode=st.sampled_from(("prompt", "held", "twice", "reversed")))
    def deliver_news(self, number: int, mode: Mode) -> None:
        if shard := self.shard(number):
            shard.mode = mode

    @precondition(lambda self: self.run is not None)
    @rule(launches=st.integers(1, 12))
    def kill_worker(self, launches: int) -> None:
        self.world.kills = launches

    @precondition(lambda self: self.run is not None and not self.run.stopping)
    @rule(judges=st.integers(0, 40), emits=st.integers(0, 40))
    def send_signal(self, judges: int, emits: int) -> None:
        self._interrupt(judges, emits)

    def _interrupt(self, judges: int, emits: int) -> None:
        """Interrupt each shard: at a launch, or, where ``emits`` is not 0, after it has sent an event."""
        assert self.run is not None
        self.run.stopping = True
        for shard in self.run.shards:
            shard.interrupt_judge, shard.interrupt_emit = judges, emits

    @rule(good=st.integers(0, 6), fails=st.integers(1, 6), journals=st.booleans())
    def fill_disk(self, good: int, fails: int, journals: bool) -> None:
        disk = self.world.journals if journals else self.world.disk
        if self.run is not None:
            disk.good, disk.fails = good, fails

    @rule(
        bug=st.none() | BUGS,
        mended=st.none() | st.integers(0, 5),
        refuses=st.sampled_from((None, None, "heads", "long")),
        seconds=st.sampled_from((0.0, 5.0, 40.0)),
    )
    def change_target(self, bug: Bug | None, mended: int | None, refuses: str | None, seconds: float) -> None:
        """Let the target have another bug, lose one, or refuse other cases, after some time."""
        self.world.clock.now += seconds
        if self.run is not None:
            self.run.changed_target = True
        if mended is not None and self.world.bugs:
            del self.world.bugs[mended % len(self.world.bugs)]
        if bug is not None:
            self.world.add(bug)
        self.world.refuses = refuses

    @precondition(lambda self: self.run is None)
    @rule(
        bug=BUGS,
        case=cases,
        steps=st.lists(cases, max_size=2),
        confirmation=st.sampled_from(("confirmed", "confirmed", "flaky", "state", "unconfirmed")),
        outcome=st.sampled_from((None, "passes", "fails", "unknown")),
    )
    def save_file(
        self,
        bug: Bug,
        case: str,
        steps: list[str],
        confirmation: Literal["confirmed", "flaky", "state", "unconfirmed"],
        outcome: Literal["passes", "fails", "unknown"] | None,
    ) -> None:
        """Save a failure that the target may have had once."""
        found = counterexamples.signed("fake", "unified", None, CASES[case], bug.verdict(15.0))
        sequence = tuple(Step(CASES[step]) for step in steps) if confirmation == "state" else ()
        tries = {"failed": 2, "tries": 5} if confirmation == "flaky" else {}
        elsewhere = Elsewhere("simulator", outcome) if outcome and self.world.explained else None
        found = msgspec.structs.replace(
            found, confirmation=confirmation, sequence=sequence, elsewhere=elsewhere, **tries
        )
        counterexamples.save(found, self.world.saved)

    @precondition(lambda self: self.run is None)
    @rule(what=st.sampled_from(sorted(NONSENSE)))
    def save_nonsense(self, what: str) -> None:
        self.world.saved.mkdir(parents=True, exist_ok=True)
        (self.world.saved / f"{what}.json").write_bytes(NONSENSE[what])

    @precondition(lambda self: self.run is None and bool(files_below(self.world.saved)))
    @rule(number=st.integers(0, 20), status=st.sampled_from(("open", "known", "fixed")))
    def mark(self, number: int, status: Literal["open", "known", "fixed"]) -> None:
        files = files_below(self.world.saved)
        path = files[number % len(files)]
        if found := loaded(path):
            marked = msgspec.structs.replace(found, status=status, reference="#7", because="waits")
            counterexamples.overwrite(marked, path)

    @precondition(lambda self: self.run is not None)
    @rule()
    def end_run(self) -> None:
        assert self.run is not None
        self.sound = False
        report = self.run.end()
        run, self.run = self.run, None
        self.world.disk.good = self.world.disk.fails = 0
        self.world.journals.good = self.world.journals.fails = self.world.kills = 0
        self.world.judged = 0
        Checks(self.world, run).at_end(report)
        self.sound = True


def parts() -> range:
    """Return the numbers of the tests that share the examples."""
    return range(max(1, -(-EXAMPLES // TOGETHER)))


@pytest.mark.parametrize("part", parts())
def test_campaigns_keep_their_promises(part: int, request: pytest.FixtureRequest) -> None:
    seed = int(request.config.getoption("--hypothesis-seed") or 0) * 10_000 + part
    machine = hypothesis.seed(seed)(type("Machine", (CampaignMachine,), {}))
    examples = min(TOGETHER, EXAMPLES)
    chosen = settings(max_examples=examples, stateful_step_count=STEPS, report_multiple_bugs=False, phases=PHASES)
    run_state_machine_as_test(machine, settings=chosen)
