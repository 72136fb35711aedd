"""A run starts shards, passes their events on, and ends them in every case. Most shards here are scripts."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuzz_attn.backends import gpus
from fuzz_attn.engine import fuzz_run, shards
from fuzz_attn.engine.events import (
    WHOLE_RUN,
    CaseJudged,
    Event,
    FailureFound,
    Finished,
    Part,
    Started,
    WorkerReady,
    time_to_fuzz,
)
from fuzz_attn.engine.fuzz_run import FuzzRun, run_and_log
from fuzz_attn.engine.listeners.event_log import LOG_NAME, EventLog, StatisticsLine, read_log, report_of
from fuzz_attn.engine.listeners.statistics import Novelty
from fuzz_attn.engine.orders import Setup
from fuzz_attn.engine.run_plan import RunPlan, shard_plans
from fuzz_attn.engine.shards import NEWS_NAME
from fuzz_attn.errors import FuzzAttnError, OutputError
from fuzz_attn.workers.fork_server import VARIABLE

SHARD = """
import os, signal, sys, time
from multiprocessing.connection import Connection
import msgspec
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.counterexamples import signed
from fuzz_attn.engine.events import *
from fuzz_attn.case.parts import Sequence
from fuzz_attn.engine.orders import Order, Ready
from fuzz_attn.engine.run_plan import ShardPlan
from fuzz_attn.oracle.verdict import Verdict

connection = Connection(int(sys.argv[-1]))
plan = msgspec.json.decode(connection.recv_bytes(), type=ShardPlan)
number = plan.shard
case = AttentionCase(sequences=(Sequence(1, 3),))
found = signed("t", "unified", None, case, Verdict("oracle", "nan", "wrong"))

def send(event):
    connection.send_bytes(msgspec.json.encode(event))

def ready():
    send(WorkerReady(number, Ready("t", "t", "unified", "simulator")))

def judge(count):
    for _ in range(count):
        send(CaseJudged(number, "search", Order(case), (Verdict("oracle", ratio=0.5),), 0.01))

"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FuzzRun]:
    """Return a function that makes a run whose shards execute a script."""

    def made(script: str, *listeners: Callable[[Event], None], **changes: Any) -> FuzzRun:
        (tmp_path / "scripted_shard.py").write_text(SHARD + script)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(shards, "COMMAND", (sys.executable, "-P", "-m", "scripted_shard"))  # a fork, as shards are
        return FuzzRun(plan_in(tmp_path, **changes), *listeners)

    return made


def plan_in(folder: Path, **changes: Any) -> RunPlan:
    fields: dict[str, Any] = {
        "setup": Setup("t"),
        "seed": 1,
        "workers": 2,
        "max_time": None,
        "max_cases": None,
        "run_folder": folder / "run",
        "counterexamples": folder / "counterexamples",
    }
    return RunPlan(**(fields | changes))


Run = Callable[..., FuzzRun]

SLEEP_SECONDS = 600
"""How long a shard sleeps that must be ended before."""


def test_each_gpu_is_checked_by_the_first_of_its_workers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a large run, too, uses all GPUs of its machine, although its shards have every other number."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    script = """ready()
send(Note(number, f"{plan.worker} {os.environ['CUDA_VISIBLE_DEVICES']} {plan.setup.checks_device}"))
send(Finished(number, 1.0))"""
    results = run(script, workers=5, part=Part(2, 2), mps=False, compiles_ahead=False).run()
    assert sorted(results.report().notes) == ["0 4 True", "1 6 True", "2 4 False", "3 6 False", "4 4 False"]


@pytest.mark.parametrize("visible", [None, "", "3"])
def test_one_worker_checks_a_machine_with_one_gpu_or_none(
    visible: str | None, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(shards, "visible_gpus", partial(gpus.visible_gpus, devices=tmp_path))  # which has none
    script = "ready(); send(Note(number, f'{number} {plan.setup.checks_device}')); send(Finished(number, 1.0))"
    results = run(script, mps=False, compiles_ahead=False).run()
    assert sorted(results.report().notes) == ["0 True", "1 False"]


def test_events_of_all_shards_reach_listeners(run: Run, tmp_path: Path) -> None:
    events: list[Event] = []
    with EventLog(tmp_path / LOG_NAME) as log:
        results = run("ready(); judge(5 + number); send(Finished(number, 2.0 + number))", events.append, log).run()
    assert results.statistics.cases == 11
    assert results.statistics.seconds == 3.0
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished)
    assert events[-1].shard == WHOLE_RUN
    assert sum(isinstance(event, CaseJudged) for event in events) == 11
    lines = list(read_log(tmp_path / LOG_NAME))
    assert not any(isinstance(line, CaseJudged) for line in lines), "the log has no line for a passing case"
    assert sum(isinstance(line, StatisticsLine) for line in lines) == 1
    logged = report_of(tmp_path / LOG_NAME)
    assert (logged.statistics.cases, logged.statistics.features) == (11, results.statistics.features)
    assert logged.ok


def test_a_failure_of_one_shard_is_news_for_the_others(run: Run, tmp_path: Path) -> None:
    """The beginning and the end of a failure are news, and the file of news is gone with the run."""
    script = """
