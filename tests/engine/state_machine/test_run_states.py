"""Hypothesis fuzzes a run: its shards send late, again, in another order and too much, die, hang, and signals come.

The shards are made up and so is the clock, so that an example takes milliseconds. ``test_campaign_states.py`` fuzzes
what happens in a shard.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

import hypothesis
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence
from fuzz_attn.counterexamples import Counterexample, signed
from fuzz_attn.engine import fuzz_run
from fuzz_attn.engine.events import (
    WHOLE_RUN,
    CaseJudged,
    Event,
    FailureChanged,
    FailureFound,
    FailureSeenAgain,
    Finished,
    Note,
    WorkerLost,
    WorkerReady,
)
from fuzz_attn.engine.fuzz_run import OVERDUE_SECONDS, STOP_SECONDS, FuzzRun
from fuzz_attn.engine.orders import Order, Ready, Setup
from fuzz_attn.engine.run_plan import MOST_LOSSES, RunPlan, ShardPlan
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.oracle.verdict import Verdict

EXAMPLES: Final = int(os.environ.get("FUZZ_ATTN_EXAMPLES", "60"))
TOGETHER: Final = 500
"""How many examples are one test, so that tests can share them."""
START_SECONDS: Final = 360.0
MOST_WAITS: Final = 20_000
"""A run that asks for events so often has no end."""
SLACK: Final = 30.0
"""Seconds of the made-up clock that a run may need beyond its limits."""

CASE: Final = AttentionCase((Sequence(1, 3),))
KINDS: Final = ("nan", "mismatch", "crash", "unwritten")

Act = Literal["send", "again", "swap", "wait", "wait long", "signal", "die", "lose", "hang", "fall silent"]
ACTS: Final[tuple[Act, ...]] = ("send", "send", "send", *get_args(Act))
WAITS: Final = {"wait": 5.0, "wait long": 200.0}


def found_with(kind: Any, status: str = "open") -> Counterexample:
    """Return a failure as a shard reports it."""
    found = signed("t", "unified", None, CASE, Verdict("oracle", kind, "wrong"))
    return msgspec.structs.replace(found, status=status, reference="#7", because="waits")


@dataclass
class Script:
    """What a shard still has to send; ``error`` is what its last event says."""

    failures: tuple[tuple[str, str], ...] = ()
    """A kind and a status of each."""
    cases: int = 2
    error: str = ""
    is_ready: bool = True

    def events(self, number: int) -> list[Event | None]:
        """Return the messages of a shard in the order of its life, None at its end."""
        events: list[Event | None] = []
        if self.is_ready:
            events.append(WorkerReady(number, Ready("t", "t", "unified", "simulator")))
            judged = CaseJudged(number, "search", Order(CASE), (Verdict("oracle", ratio=0.5),), 0.01)
            events += [judged] * self.cases
        for index, (kind, status) in enumerate(self.failures if self.is_ready else ()):
            path, found = f"{number}-{index}.json", found_with(kind, status)
            events.append(FailureFound(number, index, found, path, 1.0))
            events.append(FailureChanged(number, index, found, path, done=True))
            events.append(FailureSeenAgain(number, path))
        events += [WorkerLost(number, "died"), Note(number, "a note"), Finished(number, 1.0, self.error), None]
        return events


SCRIPTS: Final = st.builds(
    Script,
    st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(("open", "known", "fixed"))), max_size=2).map(tuple),
    st.integers(0, 3),
    st.sampled_from(("", "", "", "the disk is full")),
    st.sampled_from((True, True, True, True, False)),
)


class Clock:
    """The module ``time`` with a clock that only waiting moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@dataclass
class FakeShard:
    """A shard, and what it still has to send."""

    plan: ShardPlan
    waiting: list[Event | None]
    hangs: bool = False
    """Whether it does not end when it is asked to."""
    silent: bool = False
    asked: bool = False
    ended: str = ""
    sent: list[Event] = field(default_factory=list)


