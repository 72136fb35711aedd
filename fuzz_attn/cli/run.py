"""``fuzz-attn run`` and ``merge``: fuzz targets, shrink and save failures, and unite the results of several runs."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fuzz_attn.api import LARGEST_NUMBER
from fuzz_attn.cli.campaigns import (
    Documents,
    Request,
    documents_options,
    finish,
    print_report,
    run_campaigns,
    run_on_ray,
)
from fuzz_attn.cli.options import (
    FILE,
    OUTPUT_DIRECTORY,
    Output,
    Seconds,
    Shard,
    backend_option,
    binding_option,
    exits,
    family_option,
    memory_option,
    seed_option,
    stated_binding,
    target_option,
    workers_option,
)
from fuzz_attn.engine.events import Part
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.merging import merge as merge_runs
from fuzz_attn.engine.orders import Setup
from fuzz_attn.errors import BindingError, FuzzAttnError
from fuzz_attn.operations.registry import FAMILIES
from fuzz_attn.report.printing import console, safe
from fuzz_attn.settings import DEFAULT_MAX_TIME


@click.command()
@target_option("this project's own kernels, one family after the other", "targets", multiple=True)
@family_option
@binding_option
@backend_option
@click.option("--max-time", type=Seconds(), metavar="SECONDS", help="Time limit, shrinking included.")
@click.option(
    "--max-cases", type=click.IntRange(1, LARGEST_NUMBER), metavar="N", help="Case limit for all workers together."
)
@click.option(
    "--until-flat", type=Seconds(), metavar="SECONDS", help="End a target's run when nothing was new for so long."
)
@click.option(
    "--continue", "continued", is_flag=True, help="First draw what no earlier run in the output directory has."
)
@seed_option
@workers_option
@click.option("--shard", type=Shard(), default="1/1", help="One of n parts on n machines; give all the same --seed.")
@click.option("--ray", "ray", metavar="ADDRESS", help="Fuzz on a Ray cluster; auto is the one that Ray finds.")
@click.option(
    "--gpu-share",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    metavar="PART",
    default=0.125,
    show_default=True,
    help="With --ray: the part of a GPU that a worker gets.",
)
@click.option(
    "--mps/--no-mps", default=True, help="Let workers share a GPU through CUDA's Multi-Process Service (the default)."
)
@click.option("--strict", is_flag=True, help="Count a case that the target refuses as a failure.")
@click.option("--out", type=Output(), metavar="DIR", help="Output directory, or the address of one: s3://bucket/dir.")
@memory_option
@documents_options
@exits
def run(
    *,
    targets: tuple[str, ...],
    family: str | None,
    binding: Path | None,
    backend: str,
    max_time: float | None,
    max_cases: int | None,
    until_flat: float | None,
    continued: bool,
    seed: int,
    workers: int,
    shard: Part,
    ray: str | None,
    gpu_share: float,
    mps: bool,
    strict: bool,
    out: Path | str | None,
    memory: int,
    **documents: Any,
) -> int:
    """Fuzz targets; shrink and save their failures.

    A run ends at its time or case limit. Several targets share both limits evenly. Without --max-time and --max-cases a
    run takes one minute. Counterexamples are saved in tests/counterexamples and everything else in reports; with --out,
    all of it is saved in that directory; at an address, when the run ends. The table [tool.fuzz_attn] of the nearest
    pyproject.toml can hold other defaults, with the names of the options. Of the folders in reports/runs only the
    newest 20 are kept.

    With --until-flat, a run ends when no compile key, no failure and no outcome of a mask was new for so long, and has
    no other limits but those that are given. With --continue, compile keys come first that no earlier run covered, as
    the summary.json of the run folders in the output directory say.

    With --shard i/n, the run is a part of a larger one with n times the workers, whose cases --max-cases limits.
    `fuzz-attn merge` unites the parts.

    With --ray, the workers are actors of a Ray cluster, as many as it has room for. What they find comes back as
    messages.

    Exit status: 0 no case fails, 1 a case fails, 2 fewer than one in ten cases were judged or something is wrong, 128
    and the number of a signal that ended the run before it found a failure. Known failures do not count, nor does a
    launch that was too slow once, when no time was left to try it again.
    """
    if binding is not None and _is_given("targets") and not _is_given("binding"):
        binding = None  # the settings state it for their own target
    if binding is not None and len(targets) != 1:
        raise BindingError("--binding needs exactly one --target")
    if ray is None and _is_given("gpu_share"):
        raise FuzzAttnError(f"--gpu-share={gpu_share:g} needs --ray: without it, workers share the GPUs in turn")
    if max_time is None and max_cases is None and until_flat is None:
        max_time = DEFAULT_MAX_TIME
    if family and targets and _is_given("targets") and not _is_given("family"):
        family = None  # the settings name it for their own target
    names = targets or ((family,) if family else tuple(FAMILIES))
    if ray is None:
        for name in dict.fromkeys(targets[1:]):  # the first loads at once, and the built-in targets load if it does
            _check_target(name, family, backend)
    _check_part(shard, max_cases, len(names))
    limits, stated = (max_time, max_cases, seed, workers), stated_binding(binding)
    with _local(out) as folder:
        request = Request(
            names, family, backend, *limits, folder, memory, Documents(**documents), strict, stated, shard
        )
        request = dataclasses.replace(request, until_flat=until_flat, continued=continued, mps=mps)
        if ray is None:
            status = run_campaigns(request)
        else:
            status = run_on_ray(ray, request, gpu_share, workers if _is_given("workers") else None)
    if isinstance(out, str):
        click.echo(f"Sent     {safe(out)}", err=True)
    return status


def _local(out: Path | str | None) -> AbstractContextManager[Path | None]:
    """Return a context with a local folder to write to."""
    if not isinstance(out, str):
        return nullcontext(out)
    from fuzz_attn.cli.remote_output import remote_output  # noqa: PLC0415 - fsspec starts slowly

    return remote_output(out)


def _check_part(part: Part, max_cases: int | None, targets: int) -> None:
    """Raise :class:`FuzzAttnError` for a part that would draw other cases than the others expect, or none."""
    if part.of == 1:
        return
    option, fewest = f"--shard {part.number}/{part.of}", part.of * targets
    if not _is_given("seed"):
        raise FuzzAttnError(f"{option} needs --seed, the same number for all parts")
    if max_cases is not None and max_cases < fewest:
        each = "each part" + " of each target" * (targets > 1)
        raise FuzzAttnError(f"--max-cases={max_cases} must be at least {fewest} with {option}: one case for {each}")


def _is_given(parameter: str) -> bool:
    """Return whether the command line names an option."""
    return click.get_current_context().get_parameter_source(parameter) is ParameterSource.COMMANDLINE


def _check_target(target: str, family: str | None, backend: str) -> None:
    """Load the target once in a child process, so that an error is reported before any fuzzing."""
    with IsolatedWorker(Setup(target, family, backend)):
        pass


@click.command()
@click.argument("places", nargs=-1, required=True, metavar="DIR...", type=FILE)
@click.option("--out", required=True, type=OUTPUT_DIRECTORY, metavar="DIR", help="Where the results are written.")
@documents_options
@exits
def merge(*, places: tuple[Path, ...], out: Path, **documents: Any) -> int:
    """Unite the results of several runs, such as the parts of `run --shard`.

    DIR is an output directory or a folder of a run. Results merged into the output directory before stay: merging a run
    again changes nothing. A bug that several runs found is reported once. The output directory has a folder of a run
    for each target, and the counterexamples; a status that you give to one of them stays.

    The exit status is that of one run: 0 no case fails but known failures, 1 a case fails, 2 too few were judged or a
    part is missing or was cut off, whatever the others found, 128 plus the number of the signal that ended a part.
    """
    printer = console(stderr=documents["json"])
    merged = merge_runs(places, out)
    for run in merged:
        print_report(run.report, run.folder, printer, verbose=documents["verbose"])
    return finish([run.report for run in merged], Documents(**documents), is_whole=all(run.is_whole for run in merged))