from pathlib import Path
from fuzz_attn.engine.shards import NEWS_NAME, NewsReader
ready()
if number == 0:
    send(FailureFound(0, 0, found, "a.json", 1.5))
    send(FailureChanged(0, 0, found, "a.json"))
    send(FailureChanged(0, 1, found, "b.json", done=True, same_as="a.json"))
    send(FailureChanged(0, 0, found, "b.json", done=True))
else:
    read = NewsReader(Path(plan.run_folder) / NEWS_NAME)
    told = []
    while not (told and isinstance(told[-1], FailureChanged) and not told[-1].same_as):
        told += read()
        time.sleep(0.02)
    if [type(each) for each in told] == [FailureFound, FailureChanged, FailureChanged]:
        send(FailureSeenAgain(1, told[-1].path))
send(Finished(number, 1.0))
"""
    report = run(script).run().report()
    (failure,) = report.failures
    assert (failure.path, failure.first_seen, failure.cases, failure.done) == ("b.json", 1.5, 3, True)
    assert (report.ok, report.exit_status, report.errors) == (False, 1, ())
    assert not (tmp_path / "run" / NEWS_NAME).exists()


def test_shards_that_never_read_do_not_stop_the_run(run: Run) -> None:
    """Messages to them filled their connections, so that the run waited for them for ever."""
    script = """
ready()
for each in range(300):
    send(FailureChanged(number, each, signed("t", "unified", None, case, Verdict("oracle", "nan", "x" * 5000)),
        f"{number}-{each}.json", done=True))
send(Finished(number, 1.0))
"""
    report = run(script).run().report()
    assert len(report.failures) == 600


def test_two_failures_with_one_file_are_one(run: Run) -> None:
    script = "ready(); send(FailureFound(number, 0, found, 'a.json', 1.0 + number)); send(Finished(number, 3.0))"
    (failure,) = run(script).run().failures
    assert (failure.first_seen, failure.cases) == (1.0, 2)


def test_a_failure_that_proves_to_be_another_is_counted_with_it(run: Run) -> None:
    script = """
ready()
send(FailureFound(0, 0, found, "a.json", 1.0))
send(FailureFound(0, 1, found, "b.json", 2.0))
send(FailureSeenAgain(0, "b.json"))
send(FailureChanged(0, 1, found, "b.json", done=True, same_as="a.json"))
send(FailureSeenAgain(0, "b.json"))
send(Finished(0, 3.0))
"""
    (failure,) = run(script, workers=1).run().failures
    assert (failure.path, failure.cases) == ("a.json", 4)


def test_an_error_before_the_worker_is_ready_ends_the_run(run: Run) -> None:
    one_waits = f"send(Finished(0, 1.0, 'no such target')) if number == 0 else time.sleep({SLEEP_SECONDS})"
    started = time.monotonic()
    with pytest.raises(FuzzAttnError, match=r"^no such target$"):
        run(one_waits).run()
    assert time.monotonic() - started < SLEEP_SECONDS


def test_the_death_of_a_shard_does_not_end_the_others(run: Run) -> None:
    script = "ready(); judge(3); number or os.kill(os.getpid(), signal.SIGKILL); send(Finished(number, 1.0))"
    report = run(script).run().report()
    assert report.cases == 6
    assert report.errors == ("the process of worker 0 died of SIGKILL",)
    assert report.exit_status == 2


@pytest.mark.parametrize(
    ("number", "words", "errors"),
    [(signal.SIGINT, "interrupted", ()), (signal.SIGTERM, "the disk is gone", ("the disk is gone",))],
)
def test_a_signal_stops_the_shards_and_keeps_the_results(
    number: signal.Signals, words: str, errors: tuple[str, ...], run: Run
) -> None:
    script = (
        f"words = {words!r}"
        """
def end(*_):
    send(FailureFound(number, 0, found, f"{number}.json", 1.0))
    send(Finished(number, 1.0, words))
    os._exit(0)
