"""Under a Multi-Process Service, a lost device or a hang is blamed on the case that caused it, and on no other."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fuzz_attn.backends.gpus import FOLDER, broken_mark, multi_process_service, pipes_of
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import HeadLayout, Sequence
from fuzz_attn.engine import isolated_worker
from fuzz_attn.engine.isolated_worker import FULL, FULL_TRIES, OTHERS_FAULT, IsolatedWorker, Wait
from fuzz_attn.engine.orders import Answer, Order, Setup
from fuzz_attn.errors import BackendError
from fuzz_attn.workers import fork, messages, sharing
from fuzz_attn.workers.messages import DEVICE_LOST, HARNESS_FAILED, RENEWED, SHARES_AGAIN
from fuzz_attn.workers.sharing import CANNOT_START, NOT_READY, NOTE, ORDERS_APART, Sharing

SHORT, SEGFAULT, HANGS, BREAKS, SLOW = (
    AttentionCase(sequences=(Sequence(1, length - 1),), heads=HeadLayout(head_size=4)) for length in (1, 12, 17, 16, 40)
)
"""The target ``misbehaves_by_length`` passes the first, dies on the second, does not end the third and loses the device
on the fourth. It passes the last after one and a half seconds."""


A_HANG = 1800.0
"""Seconds after which a wait counts as a hang, on the slowest machine."""


@pytest.fixture(scope="module")
def service(control_program: None) -> Iterator[None]:
    """Let workers share the GPU for the time of these tests."""
    with multi_process_service("cuda") as started:
        started()
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder in which files are events of the simulated device."""
    place = tmp_path_factory.mktemp("events")
    (place / "refusals").write_text("0")
    (place / "full").write_text("0")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FUZZ_ATTN_TEST_EVENTS", str(place))
        environment.syspath_prepend(Path(__file__).parent)
        yield place


@pytest.fixture(scope="module")
def running(folder: Path, service: None, spec: Callable[[str], str]) -> Iterator[IsolatedWorker]:
    """One worker for all tests, each of which leaves it in the service."""
    command = (sys.executable, "-P", "-m", "shared_device_worker")  # so it is a fork of the tests' server
    with IsolatedWorker(Setup(spec("misbehaves_by_length")), command=command) as worker:
        yield worker


@pytest.fixture
def events(folder: Path, running: IsolatedWorker) -> Iterator[Path]:
    (folder / "starts").write_text("")
    yield folder
    assert running.judge(Order(SHORT)).verdict.passed
    assert starts(folder).endswith("s") or not starts(folder)


@pytest.fixture
def worker(running: IsolatedWorker) -> IsolatedWorker:
    running.deaths, running.launch_seconds = 0, 120.0
    return running


def starts(events: Path) -> str:
    return (events / "starts").read_text()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("text", ["CUDA error: out of memory", "MPS server is not ready to accept new clients"])
def test_a_start_in_the_service_that_finds_no_room_is_tried_again(text: str, shared: bool, service: None) -> None:
    way = Sharing()
    if not shared:
        way.after(DEVICE_LOST)
    assert way.shared == shared
    assert way.failure(BackendError(text)) == (NOT_READY if shared else CANNOT_START)
    assert way.failure(BackendError("CUDA error: no device")) == CANNOT_START


def test_each_way_in_which_a_process_ends_itself_has_a_status_of_its_own() -> None:
    """Statuses are the numbers from 100 to 127 in capitals; a module may import those of another one."""
    statuses = {
        name: value
        for module in (messages, fork, sharing)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, int) and 100 <= value < 128
    }
    assert len(statuses) > 7
    assert len({*statuses.values()}) == len(statuses), statuses


def test_another_workers_fault_is_blamed_on_no_case(worker: IsolatedWorker, events: Path) -> None:
    (events / "fault").touch()
    answer = worker.judge(Order(SHORT))
    assert answer.verdict.passed
    assert answer.notes == (OTHERS_FAULT,)
    assert worker.judge(Order(SHORT)).notes == ()
    assert worker.deaths == 0
    assert starts(events) == "as", "the order is judged again apart from the service, and the next one in it"


def test_what_was_printed_before_another_workers_fault_is_forgotten(worker: IsolatedWorker, events: Path) -> None:
    (events / "fault").touch()
    assert worker.judge(Order(SHORT)).verdict.passed
    message = worker.judge(Order(SEGFAULT)).verdict.message
    assert message.startswith("died of SIGSEGV")
    assert "illegal memory access" not in message


