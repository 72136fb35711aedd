"""What the state machine of campaigns is made of: a target, a worker, a clock and a disk that are made up, and shards.

Each shard is a real :class:`Campaign` in a thread of its own. Only one thread runs at a time, so an example is the same
each time.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final, Literal, Self

import msgspec
from hypothesis import strategies as st

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import HeadLayout
from fuzz_attn.case.parts import Sequence as Tokens
from fuzz_attn.engine.campaign import Campaign, Plan, launch_limit
from fuzz_attn.engine.events import (
    WHOLE_RUN,
    CaseJudged,
    Event,
    FailureChanged,
    FailureFound,
    Finished,
)
from fuzz_attn.engine.isolated_worker import IsolatedWorker, Wait
from fuzz_attn.engine.listeners.results import Results, RunReport, one_for_each_bug
from fuzz_attn.engine.orders import Answer, Order, Ready, Setup
from fuzz_attn.errors import BudgetSpentInterrupt, OutOfTimeError
from fuzz_attn.oracle.verdict import Refusal, Verdict

MOST_JUDGED: Final = 30_000
"""A single step of the machine may lead to so many launches: more is a loop without end."""
A_HANG: Final = 600.0
"""Seconds of the real clock after which a step counts as a hang, on the slowest machine."""

DOMAIN: Final = Domain(paths=("auto", "2d", "3d"), tile_hint=True)
READY: Final = Ready("fake", "fake", "unified", "simulator", domain=DOMAIN, sanitizers=True)
GPU: Final = Ready("fake", "fake", "unified", "cuda", domain=DOMAIN)
"""A worker whose failures another one explains. It draws as on a CPU."""
SHOWS: Final[dict[str, Callable[[AttentionCase], bool]]] = {
    "window": lambda case: case.window > 0,
    "softcap": lambda case: case.softcap > 0,
    "long": lambda case: case.max_seq_len > 16,
    "two": lambda case: len(case.sequences) > 1,
    "heads": lambda case: case.heads.num_kv_heads > 1,
}
FEATURES: Final = tuple(SHOWS)


def case_with(features: Iterable[str]) -> AttentionCase:
    """Return a case that has these features only."""
    has = frozenset(features)
    sequence = Tokens(2, 22) if "long" in has else Tokens(2, 3)
    return AttentionCase(
        (sequence, Tokens(1, 2)) if "two" in has else (sequence,),
        heads=HeadLayout(num_kv_heads=2 if "heads" in has else 1),
        window=3 if "window" in has else 0,
        softcap=2.0 if "softcap" in has else 0.0,
    )


CASES: Final = {"+".join(chosen): case_with(chosen) for count in range(6) for chosen in combinations(FEATURES, count)}
"""All cases of these features, by their names."""

NONSENSE: Final = {"empty": b"", "of-an-older-version": b'{"schema": 1}', "deep": b"[" * 2000, "binary": b"\xff\xfe"}

Behaviour = Literal["always", "flaky", "after", "recovers", "late"]
Where = Literal["both", "here", "there"]
KINDS: Final = ("mismatch", "unwritten", "out_of_bounds", "exception", "crash", "timeout")
KILLED: Final = "died of SIGKILL"
ALONE: Final = ("crash", "timeout", "exception")
"""What leaves nothing else to judge, the first one first."""


@dataclass(frozen=True)
class Bug:
    """A defect of the target: how it fails, on which cases, and when.

    ``flaky``: in each ``every``-th launch. ``after``: once its process has judged a case with two sequences.
    ``recovers``: in the first 10 * ``every`` launches. ``late``: from then on. ``where`` says on which backend, the one
    that finds or the one that explains, if there are two.
    """

    kind: str
    needs: frozenset[str]
    behaviour: Behaviour
    every: int
    line: int
    where: Where = "both"

    def verdict(self, seconds: float) -> Verdict:
        """Return what the worker says of a case that shows the bug; a hang was waited for."""
        site = f"/kernel.py:{self.line + (100 if self.kind == 'exception' else 0)}"
        match self.kind:
            case "mismatch":
                return Verdict("oracle", "mismatch", "wrong", ratio=7.0)
            case "unwritten":
                return Verdict("oracle", "unwritten", "1 of 16 elements wrong")
            case "out_of_bounds":
                return Verdict("sanitizers", "out_of_bounds", "loads", site=site)
            case "exception":
                return Verdict("oracle", "exception", "the target raised ValueError: no", site=site)
            case "timeout":
                return Verdict("oracle", "timeout", f"the launch did not end within {seconds:.0f} s")
        return Verdict("oracle", "crash", "died of SIGSEGV")

    def shown_by(self, case: AttentionCase) -> bool:
        """Return whether a case can show the bug."""
        return all(SHOWS[name](case) for name in self.needs)


BUGS: Final = st.builds(
    Bug,
    st.sampled_from(KINDS),
    st.frozensets(st.sampled_from(FEATURES), max_size=2),
    st.sampled_from(("always", "always", "always", "flaky", "after", "recovers", "late")),
    st.integers(2, 4),
    st.sampled_from((10, 20)),
    st.sampled_from(("both", "both", "here", "there")),
)


def class_in(verdict: Verdict) -> str:
    """Return what went wrong, and where that is told: what makes two failures two."""
    if verdict.site:
        return f"{verdict.kind} {verdict.site}"
    return verdict.kind


def was_killed(event: CaseJudged) -> bool:
    """Return whether something outside killed the worker, so that the case is judged again."""
    return event.verdicts[0].message == KILLED


class Endless(BaseException):
    """A step of the machine led to more launches than any may."""


class Clock:
    """The module ``time`` with a clock that only launches move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class Disk:
    """Lets writes of files below a folder fail: none at first, then ``fails`` of them after ``good`` more."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.good = self.fails = self.failed = 0

    def guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of a path that may fail."""

        def call(path: Path, *arguments: Any, **named: Any) -> Any:
            if Path(path).is_relative_to(self.folder):
                self._spend()
            return function(path, *arguments, **named)

        return call

    def _spend(self) -> None:
        if self.good:
            self.good -= 1
        elif self.fails:
            self.fails -= 1
            self.failed += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class World:
    """The target and the machine that it runs on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.saved = folder / "saved" / "fake"
        self.explained = False
        """Whether another backend explains what one finds."""
        self.clock = Clock()
        self.disk, self.journals = Disk(folder / "saved"), Disk(folder / "run")
        self.bugs: list[Bug] = []
        self.ever: set[str] = set()
        """The classes of all failures that there can be."""
        self.launches: Counter[Bug] = Counter()
        self.refuses: str | None = None
        self.kills = 0
        """How many launches from now something outside kills the worker; 0 for never."""
        self.killed = 0
        """How often it did in the current run."""
        self.judged = 0

    def add(self, bug: Bug) -> None:
        """Give the target another bug."""
        self.bugs.append(bug)
        self.ever.add(class_in(bug.verdict(1.0)))

    @property
    def steady(self) -> bool:
        """Whether each case fails in the same way whenever a process has judged the same ones before."""
        return all(bug.behaviour in ("always", "after") for bug in self.bugs)

    def failing(self, case: AttentionCase, before: Sequence[Order], *, there: bool) -> list[Bug]:
        """Return the bugs that a launch shows; of those after which nothing can be judged the first one only."""
        absent = ("here" if there else "there") if self.explained else ""
        bugs = [bug for bug in self.bugs if bug.where != absent]
        shown = [bug for bug in bugs if bug.shown_by(case) and self._happens(bug, before)]
        for kind in ALONE:
            if kinds := [bug for bug in shown if bug.kind == kind]:
                return kinds[:1]
        return shown

    def _happens(self, bug: Bug, before: Sequence[Order]) -> bool:
        self.launches[bug] += 1
        count = self.launches[bug]
        match bug.behaviour:
            case "flaky":
                return count % bug.every == 1
            case "after":
                return any(SHOWS["two"](order.case) for order in before)
            case "recovers":
                return count <= 10 * bug.every
            case "late":
                return count > 10 * bug.every
        return True


class FakeWorker(IsolatedWorker):
    """A worker without a process. ``judged`` are the orders of the process that it would have.

    ``there`` it is the one that explains.
    """

    def __init__(
        self, setup: Setup, world: World, interrupted: Callable[[], None] = lambda: None, *, there: bool = False
    ) -> None:
        super().__init__(setup, launch_seconds=launch_limit(60.0))
        self.ready = GPU if world.explained and not there else READY
        self.there = there
        self.world = world
        self.interrupted = interrupted
        self.judged: list[Order] = []
        self.answers: list[tuple[Order, Answer]] = []

    def __enter__(self) -> Self:
        return self

    def renew(self) -> None:
        self.judged.clear()

    def judge(self, order: Order, *, deadline: float | None = None, wait: Wait = "full", **_: Any) -> Answer:
        self.world.judged += 1
        if self.world.judged > MOST_JUDGED:
            raise Endless
        try:
            self.interrupted()
        except KeyboardInterrupt:
            self.judged.clear()
            raise
        if order.digest:
            return Answer(digest=f"{hash(order.case) & 0xFFFF:016x}")
        if order.probes:
            return Answer(refusals=tuple(self._refusal(case) for case in order.probes))
        self._spend(0.05, deadline)
        answer = self._answer(order, deadline, wait)
        self.answers.append((msgspec.structs.replace(order, compiled=False), answer))
        return answer

    def _spend(self, seconds: float, deadline: float | None) -> None:
        clock = self.world.clock
        if deadline is not None and clock.now + seconds > deadline:
            clock.now = max(clock.now, deadline)
            self.judged.clear()
            raise OutOfTimeError
        clock.now += seconds

    def _refusal(self, case: AttentionCase) -> Refusal | None:
        refuses = self.world.refuses is not None and SHOWS[self.world.refuses](case)
        return Refusal("host", "ValueError", "no") if refuses else None

    def _answer(self, order: Order, deadline: float | None, wait: Wait) -> Answer:
        if refusal := self._refusal(order.case):
            self.judged.append(order)
            return Answer(refusal=refusal)
        if self.world.kills:
            self.world.kills -= 1
            if not self.world.kills:
                self.world.killed += 1
                return self._ended(Answer(Verdict("oracle", "crash", KILLED), killed=True))
        shown = self.world.failing(order.case, self.judged, there=self.there)
        if not shown:
            self.judged.append(order)
            return Answer(Verdict("oracle", ratio=0.5))
        if shown[0].kind == "timeout":
            return self._hung(shown[0], order, deadline, wait)
        verdicts = {class_in(bug.verdict(0.0)): bug.verdict(0.0) for bug in shown}
        first, *others = sorted(verdicts.values(), key=lambda verdict: verdict.property_name != "sanitizers")
        answer = Answer(first, tuple(others))
        self.judged.append(order)
        return self._ended(answer) if shown[0].kind == "crash" else answer

    def _ended(self, answer: Answer) -> Answer:
        self.deaths += 1
        self.judged.clear()
        return answer

    def _hung(self, bug: Bug, order: Order, deadline: float | None, wait: Wait) -> Answer:
        """Return what a worker says after a wait; after a short one it may try again in a new process."""
        short = wait != "full" and order.only_judges
        self._spend(3.0 if short else self.launch_seconds, deadline)
        self.judged.clear()
        if wait != "short, then full" or not order.only_judges:
            return Answer(bug.verdict(3.0 if short else self.launch_seconds))
        again = self._answer(order, deadline, "full")
        return msgspec.structs.replace(again, fresh=again.verdict.kind == "timeout", earlier=bug.verdict(3.0))


Mode = Literal["prompt", "held", "twice", "reversed"]


class Shard:
    """A campaign in a thread, which judges a case when it is told to; ``error`` is what it ended with."""

    def __init__(self, world: World, run: Run, plan: Plan) -> None:
        self.number = plan.shard
        self.run = run
        self.events: list[Event] = []
        self.mail: list[FailureFound | FailureChanged] = []
        self.mode: Mode = "prompt"
        self.interrupt_judge = self.interrupt_emit = 0
        self.interrupted_at: int | None = None
        self.after_interrupt = 0
        self.error: BaseException | None = None
        self.worker = FakeWorker(plan.setup, world, self._judging)
        there = Setup("fake", backend="simulator")
        self.explaining = FakeWorker(there, world, self._judging, there=True) if world.explained else None
        self.campaign = Campaign(plan, self._emit, self.worker, self._news, self.explaining)
        self._command: tuple[AttentionCase, bool] | None = None
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._play, daemon=True)
        self.is_running = False
        """Whether the campaign has begun and not ended. Its thread may live a moment longer."""

    @property
    def is_interrupted(self) -> bool:
        """Whether an interrupt has reached the campaign."""
        return self.interrupted_at is not None

    def start(self) -> None:
        """Begin the campaign, and return when it asks for its first case."""
        self.is_running = True
        self.thread.start()
        self._wait()

    def try_case(self, case: AttentionCase, *, may_skip: bool) -> None:
        """Let the campaign judge a case that it has drawn, and return when it asks for the next one."""
        self._command = case, may_skip
        self._go.release()
        self._wait()

    def stop(self) -> None:
        """End the campaign as at the end of its budget."""
        self._command = None
        self._go.release()
        self._wait()
        self.thread.join(A_HANG)

    def _wait(self) -> None:
        assert self._back.acquire(timeout=A_HANG), "the campaign hangs"

    def _play(self) -> None:
        self.run.of_thread[threading.get_ident()] = self
        try:
            self.campaign.run()
        except BaseException as error:  # noqa: BLE001 - which ones there may be is what is checked
            self.error = error
        finally:
            self.is_running = False
            self._back.release()

    def feed(self, count: int, attempt: Callable[..., None], skips: Callable[..., bool] | None) -> None:
        """Try cases of a round as they are commanded."""
        for _ in range(count):
            self._back.release()
            assert self._go.acquire(timeout=A_HANG)
            if self._command is None:
                raise BudgetSpentInterrupt
            case, may_skip = self._command
            if not (may_skip and skips is not None and skips(case, None)):
                attempt(case, None)

    def _judging(self) -> None:
        self.after_interrupt += self.is_interrupted
        self.interrupt_judge -= bool(self.interrupt_judge)
        if not self.interrupt_judge and self.run.stopping and not self.is_interrupted and not self.interrupt_emit:
            self._interrupt()

    def _emit(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Finished):
            event = msgspec.structs.replace(event, error="" if self.run.stopping else event.error)
        self.run.receive(self.number, event)
        if self.interrupt_emit:
            self.interrupt_emit -= 1
            if not self.interrupt_emit and not self.is_interrupted:
                self._interrupt()

    def _interrupt(self) -> None:
        self.interrupted_at = len(self.events)
        raise KeyboardInterrupt("interrupted")

    def _news(self) -> Sequence[FailureFound | FailureChanged]:
        if self.mode == "held":
            return ()
        news, self.mail = self.mail, []
        return news + news if self.mode == "twice" else news[::-1] if self.mode == "reversed" else news


class Run:
    """The shards of one run over a folder, and what arrives at their parent."""

    def __init__(self, world: World, shards: int, max_time: float | None) -> None:
        self.world = world
        self.results = Results()
        self.events: list[tuple[int, Event]] = []
        self.stopping = False
        self.of_thread: dict[int, Shard] = {}
        self.before = {path: path.read_bytes() for path in files_below(world.saved)}
        self.changed_target = False
        world.disk.failed = world.journals.failed = world.killed = 0
        folders = world.folder / "run", world.folder / "saved"
        saved = frozenset(str(path.relative_to(folders[1])) for path in self.before)
        plans = [
            Plan(Setup("fake"), number, shards, 1, max_time, None, *folders, saved=saved) for number in range(shards)
        ]
        self.shards = [Shard(world, self, plan) for plan in plans]

    def receive(self, number: int, event: Event) -> None:
        """Pass an event to the results and, if it is about a failure, to the other shards."""
        self.events.append((number, event))
        self.results(event)
        if isinstance(event, FailureFound | FailureChanged):
            for shard in self.shards:
                if shard.number != number:
                    shard.mail.append(event)

    @property
    def running(self) -> list[Shard]:
        """The shards that have not ended."""
        return [shard for shard in self.shards if shard.is_running]

    def play_round(
        self, domain: Domain, seed: int, count: int, attempt: Callable[..., None], *others: Any, **named: Any
    ) -> None:
        """Stand for :func:`fuzz_attn.engine.schedule.play_round` in the thread of a shard."""
        skips = next((other for other in others if getattr(other, "__name__", "") == "_skips"), None)
        self.of_thread[threading.get_ident()].feed(count, attempt, skips)

    def end(self) -> RunReport:
        """End all shards and return the report, as the parent does."""
        for shard in self.running:
            shard.stop()
        self.receive(WHOLE_RUN, Finished(WHOLE_RUN, 1.0, stopped_by=15 if self.stopping else 0))
        return one_for_each_bug(self.results.report())


def files_below(folder: Path) -> list[Path]:
    """Return the counterexamples in a folder."""
    return sorted(folder.glob("*.json"))
