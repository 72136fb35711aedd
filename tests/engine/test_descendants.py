"""What a target starts ends with the process that it was started in, wherever it went."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz_attn.workers.fork import children_of, kill_with_descendants

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt orphans")

A_HANG = 600.0

FORKS = """
import os, signal, subprocess, sys, time
from pathlib import Path
from fuzz_attn.workers.fork import adopt_orphans
from fuzz_attn.workers.fork import run_in_fork

def detach():
    if not os.fork():
        os.setsid()
        if not os.fork():
            Path(sys.argv[1]).write_text(str(os.getpid()))
            time.sleep(3600)
        os._exit(0)
    while not Path(sys.argv[1]).exists() or not Path(sys.argv[1]).read_text():
        time.sleep(0.01)

"""


def program(code: str, path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", FORKS + code, str(path)], process_group=0)


def wait_for(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + A_HANG
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_a_fork_has_started_ends_with_it_and_helpers_stay(tmp_path: Path) -> None:
    code = """
helper = subprocess.Popen(["sleep", "600"])
died = run_in_fork(detach, 0)
assert died.code == 113, died
assert helper.poll() is None
helper.kill()
helper.wait()
"""
    path = tmp_path / "pid"
    assert program(code, path).wait(A_HANG) == 0
    wait_for(lambda: not runs(int(path.read_text())))


def test_a_process_is_killed_with_what_it_has_started(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    process = program("adopt_orphans(); detach(); time.sleep(3600)", path)
    wait_for(lambda: path.exists() and path.read_text())
    detached = int(path.read_text())
    wait_for(lambda: detached in children_of(process.pid))
    kill_with_descendants(process.pid)
    assert process.wait(A_HANG) == -9
    wait_for(lambda: not runs(detached))


def test_without_proc_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str) -> list[str]:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "listdir", missing)
    assert children_of(os.getpid()) == frozenset()