def test_an_own_fault_is_blamed_once_and_shrinking_it_disturbs_no_other_worker(
    worker: IsolatedWorker, events: Path
) -> None:
    answer = worker.judge(Order(BREAKS))
    assert answer.verdict.kind == "crash"
    assert answer.verdict.message.startswith("broke the device for its process; it last printed:\nCUDA error: longest=")
    assert answer.notes == ()
    assert worker.deaths == 1
    assert worker.judge(Order(BREAKS)).verdict.kind == "crash"
    worker.renew()
    assert worker.judge(Order(BREAKS)).verdict.kind == "crash"
    assert worker.deaths == 3
    for _ in range(3):  # which are so many orders as run apart here
        assert worker.judge(Order(SHORT)).verdict.passed
    assert worker.judge(Order(SHORT)).verdict.passed
    assert starts(events) == "a" * 5 + "s"


def test_another_death_needs_no_second_launch(worker: IsolatedWorker, events: Path) -> None:
    assert worker.judge(Order(SEGFAULT)).verdict.message.startswith("died of SIGSEGV")
    assert worker.judge(Order(SHORT)).verdict.passed
    assert worker.deaths == 1
    assert starts(events) == "s"


def test_a_fault_outside_of_a_launch_is_blamed_on_no_case(worker: IsolatedWorker, events: Path) -> None:
    (events / "broken harness").touch()
    assert worker.judge(Order(SHORT)).verdict.passed
    assert worker.judge(Order(SHORT)).verdict.passed
    assert starts(events) == "as"


@pytest.mark.parametrize("full", [1, FULL_TRIES])
def test_a_case_that_finds_no_memory_left_is_tried_again(
    full: int, worker: IsolatedWorker, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated_worker, "FULL_SECONDS", 0.0)
    (events / "full").write_text(str(full))
    answer = worker.judge(Order(SHORT))
    assert answer.judged
    assert answer.verdict.passed
    assert worker.deaths == 0
    assert starts(events) == "s" * full, "each try has a process that holds no memory"


def test_a_case_that_never_finds_memory_has_no_verdict(
    worker: IsolatedWorker, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated_worker, "FULL_SECONDS", 0.0)
    (events / "full").write_text(str(FULL_TRIES + 1))
    answer = worker.judge(Order(SHORT))
    assert not answer.judged
    assert answer.unsupported == FULL
    assert worker.judge(Order(SHORT)).judged


def test_memory_that_the_harness_does_not_find_is_no_defect_of_it(worker: IsolatedWorker, events: Path) -> None:
    (events / "no room").touch()
    answer = worker.judge(Order(SHORT))
    assert answer.judged
    assert answer.earlier is None
    assert worker.deaths == 0


def test_a_service_that_recovers_is_waited_for(worker: IsolatedWorker, events: Path) -> None:
    (events / "refusals").write_text("3")
    assert worker.judge(Order(SEGFAULT)).verdict.kind == "crash"
    answer = worker.judge(Order(SHORT))
    assert (answer.verdict.passed, answer.notes) == (True, ())
    assert starts(events) == "ssss"


def test_a_worker_that_the_service_goes_on_refusing_runs_apart(worker: IsolatedWorker, events: Path) -> None:
    (events / "refusals").write_text("5")
    assert worker.judge(Order(SEGFAULT)).verdict.kind == "crash"
    answers = [worker.judge(Order(SHORT)) for _ in range(4)]
    assert all(answer.verdict.passed for answer in answers)
    assert [answer.notes for answer in answers] == [(NOTE,), (), (), ()]
    assert starts(events) == "sssss" + "a" + "s"