signal.signal(signal.SIGTERM, end)
ready()
time.sleep(600)
"""
    )
    ready: list[Event] = []

    def interrupt(event: Event) -> None:
        ready.extend([event] * isinstance(event, WorkerReady))
        if len(ready) == 2:
            ready.clear()
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    report = run(script, interrupt).run().report()
    assert signal.getsignal(number) is before
    assert (len(report.failures), report.stopped_by, report.errors) == (2, number, errors)


def test_a_shard_that_ignores_the_signal_is_killed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_run, "STOP_SECONDS", 0.5)
    script = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); ready(); time.sleep({SLEEP_SECONDS})"

    def interrupt(event: Event) -> None:
        if isinstance(event, WorkerReady):
            os.kill(os.getpid(), signal.SIGTERM)

    started = time.monotonic()
    assert run(script, interrupt, workers=1).run().stopped_by == signal.SIGTERM
    assert time.monotonic() - started < SLEEP_SECONDS


def test_nothing_judged_is_not_ok(run: Run) -> None:
    report = run("ready(); send(Finished(number, 1.0))").run().report()
    assert (report.ok, report.exit_status) == (False, 2)
    assert report.reason == "no case was judged: the run ended before the first launch did"


def test_refused_cases_are_counted_and_named(run: Run) -> None:
    script = """
ready()
refusal = msgspec.convert({"stage": "host", "error": "ValueError", "message": "no window"}, Refusal)
for _ in range(3):
    send(CaseRefused(number, "search", Order(case), refusal))
send(Finished(number, 1.0))
"""
    report = run("from fuzz_attn.engine.orders import Refusal\n" + script).run().report()
    assert [refused.cases for refused in report.refusals] == [6]
    assert report.reason == "no case was judged: t refused all 6; most with ValueError: no window"
    assert report.exit_status == 2


def test_shards_share_the_cases(tmp_path: Path) -> None:
    plans = list(shard_plans(plan_in(tmp_path, workers=4, max_cases=3)))
    assert [(plan.shard, plan.max_cases) for plan in plans] == [(0, 1), (1, 1), (2, 1)]


def test_the_worker_that_plays_saved_files_knows_which_are_from_before_the_run(tmp_path: Path) -> None:
    plan = plan_in(tmp_path, workers=3)
    plan.counterexamples.joinpath("t").mkdir(parents=True)
    plan.counterexamples.joinpath("t", "a.json").touch()
    assert [plan.saved for plan in shard_plans(plan)] == [frozenset(("t/a.json",)), None, None]


def test_an_impossible_folder_is_one_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"file/run: cannot be made: "):
        run("", run_folder=tmp_path / "file" / "run").run()
    with pytest.raises(OutputError, match=r"cannot be made: .*file is no folder"):
        run("", counterexamples=tmp_path / "file" / "counterexamples").run()


def test_a_log_that_cannot_be_written_does_not_end_the_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    one = run("ready(); judge(3); send(Finished(number, 1.0))")
    monkeypatch.setattr(fuzz_run, "LOG_NAME", "/dev/full")
    report = run_and_log(one.plan)
    assert report.cases == 6
    assert report.errors == ("/dev/full: cannot be written: No space left on device",)
    assert report.exit_status == 2


def test_a_log_that_is_cut_off_can_be_read(tmp_path: Path) -> None:
    whole = msgspec.json.encode(Started("t", 1, 1, 0.0)) + b"\n"
    (tmp_path / LOG_NAME).write_bytes(whole + whole[:20])
    assert list(read_log(tmp_path / LOG_NAME)) == [Started("t", 1, 1, 0.0)]


A_HANG = 1800.0
"""Seconds after which a wait counts as a hang, on the slowest machine."""

VERIFYING = """
import sys
import fuzz_attn

fuzz_attn.verify(sys.argv[1], max_time=300, workers=2, out=sys.argv[2])
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_end_of_the_parent_ends_everything_and_keeps_the_failure(
    number: signal.Signals, spec: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    process = subprocess.Popen([sys.executable, "-c", VERIFYING, spec("slower_and_wrong"), str(tmp_path)])
    wait_for(lambda: any("failure_found" in path.read_text() for path in tmp_path.rglob(LOG_NAME)))
    wait_for(lambda: len(descendants(process.pid)) >= 5)  # the fork server, and two shards with a worker each
    below = descendants(process.pid)
    process.send_signal(number)
    assert process.wait(A_HANG) == -number
    wait_for(lambda: not any(is_running(pid) for pid in below))
    assert list((tmp_path / "counterexamples").rglob("*.json"))


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + A_HANG
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.1)


