"""``fuzz-attn run`` and ``merge``: fuzz targets, shrink and save failures, and unite the results of several runs.

There is one run for each target, here or on a Ray cluster, whose results are printed and saved.
"""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import click
import msgspec
from click.core import ParameterSource
from rich.console import Console

from fuzz_attn.api import LARGEST_NUMBER
from fuzz_attn.backends import kernel_coverage
from fuzz_attn.binding.binding import Binding
from fuzz_attn.cli.options import (
    FILE,
    OUTPUT_DIRECTORY,
    Decorated,
    Output,
    Seconds,
    Shard,
    annotations_option,
    backend_option,
    binding_option,
    exits,
    family_option,
    markdown_option,
    memory_option,
    seed_option,
    stated_binding,
    target_option,
    workers_option,
)
from fuzz_attn.engine.events import ONLY_PART, Part
from fuzz_attn.engine.fuzz_run import SIGNALS, run_and_log
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.listeners.event_log import LOG_NAME
from fuzz_attn.engine.listeners.results import BROKEN, FAILED, INTERRUPTED, RunReport
from fuzz_attn.engine.listeners.statistics import Statistics
from fuzz_attn.engine.merging import merge as merge_runs
from fuzz_attn.engine.orders import Setup
from fuzz_attn.engine.run_folder import (
    SUMMARY_NAME,
    counterexample_folder,
    covered_keys,
    folder_name,
    new_run_folder,
    prune,
    runs_folder,
)
from fuzz_attn.engine.run_plan import RunPlan, share_of
from fuzz_attn.engine.shards import Shards
from fuzz_attn.errors import BindingError, FuzzAttnError, OutputError
from fuzz_attn.foreign_files import write_new
from fuzz_attn.operations.registry import FAMILIES
from fuzz_attn.report import failure, run_documents, summary
from fuzz_attn.report.outcome import outcome
from fuzz_attn.report.printing import console, safe, show, whole
from fuzz_attn.report.run_documents import json_document, json_numbers, save_junit
from fuzz_attn.report.summary import Terminal
from fuzz_attn.settings import DEFAULT_MAX_TIME


@dataclass(frozen=True)
class Documents:
    """The documents to write at the end, beside the text on the terminal, and how much that says."""

    junit: Path | None = None
    json: bool = False
    markdown: Path | None = None
    annotations: bool = False
    verbose: bool = False


def documents_options(command: Decorated) -> Decorated:
    """Add the options of :class:`Documents` to a command."""
    junit = click.option("--junit", type=FILE, metavar="FILE", help="Also write the results as JUnit XML.")
    json = click.option("--json", is_flag=True, help="Print one JSON document on stdout, all else on stderr.")
    verbose = click.option("-v", "--verbose", is_flag=True, help="Also print how the run went: features, relations.")
    return junit(json(markdown_option(annotations_option(verbose(command)))))


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
    out: Path | None = None
    memory: int = 0
    documents: Documents = Documents()
    strict: bool = False
    binding: Binding | None = None
    part: Part = ONLY_PART
    until_flat: float | None = None
    continued: bool = False
    mps: bool = True


def run_campaigns(request: Request, shards: Callable[[RunPlan], Shards | None] = lambda plan: None) -> int:
    """Fuzz one target after the other, print and save the results, and return the exit status.

    With several targets, each has its own folder in the run's folder. A signal ends the run after its target.
    ``shards`` says where the shards of a run are; None is this machine.
    """
    printer = console(stderr=request.documents.json)
    folder = new_run_folder(request.out)
    reports = []
    with signals_after_results() as came:
        for part in parts(request):
            own = folder if part == request else folder / folder_name(part.targets[0])
            reports.append(_fuzz(part, own, printer, shards))
            if reports[-1].stopped_by or came:
                break
        if len(request.targets) > 1:
            show(printer, whole(f"Run folder  {shlex.quote(os.path.relpath(folder))}"))
        status = finish(reports, request.documents)
        prune(folder.parent)
    return INTERRUPTED + came[0] if came and status not in (FAILED, BROKEN) else status