def test_a_launch_that_another_worker_blocks_is_no_hang(
    worker: IsolatedWorker, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge_alone = worker._judge_apart

    def patiently(order: Order, deadline: float | None, wait: Wait, *, shared: bool) -> Answer:
        worker.launch_seconds = A_HANG
        return judge_alone(order, deadline, wait, shared=shared)

    monkeypatch.setattr(worker, "_judge_apart", patiently)
    worker.launch_seconds = 1.0
    (events / "blocked").touch()
    answer = worker.judge(Order(SHORT))
    (events / "blocked").unlink()
    assert (answer.verdict.passed, answer.notes) == (True, (OTHERS_FAULT,))
    commands = pipes_of("0", Path(os.environ[FOLDER])) / "commands"
    assert "terminate_client 77 running" in commands.read_text(), "its work ends before the process does"


def test_an_own_hang_is_a_timeout(folder: Path, running: IsolatedWorker) -> None:
    (folder / "starts").write_text("")
    with IsolatedWorker(running.setup, command=running.command, launch_seconds=1.0) as worker:
        assert worker.judge(Order(HANGS)).verdict.message == "the launch did not end within 1 s"
        assert starts(folder).startswith("ss" + "aa"), "a new process starts the device twice: to see whether it can"
        worker.launch_seconds = A_HANG
        assert worker.judge(Order(SHORT)).verdict.passed
        assert starts(folder) == "ss" + "aa" + "a", "the next fork stays apart: shrinking repeats the hang"
        assert worker.judge(Order(SHORT)).verdict.passed
        assert starts(folder) == "ss" + "aa" + "a"


def test_a_slow_case_is_judged_again_apart_and_blamed_on_nobody(
    worker: IsolatedWorker, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated_worker, "LEAST_PATIENCE", 0.5)
    monkeypatch.setattr(isolated_worker, "PATIENCE", 0)
    answer = worker.judge(Order(SLOW), wait="short, then full")
    assert (answer.verdict.passed, answer.notes) == (True, (OTHERS_FAULT,))
    assert starts(events) == "aa"


def test_a_worker_without_an_order_makes_room_where_another_has_broken_the_device(
    worker: IsolatedWorker, events: Path
) -> None:
    """The service takes no client until all that it had have ended, and this one would not see the fault."""
    assert worker.judge(Order(SHORT)).verdict.passed
    limit = time.monotonic() + A_HANG
    broken_mark(os.environ).touch()
    while not starts(events) and time.monotonic() < limit:
        time.sleep(0.05)
    assert starts(events) == "s"
    answer = worker.judge(Order(SHORT))
    assert (answer.verdict.passed, answer.notes, worker.deaths) == (True, (), 0)
    assert starts(events) == "s", "once for each mark"


@pytest.fixture
def way(service: None) -> Sharing:
    """Return how the next fork of a worker starts the device."""
    return Sharing()


def test_forks_share_again_when_enough_orders_passed_apart(way: Sharing, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    assert way.shared
    way.after(-signal.SIGKILL)
    assert way.shared
    for code, orders in ((DEVICE_LOST, 1), (-signal.SIGKILL, ORDERS_APART), (RENEWED, ORDERS_APART)):
        way.after(code)
        assert (way.shared, way._orders) == (False, orders)
    way.after(SHARES_AGAIN)
    for code, orders in ((DEVICE_LOST, 1), (DEVICE_LOST, ORDERS_APART), (RENEWED, ORDERS_APART)):
        way.after(code)
        assert (way.shared, way._orders) == (False, orders)
    for _ in range(ORDERS_APART - 1):
        way.count_order()
    assert ended == []
    way.count_order()
    assert ended == [SHARES_AGAIN]
    way.after(SHARES_AGAIN)
    assert way.shared
    way.count_order()
    assert ended == [SHARES_AGAIN], "there is no limit of orders in the service"
    way.after(HARNESS_FAILED)
    assert not way.shared


def test_the_first_worker_that_loses_the_device_tells_the_others(way: Sharing) -> None:
    mark = broken_mark(os.environ)
    mark.touch()
    os.utime(mark, (0.0, 0.0))
    assert not way.is_broken()
    other = Sharing()
    way.after(DEVICE_LOST)
    told = mark.stat().st_mtime
    assert told > 0.0
    assert not way.is_broken(), "its next fork is apart from the service"
    os.utime(mark, (told + 1.0, told + 1.0))
    assert other.is_broken()
    other.after(DEVICE_LOST)
    assert mark.stat().st_mtime == told + 1.0, "those that have started since are not broken"


def test_a_device_that_starts_neither_way_is_given_up(way: Sharing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "PAUSE_SECONDS", 0.0)
    assert [way.another_way(NOT_READY) for _ in range(sharing.TRIES)] == [True] * sharing.TRIES
    ways = [way.shared]
    assert way.another_way(NOT_READY)
    assert [*ways, way.shared] == [True, False]
    assert not way.another_way(CANNOT_START)


def test_an_order_is_judged_in_the_service_where_nothing_runs_apart(way: Sharing) -> None:
    """A GPU in the mode EXCLUSIVE_PROCESS belongs to the service."""
    way.after(DEVICE_LOST)
    assert way.another_way(CANNOT_START)
    assert way.shared
