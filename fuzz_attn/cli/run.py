"""One run of the command line: compose the pytest call, show the live line while it goes, print the summary."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Column
from rich.text import Text

from fuzz_attn.counterexamples import counterexample
from fuzz_attn.coverage import mask_coverage
from fuzz_attn.engine.statistics import Statistics, merged, read_all
from fuzz_attn.pytest_plugin import new_run_folder, share_of
from fuzz_attn.report import failure, summary
from fuzz_attn.report.plain_text import count, show, whole

TEST_FILE: Final = Path(__file__).with_name("run_target.py")
STOP_SECONDS: Final = 15.0
"""An interrupted campaign saves what it has within this time, or is killed."""
INTERRUPTED: Final = 130
"""Exit status of shells for a program that was interrupted."""
PIPE_SECONDS: Final = 10.0
"""How often a line appears where the output is no terminal."""


@dataclass(frozen=True)
class Request:
    """What the user asked for, in the words of the command line; the budget is that of all targets together."""

    targets: tuple[str, ...]
    family: str | None
    backend: str
    max_time: float | None
    max_cases: int | None
    seed: int
    workers: int
    out: Path | None


class LiveLine:
    """What to say of a run while it goes; the clock runs on between the reports of the shards."""

    def __init__(self, folder: Path, max_time: float | None) -> None:
        self.folder = folder
        self.max_time = max_time
        self._began: float | None = None

    def __str__(self) -> str:
        shards = read_all(self.folder)
        if shards and self._began is None:
            self._began = time.monotonic() - max(shard.seconds for shard in shards)
        seconds = 0.0 if self._began is None else time.monotonic() - self._began
        return summary.live_line(shards, seconds, None if self.max_time is None else self.max_time - seconds)


def run(request: Request, console: Console) -> int:
    """Fuzz one target after the other and print what came of each; return the exit status: 0, or 1 on a failure.

    Returns 2 when pytest itself could not run a campaign; its output is printed then. When interrupted it says what
    was found so far, and returns 1 or 130. With several targets, each has a folder of its own in the run's.
    """
    folder = new_run_folder(request.out)
    statuses = []
    for part in parts(request):
        own = folder if part == request else folder / re.sub(r"[^\w.-]+", "-", part.targets[0])
        returned, failed = _fuzz(part, own, console)
        statuses.append(1 if failed else returned if returned in (0, INTERRUPTED) else 2)
        if returned == INTERRUPTED:
            break
    return 1 if 1 in statuses else max(statuses)


def parts(request: Request) -> Iterator[Request]:
    """Yield a request for each target, with its share of the budget; the cases add up exactly."""
    number = len(request.targets)
    for index, target in enumerate(request.targets):
        seconds = None if request.max_time is None else request.max_time / number
        cases = share_of(request.max_cases, index, number)
        if cases != 0:
            yield dataclasses.replace(request, targets=(target,), max_time=seconds, max_cases=cases)


def _fuzz(request: Request, folder: Path, console: Console) -> tuple[int, bool]:
    """Run the campaign of one target through pytest; return its exit status and whether a case failed."""
    folder.mkdir(parents=True, exist_ok=True)
    (target,) = request.targets
    show(console, whole(f"Fuzzing {target} with seed {request.seed}, {count(request.workers, 'worker')}"))
    returned = _call(request, folder, console)
    together = merged(read_all(folder))
    failed = together is not None and bool(together.counterexamples)
    if returned not in (0, INTERRUPTED) and not failed:
        show(console, Text((folder / "pytest.log").read_text(errors="replace").rstrip()))
    if together is not None:
        _conclude(together, folder, console)
    return returned, failed


def _call(request: Request, folder: Path, console: Console) -> int:
    """Call pytest and return its exit status; an interrupt lets it save what it has."""
    with (folder / "pytest.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own call
            pytest_command(request, folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(request.out),
            process_group=0,  # an interrupt from the keyboard reaches it once, from here
        )
        try:
            _watch(process, LiveLine(folder, request.max_time), console)
        except KeyboardInterrupt:
            console.print("Interrupted. What was found so far:")
            _stop(process)
            return INTERRUPTED
        finally:
            _stop(process)
        return process.returncode


def _environment(out: Path | None) -> dict[str, str]:
    """Return the environment of the pytest call: no pytest settings of the caller, Hypothesis' files out of the way."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")}
    return {**kept, "HYPOTHESIS_STORAGE_DIRECTORY": str(Path(out or "reports").resolve() / ".hypothesis")}


def pytest_command(request: Request, folder: Path) -> list[str]:
    """Return the pytest call that a run is: anybody can paste it. No settings of the caller's repository leak in."""
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
    if not entry_points(group="pytest11", name="fuzz_attn"):  # run from a checkout that is not installed
        command += ["-p", "fuzz_attn.pytest_plugin"]
    command += ["-n", str(request.workers)] if request.workers > 1 else ["-p", "no:xdist"]
    return command + [f"{name}={value}" for name, value in options.items() if value is not None]


def _watch(process: subprocess.Popen[bytes], line: LiveLine, console: Console) -> None:
    """Show the live line until pytest ends; on a plain pipe, a line every ten seconds."""
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


def _watch_plainly(process: subprocess.Popen[bytes], line: LiveLine, console: Console) -> None:
    while True:
        try:
            process.wait(timeout=PIPE_SECONDS)
            return
        except subprocess.TimeoutExpired:
            show(console, whole(str(line)))


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the campaign with all its workers, if it still runs, and kill it if it does not end."""
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _conclude(together: Statistics, folder: Path, console: Console) -> None:
    """Print every failure, then the summary, then where everything is."""
    for name in together.counterexamples:
        found = counterexample.load(Path(name))
        show(console, failure.render(found, Path(name)))
        show(console, "")
    show(console, summary.render(together))
    path = folder / "summary.json"
    numbers = msgspec.to_builtins(together)
    del numbers["masks"]  # they have a file of their own, coverage.json
    path.write_bytes(msgspec.json.format(msgspec.json.encode(numbers), indent=1) + b"\n")
    written = (os.path.relpath(path), os.path.relpath(folder / mask_coverage.FILE_NAME), *together.counterexamples)
    for index, name in enumerate(written):
        show(console, whole(f"{'' if index else 'Written':9}{shlex.quote(name)}"))