def descendants(pid: int) -> list[int]:
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return children + [below for child in children for below in descendants(child)]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_report_of_a_failure_that_was_not_saved(run: Run) -> None:
    script = "ready(); send(FailureFound(number, 0, found, '', 1.0)); send(Finished(number, 3.0, 'the disk is full'))"
    report = run(script, workers=1).run().report()
    assert (len(report.failures), report.exit_status, report.errors) == (1, 2, ("the disk is full",))


Clock = Callable[[Callable[[], float]], None]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return a function that sets the clock by which runs see how long nothing was new."""
    return lambda now: monkeypatch.setattr(fuzz_run, "Novelty", lambda: Novelty(now))


def test_a_run_ends_when_nothing_is_new(run: Run, clock: Clock) -> None:
    judged: list[Event] = []
    clock(lambda: 3.0 * (len(judged) == 10))
    count = partial(_keep, CaseJudged, judged)
    report = run("ready(); judge(5); time.sleep(120)", count, until_flat=2.0).run().report()
    assert (report.cases, report.exit_status, report.errors) == (10, 0, ())
    assert report.notes == ("the run ended because nothing was new for 2 s",)


def test_a_run_goes_on_while_anything_is_new(run: Run, clock: Clock) -> None:
    found: list[Event] = []
    clock(lambda: 2.0 * len(found))
    script = """
ready()
for _ in range(4):
    time.sleep(0.5)
    kind = ("nan", "inf", "mismatch", "crash")[_]
    send(FailureFound(number, _, signed("t", "unified", None, case, Verdict("oracle", kind, "wrong")), f"{_}.json"))
send(Finished(number, 4.0))
"""
    report = run(script, partial(_keep, FailureFound, found), until_flat=3.0, workers=1).run().report()
    assert len(report.failures) == 4
    assert report.notes == ()


def _keep(kind: type[CaseJudged | FailureFound], kept: list[Event], event: Event) -> None:
    """Keep an event of a kind."""
    kept.extend([event] * isinstance(event, kind))


BLOCKED = """
import os, sys, time
from pathlib import Path
from fuzz_attn.engine.events import WorkerReady
from fuzz_attn.engine.orders import Setup
from fuzz_attn.engine import shards
from fuzz_attn.engine.fuzz_run import FuzzRun
from fuzz_attn.engine.run_plan import RunPlan

folder = Path(sys.argv[1])

def block(event):
    if isinstance(event, WorkerReady):
        (folder / f"ready-{event.shard}").touch()
        while True:
            time.sleep(600)

shards.COMMAND = (sys.executable, "-c", (folder / "shard.py").read_text())
plan = RunPlan(Setup("t"), 1, 2, None, None, folder / "run", folder / "counterexamples")
FuzzRun(plan, block).run()
"""


def test_a_second_signal_kills_the_workers_of_a_run_that_is_blocked_and_a_third_the_run(tmp_path: Path) -> None:
    """As in a run whose output nobody reads: its loop does not come round, so the handler itself has to do it."""
    shard = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    shard += f"from pathlib import Path; Path({str(tmp_path)!r}, f'pid-{{number}}').write_text(str(os.getpid()))\n"
    (tmp_path / "shard.py").write_text(SHARD + shard + f"ready(); time.sleep({SLEEP_SECONDS})")
    process = subprocess.Popen([sys.executable, "-c", BLOCKED, str(tmp_path)])
    try:
        wait_for(lambda: len(list(tmp_path.glob("pid-*"))) == 2 and any(tmp_path.glob("ready-*")))
        pids = [int(path.read_text()) for path in tmp_path.glob("pid-*")]
        for number in (signal.SIGTERM, signal.SIGINT):
            assert all(map(is_running, pids))
            process.send_signal(number)
            time.sleep(0.5)  # signals that come at once may be one
        wait_for(lambda: not any(map(is_running, pids)))
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(A_HANG) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()


def test_a_machine_that_allows_no_process_is_one_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    one = run("")
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(subprocess, "Popen", refused)
    with pytest.raises(FuzzAttnError, match=r"^a worker process cannot be started: .*temporarily unavailable$"):
        one.run()


@pytest.mark.parametrize(("starting", "left"), [(0.0, 40.0), (4.0, 36.0), (10.0, 30.0), (60.0, 30.0), (-5.0, 40.0)])
def test_starting_counts_up_to_a_quarter_of_the_time(starting: float, left: float) -> None:
    assert time_to_fuzz(40.0, starting) == left
