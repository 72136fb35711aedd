"""A fork of the server is like a process that was started by itself, and it never outlives who asked for it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.orders import Setup
from fuzz_attn.engine.preloaded import PROGRAM
from fuzz_attn.workers.fork_server import VARIABLE, fork_server
from fuzz_attn.workers.worker_process import WorkerProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no fork server")

A_HANG: Final = 1800.0
"""Seconds after which a wait counts as a hang, on the slowest machine."""

PROBE: Final = """
import json, os, random, signal, sys, threading
from multiprocessing.connection import Connection
import numpy

torch = sys.modules.get("torch")
connection = Connection(int(sys.argv[-1]))
answers = {
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "path": sys.path,
    "program": [__name__, sys.argv[0], len(sys.argv), sys.flags.safe_path, sys.executable],
    "group": os.getpgrp() == os.getpid(),
    "parent": os.getppid(),
    "input": sys.stdin.read(),
    "files": len(os.listdir("/proc/self/fd")),
    "threads": threading.active_count(),
    "print": [sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors, sys.stdout.line_buffering],
    "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)],
    "random": [random.random(), float(numpy.random.random()), torch and torch.rand(1).item()],
    "triton": "triton" in sys.modules,
    "more": "more" in sys.modules,
}
print("printed")
print("complained", file=sys.stderr, flush=True)
sys.stdout.flush()
connection.send_bytes(json.dumps(answers).encode())
order = connection.recv_bytes().decode()
exec(order)
"""

LIGHT: Final = "light_server"
"""The program of a server for tests of the server itself: it imports nothing, which saves a second of torch."""

SECOND: Final = "second_server"
"""Another light program, whose second server imports a module named ``more``."""

Probe = WorkerProcess[dict[str, Any]]


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer a module that a new process can run, and the program of a light server."""
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / f"{LIGHT}.py").write_text("from fuzz_attn.workers.fork_server import serve\nserve(lambda: None)\n")
    (tmp_path / "more.py").write_text("")
    (tmp_path / f"{SECOND}.py").write_text(
        "from fuzz_attn.workers.fork_server import serve\nserve(lambda: None, lambda: __import__('more'))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def unserved(module: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away the server of all tests."""
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def served(unserved: None) -> Iterator[None]:
    """Offer a server of the test's own, which it may kill."""
    with fork_server(LIGHT):
        yield


@pytest.fixture
def started() -> Iterator[Callable[..., Probe]]:
    """Return a function that starts a process, which is ended after the test."""
    processes: list[Probe] = []

    def start(*, with_triton: bool = False) -> Probe:
        command, decoder = (sys.executable, "-P", "-m", "probe"), msgspec.json.Decoder[dict[str, Any]](dict[str, Any])
        processes.append(WorkerProcess(command, decoder, with_triton=with_triton))
        return processes[-1]

    yield start
    for process in processes:
        process.end()


def answers_of(process: Probe) -> dict[str, Any]:
    answers = process.receive()
    assert answers is not None, process.last_output()
    return answers


def order(process: Probe, code: str) -> None:
    """Let a process go on with some code."""
    process.connection.send_bytes(code.encode())


def is_fork(answers: dict[str, Any]) -> bool:
    return bool(answers["parent"] != os.getpid())


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_for(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + A_HANG
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_a_fork_is_like_a_process_that_was_started_by_itself(
    started: Callable[..., Probe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    monkeypatch.setenv("FUZZ_ATTN_TEST", "changed")
    monkeypatch.delenv("TERM", raising=False)
    monkeypatch.syspath_prepend(tmp_path / "folder")
    fork = answers_of(started())
    monkeypatch.delenv(VARIABLE)
    process = started()
    usual = answers_of(process)
    assert is_fork(fork)
    assert not is_fork(usual)
    assert process.last_output() == "printed\ncomplained"
    assert fork["environment"].pop(VARIABLE)
    assert (fork["environment"]["FUZZ_ATTN_TEST"], fork["folder"]) == ("changed", str(tmp_path / "folder"))
    assert "TERM" not in fork["environment"]
    for answers in (fork, usual):
        del answers["parent"], answers["random"]
    assert fork == usual


def test_what_a_fork_prints_is_its_own(started: Callable[..., Probe]) -> None:
    first, second = started(), started()
    for process in (first, second):
        answers_of(process)
        process.last_output()
    order(first, "os.system('echo below')")
    assert first.exit_code() == 0
    assert (first.last_output(), second.last_output()) == ("below", "")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('wrong')", 1),
        ("os._exit(7)", 7),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("signal.raise_signal(signal.SIGTERM)", -signal.SIGTERM),
    ],
)
def test_the_end_of_a_fork_is_known(code: str, status: int, started: Callable[..., Probe]) -> None:
    process = started()
    assert is_fork(answers_of(process))
    order(process, code)
    assert process.exit_code() == status
    assert process.receive() is None


def test_a_fork_is_killed_with_its_own_forks(started: Callable[..., Probe]) -> None:
    process = started()
    answers_of(process)
    order(
        process,
        "child = os.fork()\nif child: connection.send_bytes(json.dumps({'pid': child}).encode())\nsignal.pause()",
    )
    below = answers_of(process)["pid"]
    process.kill()
    assert is_gone(process.pid)
    wait_for(lambda: is_gone(below))


def test_forks_share_no_random_numbers(started: Callable[..., Probe]) -> None:
    first, second = answers_of(started()), answers_of(started())
    assert is_fork(first)
    assert is_fork(second)
    assert not set(first["random"]) & set(second["random"])


@pytest.mark.parametrize(
    ("name", "fork"), [("TORCH_SHOW_CPP_STACKTRACES", False), ("LD_BIND_NOW", False), ("TRITON_CACHE_DIR", True)]
)
def test_what_acts_at_the_start_of_a_process_needs_a_new_one(
    name: str, fork: bool, started: Callable[..., Probe], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(name, str(tmp_path) if fork else "0")
    assert is_fork(answers_of(started())) == fork


@pytest.mark.parametrize("with_triton", [False, True])
def test_nothing_is_left_of_a_fork(with_triton: bool, served: None, started: Callable[..., Probe]) -> None:
    start = partial(started, with_triton=with_triton)
    process = start()
    server = answers_of(process)["parent"]
    process.end()

    def left() -> tuple[str, int]:
        children = Path(f"/proc/{server}/task/{server}/children").read_text()
        return children, len(os.listdir(f"/proc/{server}/fd"))

    wait_for(lambda: left()[0] == "")
    before, own = left(), len(os.listdir("/proc/self/fd"))
    processes = [start() for _ in range(3)]
    for other, code in zip(processes, ("pass", "sys.exit(1)", "signal.pause()"), strict=True):
        answers_of(other)
        order(other, code)
    assert [other.exit_code() for other in processes[:2]] == [0, 1]
    for other in processes:
        other.end()
    wait_for(lambda: left() == before)
    wait_for(lambda: len(os.listdir("/proc/self/fd")) == own)  # a thread closes what is printed through


@pytest.mark.parametrize(("with_triton", "first"), [(False, True), (True, True), (True, False)])
def test_the_death_of_the_server_ends_its_forks_and_others_are_started(
    with_triton: bool, first: bool, served: None, started: Callable[..., Probe]
) -> None:
    process, server = started(with_triton=with_triton), answers_of(started())["parent"]
    own = answers_of(process)["parent"]
    assert (own == server) != with_triton
    os.kill(server if first else own, signal.SIGKILL)
    assert process.receive() is None
    assert process.exit_code() == -signal.SIGKILL
    wait_for(lambda: all(map(is_gone, (process.pid, own, server))))
    assert not any(is_fork(answers_of(started(with_triton=with_triton))) for with_triton in (False, True))


def test_the_second_server_imports_more_and_its_forks_are_like_others(
    unserved: None, started: Callable[..., Probe]
) -> None:
    with fork_server(SECOND):
        processes = [started(with_triton=with_triton) for with_triton in (False, True, True, False)]
        usual, *others = map(answers_of, processes)
        for process in processes:
            process.end()
    assert [each.pop("more") for each in (usual, *others)] == [False, True, True, False]
    parents = [each.pop("parent") for each in (usual, *others)]
    assert parents[0] == parents[3] != parents[1] == parents[2]
    for each in (usual, *others):
        del each["random"]
    assert others == [usual] * 3


def test_a_fork_that_the_dying_server_never_started_counts_as_killed(
    served: None, started: Callable[..., Probe]
) -> None:
    server = answers_of(started())["parent"]
    os.kill(server, signal.SIGSTOP)
    process = started()
    os.kill(server, signal.SIGKILL)
    assert process.receive() is None
    assert process.exit_code() == -signal.SIGKILL


OWNER: Final = """
import os, signal, sys, time
import msgspec
from fuzz_attn.workers.fork_server import VARIABLE, fork_server
from fuzz_attn.workers.worker_process import WorkerProcess

def ask():
    process = WorkerProcess((sys.executable, "-P", "-m", "probe"), msgspec.json.Decoder(dict))
    answers = process.receive()
    process.connection.send_bytes(HANG)
    print(os.getpid(), process.pid, answers["parent"], os.environ[VARIABLE], flush=True)
    if os.fork() == 0:
        print(os.getpid(), flush=True)  # a copy of this process keeps all of its files open
    time.sleep(1000000)

HANG = b"signal.signal(signal.SIGTERM, signal.SIG_IGN)\\nwhile True: signal.pause()"
"""


def test_a_hanging_fork_and_the_server_die_with_the_owner_of_both(unserved: None) -> None:
    code = f"{OWNER}\nwith fork_server({LIGHT!r}): ask()"
    owner = subprocess.Popen([sys.executable, "-c", code], env=environment(), stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, fork, server, path = owner.stdout.readline().split()
    copy = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    wait_for(lambda: is_gone(int(fork)))
    os.kill(copy, signal.SIGKILL)
    wait_for(lambda: is_gone(int(server)))
    assert not Path(path).parent.exists()
    assert int(pid) == owner.pid
    owner.stdout.close()


def test_a_hanging_fork_dies_with_the_process_that_asked_for_it(started: Callable[..., Probe]) -> None:
    other = answers_of(started())
    asking = subprocess.Popen(
        [sys.executable, "-c", f"{OWNER}\nask()"], env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert asking.stdout is not None
    _, fork, server, _ = asking.stdout.readline().split()
    copy = int(asking.stdout.readline())
    assert int(server) == other["parent"]
    asking.kill()
    asking.wait()
    wait_for(lambda: is_gone(int(fork)))
    assert not is_gone(int(server))
    os.kill(copy, signal.SIGKILL)
    asking.stdout.close()


def environment() -> dict[str, str]:
    """Return an environment whose import path is that of this process."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.parametrize("with_triton", [False, True])
def test_a_server_serves_its_forks_to_their_end(
    with_triton: bool, unserved: None, started: Callable[..., Probe]
) -> None:
    with fork_server(LIGHT):
        path = Path(os.environ[VARIABLE])
        process = started(with_triton=with_triton)
        server = answers_of(process)["parent"]
        order(process, "connection.recv_bytes()")
    assert VARIABLE not in os.environ
    assert not path.parent.exists()
    assert not is_gone(server)
    process.end()
    wait_for(lambda: is_gone(server))


def test_a_second_run_uses_the_server_that_there_is() -> None:
    before = os.environ[VARIABLE]
    with fork_server(PROGRAM):
        assert os.environ[VARIABLE] == before
    assert os.environ[VARIABLE] == before


def test_a_server_that_has_died_is_replaced(served: None, started: Callable[..., Probe]) -> None:
    before, server = os.environ[VARIABLE], answers_of(started())["parent"]
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: is_gone(server))
    with fork_server(LIGHT):
        assert os.environ[VARIABLE] != before
        answers = answers_of(started())
        assert is_fork(answers)
        assert answers["parent"] != server
    assert os.environ[VARIABLE] == before


def test_without_what_it_needs_processes_are_started_as_usual(
    unserved: None, started: Callable[..., Probe], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(pid: int) -> int:
        raise PermissionError(pid)

    monkeypatch.setattr(os, "pidfd_open", refused)
    with fork_server(PROGRAM):
        assert VARIABLE not in os.environ
        assert not is_fork(answers_of(started()))


@pytest.mark.parametrize("end", ["os._exit", "sys.exit"])
def test_a_worker_that_is_a_fork_says_what_it_prints_and_how_it_dies(end: str, tmp_path: Path) -> None:
    path = tmp_path / "dying.py"
    path.write_text(f"import os, sys\nprint('so long', flush=True)\n{end}(5)\n")
    with pytest.raises(Exception, match=r"status 5; it last printed:\nso long while it was loaded"):
        IsolatedWorker(Setup(f"{path}:attend")).__enter__()


def test_the_server_imports_torch_but_no_triton_and_the_second_one_both() -> None:
    code = """
import sys, threading
from fuzz_attn.engine.preloaded import import_all, import_triton
import_all()
print(*sys.modules)
import_triton()
from triton.language import cdiv
print(*sys.modules)
print(type(cdiv).__name__, len(__import__("os").listdir("/proc/self/task")))
"""
    command = [sys.executable, "-P", "-c", code]
    printed = subprocess.run(command, env=environment(), check=True, capture_output=True, text=True).stdout
    first, second, end = printed.splitlines()
    loaded = first.split()
    assert {"torch", "hypothesis", "numpy"} <= set(loaded)
    assert not {name for name in loaded if re.match(r"triton\b", name)}
    assert {"triton", "fuzz_attn.backends.simulator"} <= {*second.split()} - {*loaded}
    assert end == "JITFunction 1", "Triton decorates for its interpreter, or a thread would be missing in forks"
    # Python warns of a main program that is imported already.
    programs = {"run.shard", "case_judge", "compiling.compiler"}
    assert not {f"fuzz_attn.engine.{name}" for name in programs} & {*second.split()}
