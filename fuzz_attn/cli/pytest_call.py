"""The pytest call that runs one campaign of ``fuzz-attn run``, and its progress while it runs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Column

from fuzz_attn.engine.statistics import read_all
from fuzz_attn.report import summary
from fuzz_attn.report.plain_text import PIPE_SECONDS, show, whole

TEST_FILE: Final = Path(__file__).with_name("run_target.py")
STOP_SECONDS: Final = 15.0
"""An interrupted campaign that has not ended after this time is killed."""
INTERRUPTED: Final = 130
"""Exit status of shells for an interrupted program."""


@dataclass(frozen=True)
class Request:
    """What the user requested, in the words of the command line; all targets together share both limits."""

    targets: tuple[str, ...]
    family: str | None
    backend: str
    max_time: float | None
    max_cases: int | None
    seed: int
    workers: int
    out: Path | None


class ProgressLine:
    """The progress of a campaign; its clock also runs between the reports of the shards."""

    def __init__(self, folder: Path, max_time: float | None) -> None:
        self.folder = folder
        self.max_time = max_time
        self._began: float | None = None

    def __str__(self) -> str:
        shards = read_all(self.folder)
        if shards and self._began is None:
            self._began = time.monotonic() - max(shard.seconds for shard in shards)
        seconds = 0.0 if self._began is None else time.monotonic() - self._began
        return summary.progress_line(shards, seconds, None if self.max_time is None else self.max_time - seconds)


def call_pytest(request: Request, folder: Path, console: Console) -> int:
    """Run the campaign of a request for one target and return pytest's exit status; an interrupt saves its results."""
    with (folder / "pytest.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own call
            pytest_command(request, folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(request.out),
            process_group=0,  # an interrupt from the keyboard reaches it once, through _stop
        )
        try:
            _watch(process, ProgressLine(folder, request.max_time), console)
        except KeyboardInterrupt:
            console.print("Interrupted. Results so far:")
            _stop(process)
            return INTERRUPTED
        finally:
            _stop(process)
        return process.returncode


def pytest_command(request: Request, folder: Path) -> list[str]:
    """Return the pytest call for one target, which a user can paste; no settings of the caller's repository apply."""
    options = {
        "--fuzz-target": request.targets[0],
        "--fuzz-family": request.family,
        "--fuzz-backend": request.backend,
        "--fuzz-max-time": request.max_time,
        "--fuzz-max-cases": request.max_cases,
        "--fuzz-seed": request.seed,
        "--fuzz-workers": request.workers,
        "--fuzz-out": request.out,
        "--fuzz-run-folder": folder,
    }
    command = [sys.executable, "-m", "pytest", str(TEST_FILE), "-c", str(TEST_FILE.with_name("run.ini")), "-q"]
    command += ["--rootdir", str(folder), "-p", "no:cacheprovider"]
    if not entry_points(group="pytest11", name="fuzz_attn"):  # a checkout that is not installed
        command += ["-p", "fuzz_attn.pytest_plugin"]
    command += ["-n", str(request.workers)] if request.workers > 1 else ["-p", "no:xdist"]
    return command + [f"{name}={value}" for name, value in options.items() if value is not None]


def _environment(out: Path | None) -> dict[str, str]:
    """Return the environment without the caller's pytest settings, and with Hypothesis' files in the output folder."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")}
    return {**kept, "HYPOTHESIS_STORAGE_DIRECTORY": str(Path(out or "reports").resolve() / ".hypothesis")}


def _watch(process: subprocess.Popen[bytes], line: ProgressLine, console: Console) -> None:
    """Show the progress until pytest ends: a line that changes on a terminal, else a new line every ten seconds."""
    if not console.is_terminal:
        _watch_plainly(process, line, console)
        return
    words = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
    columns = (SpinnerColumn(), words)
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as progress:
        task = progress.add_task("starting")
        while process.poll() is None:
            progress.update(task, description=str(line))
            time.sleep(0.25)


def _watch_plainly(process: subprocess.Popen[bytes], line: ProgressLine, console: Console) -> None:
    while True:
        try:
            process.wait(timeout=PIPE_SECONDS)
            return
        except subprocess.TimeoutExpired:
            show(console, whole(str(line)))


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the campaign and its workers if they still run, and kill them if they do not end."""
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