@contextmanager
def signals_after_results() -> Iterator[Sequence[int]]:
    """Let no single signal cut off the results of a run, which handles signals itself; yield those that came beside it.

    Whoever interrupts a run twice may do so the second time while its results are printed. A second one beside the run
    interrupts: what is printed to may not read.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def finish(reports: list[RunReport], documents: Documents, *, is_whole: bool = True) -> int:
    """Print the errors of all targets, write the documents that were asked for, and return the exit status.

    It is 2 where the results are not the ``whole``, as when a part of a run is missing.
    """
    for error in (problem for report in reports for problem in report.problems):
        click.echo(f"fuzz-attn: {safe(error)}", err=True)
    status = exit_status(reports) if is_whole else BROKEN
    if documents.json:
        click.echo(json_document(reports, status))
    if documents.junit is not None:
        save_junit(reports, documents.junit)
    if documents.markdown is not None:
        run_documents.append_markdown(documents.markdown, run_documents.markdown_of_run(reports, status))
    if documents.annotations:
        for line in run_documents.annotations_of_run(reports):
            click.echo(line, err=documents.json)
    return status


def exit_status(reports: list[RunReport]) -> int:
    """Return 1 if a case of any target failed, as for one target, else the largest exit status of a target."""
    statuses = [report.exit_status for report in reports]
    return FAILED if FAILED in statuses else max(statuses)


def parts(request: Request) -> Iterator[Request]:
    """Yield a request for each target, with its share of both limits; the cases add up exactly."""
    number = len(request.targets)
    for index, target in enumerate(request.targets):
        seconds = None if request.max_time is None else request.max_time / number
        cases = share_of(request.max_cases, index, number)
        if cases != 0:
            yield dataclasses.replace(request, targets=(target,), max_time=seconds, max_cases=cases)


def _fuzz(request: Request, folder: Path, printer: Console, shards: Callable[[RunPlan], Shards | None]) -> RunReport:
    """Run the campaign of one target, print its results, and return its report."""
    plan = _plan(request, folder)
    try:
        with Terminal(printer) as terminal:
            report = run_and_log(plan, terminal, tick=terminal.tick, shards=shards(plan))
    except OutputError:
        raise
    except FuzzAttnError as error:
        return RunReport(Statistics(plan.setup.target, seed=plan.seed), errors=(str(error),))
    if report.stopped_by:
        show(printer, "Interrupted. Results so far:")
    print_report(report, folder, printer, verbose=request.documents.verbose)
    return report


def _plan(request: Request, folder: Path) -> RunPlan:
    (target,) = request.targets
    return RunPlan(
        setup=Setup(
            target,
            request.family,
            request.backend,
            request.strict,
            request.memory,
            request.binding,
        ),
        seed=request.seed,
        workers=request.workers,
        max_time=request.max_time,
        max_cases=request.max_cases,
        run_folder=folder,
        counterexamples=counterexample_folder(request.out),
        part=request.part,
        until_flat=request.until_flat,
        mps=request.mps,
        covered=covered_keys(runs_folder(request.out), target) if request.continued else frozenset(),
    )


def print_report(report: RunReport, folder: Path, printer: Console, *, verbose: bool = False) -> None:
    """Print the results of one target, write them into its folder, and print the names of all files.

    The verdict and the failures come last, where a terminal shows them; ``verbose`` also prints how the run went.
    """
    _print_results(report, printer, verbose)
    _print_files(_save(report, folder), printer)
    show(printer, whole(f"{'Page':9}{failure.program()} report {shlex.quote(os.path.relpath(folder))}"))


def _print_results(report: RunReport, printer: Console, verbose: bool) -> None:
    for found in report.failures:
        if found.followed and not found.known:
            path, headline = Path(found.path) if found.path else None, failure.run_headline(found.counterexample)
            show(printer, failure.render(found.counterexample, path, headline))
            show(printer, "")
    for found in report.failures:
        if found.known:
            show(printer, failure.known_line(found.counterexample, found.path))
    show(printer, summary.render(report.statistics, everything=verbose))
    for note in report.notes:
        show(printer, f"Note: {note}")
    show(printer, "")
    show(printer, outcome(report))


def _save(report: RunReport, folder: Path) -> list[str]:
    """Write ``summary.json`` and ``coverage.json``; return the paths of all files of the run that no command names."""
    path = folder / SUMMARY_NAME
    try:
        write_new(path, msgspec.json.format(msgspec.json.encode(json_numbers(report.statistics)), indent=1) + b"\n")
        covered = kernel_coverage.save([report.statistics.coverage], folder)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error
    own = [os.path.relpath(name) for name in (path, covered, folder / LOG_NAME)]
    return own + [found.path for found in report.failures if found.path and not found.followed]


def _print_files(names: list[str], printer: Console) -> None:
    for index, name in enumerate(names):
        show(printer, whole(f"{'' if index else 'Written':9}{shlex.quote(name)}"))


def run_on_ray(address: str, request: Request, gpu_share: float, workers: int | None) -> int:
    """Fuzz as :func:`run_campaigns` does, on a cluster, and return the exit status.

    On a GPU each worker gets ``gpu_share`` of one. ``workers`` is by default as many as the cluster has room for.
    """
    from fuzz_attn.engine.ray_shards import RayCluster, RayShards  # noqa: PLC0415 - the extra may be missing

    with RayCluster(address) as cluster:
        backend = request.backend
        if backend == "auto":
            backend = "cuda" if cluster.total("GPU") else "simulator"
        share = gpu_share if backend == "cuda" else 0.0
        workers = workers or _room(cluster.total("CPU"), cluster.total("GPU"), share)
        placed = dataclasses.replace(request, backend=backend, workers=workers, mps=False)
        return run_campaigns(placed, lambda plan: RayShards(plan.run_folder, plan.counterexamples, share))


def _room(processors: float, gpus: float, share: float) -> int:
    """Return how many workers fit on a cluster at once; raises FuzzAttnError if none does."""
    room = math.floor(min(processors, gpus / share) if share else processors)
    if not room:
        needed = f"a processor and {share:g} of a GPU" if share else "a processor"
        raise FuzzAttnError(
            f"--ray: each worker needs {needed}, and the cluster has {processors:g} and {gpus:g} of them"
        )
    return room


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
