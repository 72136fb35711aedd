"""Fault drills: runs of the command line whose processes can be found, killed and counted.

`make drills` runs them and prints how many passed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_args
from uuid import uuid4

import pytest

from fuzz_attn import counterexamples
from fuzz_attn.case.families import Family
from fuzz_attn.counterexamples import Counterexample
from fuzz_attn.engine.preloaded import PROGRAM
from fuzz_attn.engine.replay import replay
from fuzz_attn.workers.fork_server import VARIABLE

TARGETS = Path(__file__).with_name("drill_targets.py")
SCRIPT = str(Path(sys.executable).with_name("fuzz-attn"))
MARK = "FUZZ_ATTN_DRILL"
PATIENCE = 240.0
"""Seconds; longer than any drill takes on a busy machine."""

SHARD, WORKER, SERVER, SECOND_SERVER = "shard", "worker", "fork server", "second fork server"
"""Roles of a run's processes."""


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


class Run:
    """One ``fuzz-attn run`` in a folder. All of its processes have a mark of their own in their environment.

    Its shards and workers are forks of the tests' own server, whose environment has no mark: they are known by their
    folder. With ``own_server`` the run imports torch in a server of its own, as a user's run does: for drills about
    processes, and for limits of a shell, which only processes inherit that the run starts.
    """

    def __init__(
        self,
        folder: Path,
        target: str,
        *options: str,
        shell: str = "true",
        own_server: bool = False,
        **environment: str,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.mark = uuid4().hex
        self._own_server = own_server or shell != "true"
        spec = target if target in get_args(Family) else f"{TARGETS}:{target}"
        command = [SCRIPT, "run", "--target", spec, "--workers", "1", "--seed", "1", "--out", "out"]
        self.process = subprocess.Popen(
            ["sh", "-c", f'{shell} && exec "$@"', "sh", *command, *options],
            cwd=folder,
            env={**_environment(), **({} if self._own_server else _server()), MARK: self.mark, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        self._lines: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self._lines.extend(self.process.stdout)

    @property
    def output(self) -> str:
        """What was printed so far."""
        return b"".join(self._lines).decode(errors="replace")

    @property
    def files(self) -> list[Path]:
        """The counterexamples saved so far."""
        return sorted((self.folder / "out" / "counterexamples").rglob("*.json"))

    @property
    def found(self) -> list[Counterexample]:
        """The counterexamples saved so far, all of which load."""
        return [counterexamples.load(path) for path in self.files]

    def processes(self, part: str = "") -> list[int]:
        """Return the processes of this run whose command line contains a text."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_own(pid, part)]

    def having(self, role: str) -> list[int]:
        """Return the processes of this run with a role."""
        return [pid for pid in self.processes(PROGRAM) if role_of(pid) == role]

    def _is_own(self, pid: int, part: str) -> bool:
        try:
            if part.encode() not in _content(f"/proc/{pid}/cmdline"):  # most processes are no drill's
                return False
            if not self._own_server and os.readlink(f"/proc/{pid}/cwd") == str(self.folder):
                return True
            return f"{MARK}={self.mark}".encode() in _content(f"/proc/{pid}/environ")
        except OSError:
            return False

    def wait_until(self, condition: Callable[[], Any]) -> None:
        """Wait until something holds; fails if the run ends before."""
        limit = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.poll() is None, f"the run has ended:\n{self.output}"
            assert time.monotonic() < limit, self.output
            time.sleep(0.1)  # a look at all processes or files costs more than this saves

    def kill(self, role: str) -> None:
        """Kill all processes of this run with a role; there must be some."""
        found = self.having(role)
        assert found, role
        _kill(found)

    def end(self, *statuses: int) -> None:
        """Wait for the end; check the exit status, that no process is left and that nothing failed unexpectedly."""
        code = self.process.wait(PATIENCE)
        self.assert_nothing_left()
        self._reader.join(PATIENCE)
        assert code in statuses, f"exit status {code}:\n{self.output}"
        assert "Traceback" not in self.output, self.output

    def assert_nothing_left(self) -> None:
        """Check that no process is left, a moment after the end."""
        limit = time.monotonic() + 30.0
        while (left := self.processes()) and time.monotonic() < limit:
            time.sleep(0.05)
        assert not left, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]

    def replay(self, *options: str) -> str:
        """Return the output of a replay of all that was saved, whose workers are forks of the tests' own server."""
        command = [SCRIPT, "replay", "--trust", *options, *map(str, self.files)]
        done = subprocess.run(
            command, env=_environment() | _server(), capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        return done.stdout + done.stderr

    def replay_here(self) -> list[str]:
        """Return the status of each saved file in a replay in this process, for targets that do it no harm."""
        return [entry.status for entry in replay(tuple(self.files), backend="interpreter", in_process=True)]

    def close(self) -> None:
        """Kill whatever is left."""
        _kill(self.processes())
        self.process.wait()
        self._reader.join(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()


def role_of(pid: int) -> str:
    """Return what a process of a run is there for, by what it is a fork of; empty if it has ended.

    All of them have the command line of the fork server. Unlike the second server, a process that was asked for leads
    a group.
    """
    try:
        parent, group = map(int, _content(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1:3])
        if PROGRAM.encode() not in _content(f"/proc/{parent}/cmdline"):
            return SERVER
    except OSError:
        return ""
    above = role_of(parent)
    if above == SERVER:
        return SHARD if group == pid else SECOND_SERVER
    return WORKER if above == SECOND_SERVER else above


def _kill(processes: Iterable[int]) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """Return the environment of a user: a run starts a fork server of its own."""
    return {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", VARIABLE)}


def _server() -> dict[str, str]:
    """Return the variable that names the tests' own fork server."""
    return {name: value for name, value in os.environ.items() if name == VARIABLE}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Return a function that starts a run on a target; what is left of it is killed at the end."""
    runs: list[Run] = []

    def started(target: str, *options: str, folder: Path = tmp_path / "run", **changes: Any) -> Run:
        runs.append(Run(folder, target, *options, **changes))
        return runs[-1]

    yield started
    for run in runs:
        run.close()


DRILLS = (
    "tests/engine/drills/",
    *(line for line in Path(__file__).with_name("elsewhere.txt").read_text().split("\n") if line.startswith("tests/")),
)
"""How the names of drills begin."""
NOT_PASSED = ("failed", "error", "skipped", "xfailed", "xpassed", "passed")
"""The outcomes of a drill; of those of its set-up, call and end the first one counts."""


def pytest_unconfigure(config: pytest.Config) -> None:
    """Print how many drills passed, as the last line, and what was skipped and why."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return
    outcomes: dict[str, tuple[str, Any]] = {}
    for outcome in NOT_PASSED:
        for report in reporter.stats.get(outcome, []):
            name = getattr(report, "nodeid", "")
            if name.startswith(DRILLS):
                outcomes.setdefault(name, (outcome, report))
    for name, (outcome, report) in outcomes.items():
        if outcome == "skipped":
            reporter.write_line(f"not run: {name}: {report.longrepr[2]}")
    if outcomes:
        passed = sum(outcome == "passed" for outcome, _ in outcomes.values())
        reporter.write_line(f"{passed} of {len(outcomes)} drills passed, {100 * passed // len(outcomes)} %")
