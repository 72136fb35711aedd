"""The campaigns of ``fuzz-attn run``: one for each target, its results printed and saved."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from fuzz_attn.cli.pytest_call import INTERRUPTED, Request, call_pytest
from fuzz_attn.counterexamples import counterexample
from fuzz_attn.coverage import mask_coverage
from fuzz_attn.engine.run_folder import folder_name, new_run_folder
from fuzz_attn.engine.statistics import Statistics, merged, read_all
from fuzz_attn.pytest_plugin import share_of
from fuzz_attn.report import failure, summary
from fuzz_attn.report.plain_text import count, show, whole


def run_campaigns(request: Request, console: Console) -> int:
    """Fuzz one target after the other, print the results, and return the exit status: 0, or 1 on a failure.

    Return 2 when pytest could not run a campaign; its output is printed then. After an interrupt, print the results so
    far and return 1 or 130. With several targets, each has its own folder in the run's folder.
    """
    folder = new_run_folder(request.out)
    statuses = []
    for part in parts(request):
        own = folder if part == request else folder / folder_name(part.targets[0])
        returned, failed = _fuzz(part, own, console)
        statuses.append(1 if failed else returned if returned in (0, INTERRUPTED) else 2)
        if returned == INTERRUPTED:
            break
    if len(request.targets) > 1:
        show(console, whole(f"Run folder  {shlex.quote(os.path.relpath(folder))}"))
    return 1 if 1 in statuses else max(statuses)


def parts(request: Request) -> Iterator[Request]:
    """Yield a request for each target, with its share of both limits; the cases add up exactly."""
    number = len(request.targets)
    for index, target in enumerate(request.targets):
        seconds = None if request.max_time is None else request.max_time / number
        cases = share_of(request.max_cases, index, number)
        if cases != 0:
            yield dataclasses.replace(request, targets=(target,), max_time=seconds, max_cases=cases)


def _fuzz(request: Request, folder: Path, console: Console) -> tuple[int, bool]:
    """Run the campaign of one target; return pytest's exit status and whether a case failed."""
    folder.mkdir(parents=True, exist_ok=True)
    (target,) = request.targets
    show(console, whole(f"Fuzzing {target} with seed {request.seed}, {count(request.workers, 'worker')}"))
    returned = call_pytest(request, folder, console)
    statistics = merged(read_all(folder))
    failed = statistics is not None and bool(statistics.counterexamples)
    if returned not in (0, INTERRUPTED) and not failed:
        show(console, Text((folder / "pytest.log").read_text(errors="replace").rstrip()))
    if statistics is not None:
        _print_results(statistics, console)
        _print_files([_save_summary(statistics, folder), *_other_files(statistics, folder)], console)
    return returned, failed


def _print_results(statistics: Statistics, console: Console) -> None:
    for name in statistics.counterexamples:
        show(console, failure.render(counterexample.load(Path(name)), Path(name)))
        show(console, "")
    show(console, summary.render(statistics))


def _save_summary(statistics: Statistics, folder: Path) -> str:
    """Write ``summary.json`` without the masks, which are in ``coverage.json``; return its path."""
    numbers = msgspec.to_builtins(statistics)
    del numbers["masks"]
    path = folder / "summary.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(numbers), indent=1) + b"\n")
    return os.path.relpath(path)


def _other_files(statistics: Statistics, folder: Path) -> tuple[str, ...]:
    return (os.path.relpath(folder / mask_coverage.FILE_NAME), *statistics.counterexamples)


def _print_files(names: list[str], console: Console) -> None:
    for index, name in enumerate(names):
        show(console, whole(f"{'' if index else 'Written':9}{shlex.quote(name)}"))
