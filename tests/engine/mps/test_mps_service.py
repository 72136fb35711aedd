"""The Multi-Process Service of a run: started, joined or missing, and gone with the run. Its program is a stand-in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from fuzz_attn.backends import gpus
from fuzz_attn.backends.gpus import (
    FOLDER,
    PIPES,
    PROGRAM,
    SHARE,
    TURNS,
    Control,
    control_of,
    multi_process_service,
    pipes_of,
    variables,
)
from fuzz_attn.cli.main import main
from fuzz_attn.cli.run import Request
from fuzz_attn.engine import shards
from fuzz_attn.engine.fuzz_run import FuzzRun
from fuzz_attn.engine.orders import Setup
from fuzz_attn.engine.run_plan import RunPlan

A_HANG = 1800.0
"""Seconds after which a wait counts as a hang, on the slowest machine."""

pytestmark = pytest.mark.usefixtures("control_program")


def folder_in_use() -> Path:
    return Path(os.environ[FOLDER])


def daemon_of(pipes: Path) -> int:
    return int((pipes / f"{PROGRAM}.pid").read_text())


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + A_HANG
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_a_daemon_with_a_private_folder_runs_as_long_as_the_run() -> None:
    with multi_process_service("auto") as started:
        assert started() == f"{SHARE}was started for this run"
        folder = folder_in_use()
        pipes = pipes_of("0", folder)
        daemon = daemon_of(pipes)
        assert runs(daemon)
        assert folder.stat().st_mode & 0o077 == 0
        assert len(str(pipes / "control")) < 100, "the name of a socket has at most 108 bytes"
        wait_for((pipes / "commands").exists)
        assert (pipes / "commands").read_text() == f"start_server -uid {os.getuid()}\n"
        assert PIPES not in os.environ
    assert FOLDER not in os.environ
    assert not folder.exists()
    assert not runs(daemon)


def test_an_exception_ends_the_daemon() -> None:
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(KeyError))
        stack.enter_context(multi_process_service("cuda"))()
        folder = folder_in_use()
        daemon = daemon_of(pipes_of("0", folder))
        os.environ.pop("FUZZ_ATTN_NO_SUCH_VARIABLE")
    assert not folder.exists()
    assert not runs(daemon)


RUN = """
import os, sys, time
from fuzz_attn.backends.gpus import multi_process_service
with multi_process_service("cuda") as started:
    started()
    print(os.environ["FUZZ_ATTN_MPS"], flush=True)
    time.sleep(3600)
"""


@pytest.mark.parametrize("manner", ["", "stubborn"])
def test_a_killed_run_leaves_no_daemon(manner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUZZ_ATTN_TEST_MPS", manner)
    run = subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE, process_group=0)
    assert run.stdout is not None
    folder = Path(run.stdout.readline().decode().strip())
    daemon = daemon_of(pipes_of("0", folder))
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    run.stdout.close()
    wait_for(lambda: not folder.exists())
    assert not runs(daemon)


def test_each_gpu_has_a_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-1f")
    with multi_process_service("cuda") as started:
        started()
        seen = {}
        for gpu in ("3", "GPU-1f"):
            worker = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
            given = variables(worker, shared=True)
            assert given["CUDA_VISIBLE_DEVICES"] == "0", "a daemon of one GPU calls it 0"
            seen[gpu] = (Path(given[PIPES]) / "gpus").read_text()
            assert control_of(worker).runs()
            apart = variables(worker, shared=False)
            assert set(apart) == {PIPES}, "outside, the GPU has the name that the caller uses"
            assert Path(apart[PIPES]).is_dir()
            assert not Control(Path(apart[PIPES])).runs()
        assert seen == {"3": "3\n", "GPU-1f": "GPU-1f\n"}


def test_a_running_service_is_joined_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PIPES, str(tmp_path))
    subprocess.run([PROGRAM, "-d"], env={**os.environ, "CUDA_MPS_LOG_DIRECTORY": str(tmp_path)}, check=True)
    daemon = daemon_of(tmp_path)
    try:
        with multi_process_service("cuda") as started:
            assert started() == f"{SHARE}was running already"
            assert variables(os.environ, shared=True) == {}
            assert control_of(os.environ).runs()
            assert list(folder_in_use().iterdir()) == [Path(variables(os.environ, shared=False)[PIPES])]
            folder = folder_in_use()
        assert not folder.exists()
        assert runs(daemon)
        assert not (tmp_path / "commands").exists()
    finally:
        os.kill(daemon, signal.SIGKILL)


def test_a_service_is_joined_that_the_control_program_cannot_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "control").touch()
    monkeypatch.setenv(PIPES, str(tmp_path))
    monkeypatch.setattr("fuzz_attn.backends.gpus.PROGRAM", "no-such-program")
    with multi_process_service("cuda") as started:
        assert started() == f"{SHARE}was running already"


def test_without_the_program_workers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "PROGRAM", "no-such-program")
    with multi_process_service("cuda") as started:
        assert started() == f"{TURNS}no-such-program is not installed"
        assert FOLDER not in os.environ


def test_a_daemon_that_does_not_start_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUZZ_ATTN_TEST_MPS", "fails")
    monkeypatch.setattr(gpus, "START_SECONDS", 0.1)
    daemon = gpus.Daemon("0", tmp_path)
    assert daemon.start() == "Cannot create the pipes: not permitted"


def test_a_guardian_that_ends_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with multi_process_service("cuda") as started:
        assert started() == f"{TURNS}its guardian ended"
        assert FOLDER not in os.environ


@pytest.mark.parametrize(
    ("backend", "gpus", "interpret"),
    [("simulator", "0", "0"), ("", "0", "0"), ("auto", "", "0"), ("cuda", "", "0"), ("auto", "0", "1")],
)
def test_nothing_is_started_where_no_worker_uses_a_gpu(
    backend: str, gpus: str, interpret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    monkeypatch.setenv("TRITON_INTERPRET", interpret)
    with multi_process_service(backend) as started:
        assert started() == ""
        assert FOLDER not in os.environ


SHARD = """
import os, sys
from multiprocessing.connection import Connection
import msgspec
from fuzz_attn.engine.events import Finished, Note
connection = Connection(int(sys.argv[-1]))
connection.recv_bytes()
text = "shares" if os.path.isdir(os.environ.get("FUZZ_ATTN_MPS", "")) else "takes turns"
for event in (Note(0, text), Finished(0, 1.0)):
    connection.send_bytes(msgspec.json.encode(event))
"""


@pytest.mark.parametrize(
    ("mps", "notes"),
    [(True, (f"{SHARE}was started for this run", "shares")), (False, ("takes turns",))],
)
def test_a_run_says_whether_its_workers_share_the_gpu(
    mps: bool, notes: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "COMMAND", (sys.executable, "-c", SHARD))
    plan = RunPlan(Setup("t"), 1, 1, None, 5, tmp_path / "run", tmp_path / "counterexamples", mps=mps)
    assert FuzzRun(plan).run().report().notes == notes


@pytest.mark.parametrize(("arguments", "mps"), [((), True), (("--mps",), True), (("--no-mps",), False)])
def test_the_command_line_can_do_without(
    arguments: tuple[str, ...], mps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Request] = []

    def run_campaigns(request: Request) -> int:
        requests.append(request)
        return 0

    monkeypatch.setattr(sys.modules["fuzz_attn.cli.run"], "run_campaigns", run_campaigns)
    assert CliRunner().invoke(main, ["run", "--target", "unified", *arguments]).exit_code == 0
    assert [request.mps for request in requests] == [mps]
