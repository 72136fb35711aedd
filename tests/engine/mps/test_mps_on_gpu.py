"""Workers share a GPU through MPS: what one of them breaks is its own failure, once, and the others go on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzz_attn.backends.gpus import (
    FOLDER,
    PROGRAM,
    SHARE,
    Control,
    control_of,
    multi_process_service,
    pipes_of,
    visible_gpus,
)
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import DTypes, Sequence
from fuzz_attn.case.recipes import SinkRecipe
from fuzz_attn.engine.events import CaseJudged, Event, FailureFound
from fuzz_attn.engine.fuzz_run import run_and_log
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.listeners.results import RunReport
from fuzz_attn.engine.orders import Answer, Order, Setup
from fuzz_attn.engine.run_plan import RunPlan, stage_plan
from fuzz_attn.engine.schedule import ON_GPU, play_round
from fuzz_attn.operations.attention.drawing import shared_round
from fuzz_attn.operations.calls.call_case import calls_of

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or shutil.which(PROGRAM) is None, reason="needs a GPU and nvidia-cuda-mps-control"
)

ROOT = Path(__file__).parents[3]
SINKS = AttentionCase(sequences=(Sequence(1, 3),), sinks=SinkRecipe(), dtypes=DTypes("float16", "float16", "float16"))
WORKERS = 4
LAUNCH_SECONDS = 10.0
"""A launch takes milliseconds, and the one that hangs hundreds of seconds."""
A_HANG = 600.0
TARGETS = pytest.mark.parametrize(
    ("target", "kind", "words"),
    [
        ("faults_with_sinks", "crash", "broke the device for its process; it last printed:"),
        ("exits_with_sinks", "crash", "ended its process with status 3"),
        ("hangs_with_sinks", "timeout", "the launch did not end within "),
    ],
)


def spec_of(name: str) -> str:
    return f"{ROOT / 'tests' / 'sample_targets' / 'on_gpu.py'}:{name}"


def harmless(seed: int) -> list[Order]:
    """Return drawn orders without sinks."""
    orders: list[Order] = []
    play_round(Domain().in_memory(), seed, 60, lambda case, relation: orders.append(Order(case)), ON_GPU)
    return [order for order in orders if order.case.sinks is None][:20]


@contextmanager
def service() -> Iterator[None]:
    """Share the GPU, and print the end of the service's logs, which a failing test shows."""
    with multi_process_service("cuda") as started:
        sentence = started()
        assert sentence.startswith(SHARE), sentence
        try:
            yield
        finally:
            for log in sorted(Path(os.environ[FOLDER]).glob("log-*/*")):
                print(log.name, log.read_text(errors="replace")[-3000:], sep="\n")


@TARGETS
def test_what_one_worker_breaks_fails_once_and_the_others_go_on(target: str, kind: str, words: str) -> None:
    over = threading.Event()
    started = threading.Barrier(WORKERS)

    def judge(number: int) -> list[Answer]:
        with IsolatedWorker(Setup(spec_of(target), "unified", "cuda"), index=number) as worker:
            orders = harmless(number)
            answers = [worker.judge(order) for order in orders]  # which compiles
            worker.launch_seconds = LAUNCH_SECONDS
            started.wait(A_HANG)
            if number:
                others = cycle(orders)
                while not over.is_set():
                    answers.append(worker.judge(next(others)))
            else:
                try:
                    answers += [worker.judge(Order(SINKS)), *(worker.judge(order) for order in orders)]
                finally:
                    over.set()
            answers += [worker.judge(order) for order in orders]
        return answers

    with service(), ThreadPoolExecutor(WORKERS) as pool:
        answers = list(pool.map(judge, range(WORKERS)))
    failed = [(number, answer.verdict) for number, each in enumerate(answers) for answer in each]
    failed = [(number, verdict) for number, verdict in failed if not verdict.passed]
    assert [(number, verdict.kind) for number, verdict in failed] == [(0, kind)], failed
    assert failed[0][1].message.startswith(words)


@pytest.mark.parametrize("again", [1, 2])
def test_a_worker_comes_back_after_its_own_fault(again: int) -> None:
    with service():
        control, shared = control_of(os.environ), []
        with IsolatedWorker(Setup(spec_of("faults_with_sinks"), "unified", "cuda")) as worker:
            orders = harmless(1)[:4]
            for _ in range(again):
                assert worker.judge(Order(SINKS)).verdict.kind == "crash"
            shared.append(worker._shared)
            for order in orders * 51:
                assert worker.judge(order).verdict.passed
            shared.append(worker._shared)
            assert control.runs()
    assert shared == [False, True]