class FakeShards:
    """Shards that do what a list of acts says, and after that what shards ought to do."""

    start_seconds: float = START_SECONDS

    def __init__(self, clock: Clock, scripts: list[Script], acts: list[tuple[Act, int]]) -> None:
        self.clock = clock
        self.scripts = scripts
        self.acts = acts
        self.shards: dict[int, FakeShard] = {}
        self.signal: Callable[[int], None] = lambda number: None
        self.signalled: list[float] = []
        self.waits = 0
        self.sent: list[Event] = []
        self.told: list[Event] = []
        self.news: list[Event] = []
        """What was sent while there was another shard that could learn it."""
        self.was_ended = False

    def start(self, plan: ShardPlan) -> None:
        script = self.scripts[plan.shard % len(self.scripts)]
        self.shards[plan.shard] = FakeShard(plan, script.events(plan.shard))

    @property
    def running(self) -> list[FakeShard]:
        return [shard for shard in self.shards.values() if not shard.ended]

    def events(self, seconds: float) -> Iterator[tuple[int, Event | None]]:
        self.waits += 1
        assert self.waits < MOST_WAITS, "the run has no end"
        act, which = self.acts.pop(0) if self.acts else ("send", self.waits)
        running = self.running
        if not running:
            self.clock.now += seconds
            return
        shard = running[which % len(running)]
        if not self.acts and all(each.silent and not each.asked for each in running) and not self.signalled:
            self._signal()  # a run without a limit goes on until somebody ends it
        yield from self._do(act, shard, seconds)

    def _do(self, act: Act, shard: FakeShard, seconds: float) -> Iterator[tuple[int, Event | None]]:
        number = shard.plan.shard
        self.clock.now += WAITS.get(act, seconds)
        match act:
            case "again" if shard.sent:
                yield number, self._sent(shard, shard.sent[-1])
            case "swap" if len(shard.waiting) > 3:
                shard.waiting[0], shard.waiting[1] = shard.waiting[1], shard.waiting[0]
            case "signal":
                self._signal()
            case "die" | "lose":
                shard.ended = "was lost" if act == "lose" else "died of SIGKILL"
                yield number, None
            case "hang":
                shard.hangs = shard.silent = True
            case "fall silent":
                shard.silent = True
            case "send" if not shard.silent or (shard.asked and not shard.hangs):
                yield from self._next(shard)

    def _signal(self) -> None:
        self.signalled.append(self.clock.now)
        self.signal(signal.SIGTERM)

    def _next(self, shard: FakeShard) -> Iterator[tuple[int, Event | None]]:
        event = shard.waiting.pop(0)
        if event is None:
            shard.ended = "ended its process with status 0"
            yield shard.plan.shard, None
        else:
            yield shard.plan.shard, self._sent(shard, event)

    def _sent(self, shard: FakeShard, event: Event) -> Event:
        shard.sent.append(event)
        self.sent.append(event)
        if isinstance(event, FailureChanged) and event.done and len(self.running) > 1:
            self.news.append(event)
        return event

    def tell(self, *news: Any) -> None:
        self.told.append(news[-1])

    def stop(self, number: int) -> None:
        self.shards[number].asked = True

    def kill(self, number: int) -> None:
        shard = self.shards[number]
        shard.hangs, shard.silent, shard.waiting = False, False, [None]

    def strike(self) -> None:
        for shard in self.running:
            self.kill(shard.plan.shard)

    def unplaced(self) -> Collection[int]:
        return ()

    def forget(self, number: int) -> str:
        return self.shards[number].ended

    def was_lost(self, number: int) -> bool:
        return self.shards[number].ended == "was lost"

    def end(self) -> None:
        self.was_ended = True
        for shard in self.running:
            shard.ended = "was ended"


