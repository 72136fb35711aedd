"""``fuzz-attn run``: fuzz targets, shrink and save their failures."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click
from rich.console import Console

from fuzz_attn.case.families import Family
from fuzz_attn.cli.campaign import run_campaigns
from fuzz_attn.cli.options import (
    Seconds,
    backend_option,
    exits,
    family_option,
    out_option,
    seed_option,
    target_option,
    workers_option,
)
from fuzz_attn.cli.pytest_call import Request
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.messages import Setup
from fuzz_attn.pytest_plugin import DEFAULT_MAX_TIME


@click.command()
@target_option("this project's own kernels, one family after the other", "targets", multiple=True)
@family_option
@backend_option
@click.option("--max-time", type=Seconds(), metavar="SECONDS", help="Time limit, shrinking included.")
@click.option("--max-cases", type=click.IntRange(min=1), metavar="N", help="Case limit for all workers together.")
@seed_option
@workers_option
@out_option
@exits
def run(
    *,
    targets: tuple[str, ...],
    family: str | None,
    backend: str,
    max_time: float | None,
    max_cases: int | None,
    seed: int,
    workers: int,
    out: Path | None,
) -> int:
    """Fuzz targets; shrink and save their failures.

    A run ends at its time or case limit, or when each worker has found a failure. Several targets share both limits
    evenly. Without --max-time and --max-cases a run takes one minute. Counterexamples are saved in
    tests/counterexamples and everything else in reports; with --out, all of it is saved in that directory.
    """
    if max_time is None and max_cases is None:
        max_time = DEFAULT_MAX_TIME
    names = targets or ((family,) if family else get_args(Family))
    for name in dict.fromkeys((names[0], *targets)):  # the built-in targets load if the first of them does
        _check_target(name, family, backend)
    return run_campaigns(Request(names, family, backend, max_time, max_cases, seed, workers, out), Console())


def _check_target(target: str, family: str | None, backend: str) -> None:
    """Load the target once in a child process, so that an error is reported in one line."""
    with IsolatedWorker(Setup(target, family, backend)):  # type: ignore[arg-type] # click.Choice has checked the family
        pass