def meets_sinks_soon(plan: RunPlan) -> bool:
    """Return whether the first round that all workers play has no sinks and the second one has some."""
    domain, seed = Domain().in_memory(), stage_plan(plan).seed
    first, second = (shared_round(domain, seed, number).key for number in range(2))
    return second.has("sinks") and not first.has("sinks")


def campaign(target: str, seconds: float, place: Path) -> tuple[RunReport, list[Event]]:
    """Return the report and the events of a campaign of four workers on one GPU."""
    events: list[Event] = []
    setup = Setup(spec_of(target), "unified", "cuda")
    plans = (RunPlan(setup, seed, WORKERS, seconds, None, place / "run", place / "saved") for seed in count())
    plan = next(filter(meets_sinks_soon, plans))
    report = run_and_log(plan, events.append)
    print(report.notes, report.statistics.cases)
    for failure in report.failures:
        print(failure)
    assert any(note.startswith(SHARE) for note in report.notes), report.notes
    assert report.errors == ()
    for event in searched(events):  # a relation may add sinks
        order = event.order
        assert event.verdicts[0].passed or has_sinks(order.case) or order.relation is not None, event
    return report, events


def has_sinks(case: Any) -> bool:
    """Return whether a case, or a call of a sequence, has sinks."""
    return any(call.case.sinks is not None for call in calls_of(case))


def searched(events: Iterable[Event]) -> list[CaseJudged]:
    """Return the cases of the search."""
    return [event for event in events if isinstance(event, CaseJudged) and event.phase == "search"]


@pytest.mark.parametrize(("target", "kind"), [("faults_with_sinks", "out_of_bounds"), ("exits_with_sinks", "crash")])
def test_a_campaign_finds_a_crash_once_and_goes_on(target: str, kind: str, tmp_path: Path) -> None:
    """A failing launch costs a start of the GPU. The simulator, which shrinks it, names the store that is wrong."""
    report, events = campaign(target, 150.0, tmp_path)
    (failure,) = report.failures
    assert failure.counterexample.verdict.kind == kind
    assert failure.counterexample.elsewhere is not None
    assert failure.counterexample.elsewhere.found_as == ("crash",)
    assert has_sinks(failure.counterexample.case)
    found = next(index for index, event in enumerate(events) if isinstance(event, FailureFound))
    after = Counter(event.shard for event in searched(events[found:]))
    others = set(range(WORKERS)) - {events[found].shard}  # type: ignore[union-attr] # a FailureFound has one
    assert all(after[shard] for shard in others), after


def test_a_campaign_that_meets_hangs_blames_no_other_case(tmp_path: Path) -> None:
    """A hang takes a quarter of the time, its shrinking up to another one, and its check a third."""
    report, events = campaign("hangs_with_sinks", 300.0, tmp_path)
    (failure,) = report.failures
    assert failure.counterexample.verdict.kind == "timeout"
    assert failure.counterexample.confirmation == "confirmed"
    assert has_sinks(failure.counterexample.case)
    found = next(index for index, event in enumerate(events) if isinstance(event, FailureFound))
    after = Counter(event.shard for event in searched(events[found:]) if event.verdicts[0].passed)
    assert set(after) == set(range(WORKERS)), after


def folder_of(run: int) -> Path | None:
    """Return the folder of the service of a run, from the command line of its guardian."""
    for child in Path(f"/proc/{run}/task/{run}/children").read_text().split():
        words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
        if "fuzz_attn.backends.gpus" in words:
            return Path(words[words.index("fuzz_attn.backends.gpus") + 1])
    return None


def runs(process: int) -> bool:
    try:
        name, _, state = Path(f"/proc/{process}/stat").read_text().partition(" (")[2].rpartition(") ")
    except OSError:
        return False
    return name.startswith("nvidia-cuda-mps") and state[0] != "Z"


def wait_for(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + A_HANG
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.1)


def test_a_killed_run_leaves_no_process_of_the_service(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fuzz_attn.cli.main", "run", "--backend", "cuda", "--target", "unified"]
    with (tmp_path / "said").open("wb") as said:
        run = subprocess.Popen(
            [*command, "--max-time", "300", "--workers", "2", "--out", str(tmp_path)],
            stdout=said,
            stderr=said,
            process_group=0,
        )
    wait_for(lambda: run.poll() is not None or folder_of(run.pid))
    assert run.poll() is None, (tmp_path / "said").read_text()
    folder = folder_of(run.pid)
    assert folder is not None
    pipes = pipes_of(visible_gpus(os.environ)[0], folder)
    wait_for(lambda: run.poll() is not None or Control(pipes).servers())
    assert run.poll() is None, (tmp_path / "said").read_text()
    processes = [*Control(pipes).servers(), int((pipes / f"{PROGRAM}.pid").read_text().strip("\0\n "))]
    assert all(map(runs, processes))
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    wait_for(lambda: not folder.exists())
    assert not any(map(runs, processes))