class Example:
    """One run on fake shards; ``error`` is what it raised."""

    def __init__(
        self, folder: Path, scripts: list[Script], acts: list[tuple[Act, int]], max_time: float | None
    ) -> None:
        self.clock = Clock()
        self.shards = FakeShards(self.clock, scripts, acts)
        self.events: list[Event] = []
        self.error: FuzzAttnError | None = None
        self.max_time = max_time
        self.waited = sum(WAITS.get(act, 0.0) for act, _ in acts)
        """How many seconds the acts let pass."""
        plan = RunPlan(
            Setup("t"), 1, len(scripts), max_time, None, folder / "run", folder / "counterexamples",
            mps=False, compiles_ahead=False,
        )  # fmt: skip
        self.run = FuzzRun(plan, self.events.append, shards=self.shards)
        self.shards.signal = lambda number: self.run._note_signal(number, None)
        with pytest.MonkeyPatch.context() as patched:
            self._patch(patched)
            try:
                self.run.run()
            except FuzzAttnError as error:
                self.error = error

    def _patch(self, patched: pytest.MonkeyPatch) -> None:
        patched.setattr(fuzz_run, "time", self.clock)
        patched.setattr(signal, "signal", lambda *_: signal.SIG_DFL)
        watchdog = getattr(fuzz_run, "Watchdog", None)
        if watchdog is not None:
            clock = self.clock

            class Looking(watchdog):  # type: ignore[misc, valid-type]  # it is not in every version of the engine
                """A watchdog without a thread."""

                def __enter__(self) -> Any:
                    return self

                def beat(self) -> None:
                    self.look(clock.now)

            patched.setattr(fuzz_run, "Watchdog", Looking)

    def check(self) -> None:
        """Check what holds however the shards behave."""
        self._nothing_goes_on()
        if self.error is None:
            self._ends_in_time()
            self._all_arrives()
            self._status()
        else:
            self._has_a_reason_to_raise()

    def _nothing_goes_on(self) -> None:
        assert not self.shards.running
        assert self.shards.was_ended, "what may be left is ended"

    def _ends_in_time(self) -> None:
        if self.shards.signalled:
            allowed = self.shards.signalled[0] + STOP_SECONDS + SLACK + self.waited
            assert self.clock.now <= allowed, "a signal ends the run"
        if self.max_time is not None:
            lives = START_SECONDS + self.max_time + OVERDUE_SECONDS + STOP_SECONDS + SLACK + self.waited
            assert self.clock.now <= 1000.0 + (MOST_LOSSES + 1) * lives

    def _all_arrives(self) -> None:
        """Check that each message is passed on once, in the order in which it came."""
        kinds = (FailureFound, FailureChanged, FailureSeenAgain, CaseJudged)
        arrived = [event for event in self.events if isinstance(event, kinds)]
        assert arrived == [event for event in self.shards.sent if isinstance(event, kinds)]
        last = self.events[-1]
        assert isinstance(last, Finished)
        assert last.shard == WHOLE_RUN
        assert all(event in self.shards.told for event in self.shards.news), "other shards learn of it"

    def _status(self) -> None:
        """Check the exit status as docs/commands.md says."""
        report = self.run.results.report()
        failing = [event for event in self.shards.sent if isinstance(event, FailureFound | FailureChanged)]
        failing = [event for event in failing if event.counterexample.status != "known"]
        assert {failure.path for failure in report.failures} >= {event.path for event in failing}
        assert report.cases == sum(isinstance(event, CaseJudged) for event in self.shards.sent)
        if failing:
            assert report.exit_status == 1
        elif self.shards.signalled:
            assert report.exit_status == 128 + signal.SIGTERM
        else:
            broken = bool(report.errors) or not (report.cases or report.failures)
            assert report.exit_status == (2 if broken else 0)
            assert report.errors or not self._unexplained_deaths(), "a worker that died is an error"

    def _unexplained_deaths(self) -> list[FakeShard]:
        """Return the shards that died without a last event and were not asked to end, and whose work is not done."""
        dead = [shard for shard in self.shards.shards.values() if shard.ended == "died of SIGKILL" and not shard.asked]
        return [shard for shard in dead if not any(isinstance(event, Finished) for event in shard.sent)]

    def _has_a_reason_to_raise(self) -> None:
        """Check that only a worker that was never ready ends the run with an error."""
        silent = [
            shard
            for shard in self.shards.shards.values()
            if not any(isinstance(event, WorkerReady) for event in shard.sent)
        ]
        assert silent


@pytest.mark.parametrize("part", range(max(1, -(-EXAMPLES // TOGETHER))))
def test_a_run_keeps_its_promises(part: int, request: pytest.FixtureRequest) -> None:
    seed = int(request.config.getoption("--hypothesis-seed") or 0) * 10_000 + part

    @hypothesis.seed(seed)
    @settings(max_examples=min(TOGETHER, EXAMPLES))
    @given(
        st.lists(SCRIPTS, min_size=1, max_size=3),
        st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 5)), max_size=40),
        st.sampled_from((None, 60.0)),
    )
    def any_run(scripts: list[Script], acts: list[tuple[Act, int]], max_time: float | None) -> None:
        with tempfile.TemporaryDirectory(prefix="fuzz-attn-runs-") as folder:
            Example(Path(folder), scripts, acts, max_time).check()

    any_run()


def test_a_worker_that_is_ready_late_does_not_undo_a_signal(tmp_path: Path) -> None:
    acts: list[tuple[Act, int]] = [("signal", 0), ("hang", 0), ("again", 0)]
    Example(tmp_path, [Script()], [("send", 0), *acts], max_time=None).check()
