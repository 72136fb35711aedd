"""The command line: run, replay, show, coverage, audit, targets. Exit status 0 is well, 1 a failing case, 2 misuse."""

from __future__ import annotations

import math
import os
import secrets
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final, get_args

import click
from rich.console import Console, Group, RenderableType
from rich.padding import Padding

from fuzz_attn.backends import BACKEND_NAMES
from fuzz_attn.case.families import Family
from fuzz_attn.errors import FuzzAttnError

FIXTURES: Final = Path("tests") / "counterexamples"
SEEDED_BUGS: Final = Path(__file__).parents[1] / "mutation" / "seeded" / "tables"
DEFAULT_MAX_TIME: Final = 60.0

Command = Callable[..., int]


def _guarded(command: Command) -> Callable[..., None]:
    """Turn what the user can mend into one line on standard error and exit status 2."""

    @wraps(command)
    def guarded(**arguments: Any) -> None:
        try:
            status = command(**arguments)
        except FuzzAttnError as error:
            click.echo(f"fuzz-attn: {error}", err=True)
            status = 2
        sys.exit(status)

    return guarded


class _Workers(click.ParamType[int]):
    """A number of workers, or ``auto`` for one on each core."""

    name = "auto|N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "auto":
            return os.cpu_count() or 1
        try:
            workers = int(value)
        except ValueError:
            workers = 0
        if workers < 1:
            self.fail(f"{value!r} must be 'auto' or a number of at least 1", param, ctx)
        return workers


class _Seconds(click.ParamType[float]):
    """A time above 0 that ends."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            self.fail(f"{value!r} must be a finite number above 0", param, ctx)
        return seconds


_HOW_TO_NAME: Final = "A built-in name, module:function, path.py:function or entry point; default: {}."
_backend = click.option(
    "--backend",
    type=click.Choice(BACKEND_NAMES),
    default="auto",
    show_default=True,
    help="Where Triton kernels run; auto is the best one here.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fuzz-attn", prog_name="fuzz-attn")
def main() -> None:
    """Fuzz Triton paged-attention kernels against a float64 oracle.

    Exit status: 0 all is well, 1 a case fails, 2 the call or a file is wrong.
    """
    sys.path.insert(0, os.getcwd())  # modules of this folder are targets, as with `python -m`


@main.command()
@click.option(
    "--target",
    "targets",
    metavar="T",
    multiple=True,
    help=_HOW_TO_NAME.format("this project's own kernels, one family after the other") + " May be given several times.",
)
@click.option(
    "--family",
    type=click.Choice(get_args(Family)),
    help="The target's family; default: the one that fits its signature. Without a target: this project's own kernels.",
)
@_backend
@click.option("--max-time", type=_Seconds(), metavar="SECONDS", help="When to end, shrinking included.")
@click.option("--max-cases", type=click.IntRange(min=1), metavar="N", help="Cases of all workers together.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="What is drawn; default: a new one, printed.")
@click.option("--workers", type=_Workers(), default="auto", show_default=True, help="Processes side by side.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Where everything goes.")
@_guarded
def run(
    *,
    targets: tuple[str, ...],
    family: str | None,
    backend: str,
    max_time: float | None,
    max_cases: int | None,
    seed: int | None,
    workers: int,
    out: Path | None,
) -> int:
    """Fuzz targets; shrink and save what fails.

    Cases are drawn until the time or their number is spent, or until the first failure of each worker; several targets
    share both evenly. Without --max-time and --max-cases it runs for a minute. Counterexamples go to
    tests/counterexamples, the rest to reports; with --out, everything goes below that folder.
    """
    from fuzz_attn.cli.run import Request  # noqa: PLC0415 - each command loads what it needs alone
    from fuzz_attn.cli.run import run as run_campaign  # noqa: PLC0415 - as above

    if max_time is None and max_cases is None:
        max_time = DEFAULT_MAX_TIME
    seed = secrets.randbelow(2**32) if seed is None else seed
    names = targets or ((family,) if family else get_args(Family))
    for name in dict.fromkeys((names[0], *targets)):  # our own load if the first of them does
        _check_target(name, family, backend)
    return run_campaign(Request(names, family, backend, max_time, max_cases, seed, workers, out), Console())


def _check_target(target: str, family: str | None, backend: str) -> None:
    """Load the target once in a child, so that one that does not load is told in one line."""
    from fuzz_attn.engine.isolated_worker import IsolatedWorker  # noqa: PLC0415 - as above
    from fuzz_attn.engine.messages import Setup  # noqa: PLC0415 - as above

    with IsolatedWorker(Setup(target, family, backend)):  # type: ignore[arg-type] # click.Choice has checked the family
        pass


@main.command()
@click.argument("places", nargs=-1, metavar="[FILE_OR_DIR ...]", type=click.Path(path_type=Path))
@click.option("--target", metavar="T", help=_HOW_TO_NAME.format("that of the file"))
@_backend
@_guarded
def replay(*, places: tuple[Path, ...], target: str | None, backend: str) -> int:
    """Replay saved counterexamples: FAILED or FIXED; exit 1 if any fails.

    UNSEEN is a failure that only sanitizers see, on a backend without them: it counts as failing while its file is
    marked open. Without a file or folder, all of tests/counterexamples.
    """
    from fuzz_attn.counterexamples import counterexample  # noqa: PLC0415 - as above
    from fuzz_attn.engine import replay as replaying  # noqa: PLC0415 - as above
    from fuzz_attn.report.plain_text import show as print_out  # noqa: PLC0415 - as above

    if not places and not FIXTURES.is_dir():
        click.echo(f"no counterexamples: {FIXTURES} does not exist")
        return 0
    console, failed, unseen = Console(), 0, 0
    paths = tuple(counterexample.files_in(places or (FIXTURES,)))
    for replayed in replaying.replay(paths, target=target, backend=backend):
        print_out(console, _told(replayed))
        failed += replayed.still_fails
        unseen += replayed.status == "UNSEEN"
    print_out(console, f"{len(paths)} replayed, {failed} failed" + f", {unseen} unseen" * bool(unseen))
    return 1 if failed else 0


_COLOURS = {"FIXED": "bold green", "FAILED": "bold red", "UNSEEN": "bold yellow"}


def _told(replayed: Any) -> RenderableType:
    from fuzz_attn.report.plain_text import whole  # noqa: PLC0415 - as above

    line = whole("").append(f"{replayed.status:6}", _COLOURS[replayed.status])
    said = [replayed.verdict.message] * (not replayed.verdict.passed)
    said += ["only sanitizers can see this failure, and this backend has none"] * (replayed.status == "UNSEEN")
    said += ["its tensors are no longer the bits that it was saved with"] * replayed.drifted
    return Group(line.append(f"  {replayed.path}"), *(Padding(words, (0, 0, 0, 8)) for words in said))


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@_guarded
def show(*, file: Path) -> int:
    """Show a counterexample in words, and the command to run it again."""
    from fuzz_attn.counterexamples import counterexample  # noqa: PLC0415 - as above
    from fuzz_attn.report import failure  # noqa: PLC0415 - as above
    from fuzz_attn.report.plain_text import show as print_out  # noqa: PLC0415 - as above

    found = counterexample.load(file)
    console = Console()
    print_out(console, failure.render(found, file))
    versions = ", ".join(f"{name} {number}" for name, number in found.environment.versions.items())
    shims = ", ".join(found.environment.shims) or "none"
    print_out(console, f"Status {found.status}. Seen with {versions}; shims: {shims}.")
    return 0


@main.command()
@click.argument("run_folder", metavar="RUN_FOLDER", type=click.Path(path_type=Path))
@_guarded
def coverage(*, run_folder: Path) -> int:
    """List what a run never saw of its kernels, by source line.

    The simulator looks at the mask of every load, store and select, and at the condition of every branch and loop: was
    it all true, all false, or mixed in some program? What was never mixed is a boundary that no case tested. RUN_FOLDER
    is the folder that a run says it has written to, or the coverage.json in it.
    """
    from fuzz_attn.coverage.mask_coverage import load  # noqa: PLC0415 - as above
    from fuzz_attn.report.coverage_gaps import print_gaps  # noqa: PLC0415 - as above

    print_gaps(load(run_folder), Console(highlight=False))
    return 0


@main.command()
@click.option("--target", metavar="T", help=_HOW_TO_NAME.format("unified"))
@click.option(
    "--family",
    type=click.Choice(get_args(Family)),
    help="The target's family; default: the one that fits its signature.",
)
@click.option(
    "--seeded/--ir", default=None, help="Judge seeded bugs, which are edits of our kernels, or changes of the IR."
)
@click.option("--only", multiple=True, metavar="TEXT", help="Only mutants whose name contains TEXT, or one of several.")
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="Judge N mutants, chosen by the seed.")
@click.option(
    "--max-cases",
    type=click.IntRange(min=1),
    default=400,
    show_default=True,
    metavar="N",
    help="Cases for each mutant.",
)
@click.option(
    "--equivalent-after",
    type=click.IntRange(min=0),
    default=1000,
    show_default=True,
    metavar="N",
    help="Call a survivor equivalent after N cases that ran its change with the same bits; 0 is never.",
)
@click.option("--rules/--no-rules", default=True, show_default=True, help="Also evaluate two fixed tolerances.")
@click.option("--workers", type=_Workers(), default="auto", show_default=True, help="Processes side by side.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="What is drawn; default: a new one, printed.")
@click.option(
    "--fail-under", type=click.FloatRange(0, 100), metavar="PERCENT", help="Exit with 1 if fewer mutants are found."
)
@click.option(
    "--seeded-bugs",
    type=click.Path(path_type=Path),
    default=SEEDED_BUGS,
    show_default=True,
    metavar="DIR",
    help="Folder of seeded bugs: TOML files.",
)
@click.option(
    "--reasons",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Reasons why known survivors survive; default: those of our own kernels, in a checkout.",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Where the result goes.")
@_guarded
def audit(
    *,
    target: str | None,
    family: str | None,
    seeded: bool | None,
    only: tuple[str, ...],
    sample: int | None,
    max_cases: int,
    equivalent_after: int,
    rules: bool,
    workers: int,
    seed: int | None,
    fail_under: float | None,
    seeded_bugs: Path,
    reasons: Path | None,
    out: Path | None,
) -> int:
    """Put bugs into a target's kernels and see which of them the campaign finds.

    Every mutant is judged on the cases of a default campaign, in their order. Without --seeded and --ir: seeded bugs
    for the built-in targets, changes of the IR for all others.
    """
    from fuzz_attn.mutation import report  # noqa: PLC0415 - each command loads what it needs alone
    from fuzz_attn.mutation.audit import Request  # noqa: PLC0415 - as above
    from fuzz_attn.mutation.audit import audit as run_audit  # noqa: PLC0415 - as above
    from fuzz_attn.mutation.results import own_score  # noqa: PLC0415 - as above
    from fuzz_attn.mutation.survivors import load_reasons, own_reasons  # noqa: PLC0415 - as above
    from fuzz_attn.pytest_plugin import new_run_folder  # noqa: PLC0415 - as above
    from fuzz_attn.report.plain_text import show as print_out  # noqa: PLC0415 - as above
    from fuzz_attn.report.plain_text import whole  # noqa: PLC0415 - as above

    name = target or family or "unified"
    seeded = ":" not in name if seeded is None else seeded
    seed = secrets.randbelow(2**32) if seed is None else seed
    console, folder = Console(), new_run_folder(out)
    request = Request(
        target=name,
        family=family,  # type: ignore[arg-type] # click.Choice has checked it
        seeded_bugs=seeded_bugs if seeded else None,
        only=only,
        sample=sample,
        max_cases=max_cases,
        enough=equivalent_after,
        rules=rules,
        seed=seed,
        workers=workers,
        folder=folder,
    )
    print_out(console, whole(f"Auditing {name} with seed {seed}"))
    built_in = () if seeded or ":" in name else own_reasons()
    known = load_reasons(reasons) if reasons else built_in
    done = run_audit(request, console)
    print_out(console, report.render(done, known))
    print_out(console, whole(f"Written  {os.path.relpath(folder / 'audit.json')}"))
    return 1 if fail_under is not None and own_score(done.outcomes).percent < fail_under else 0


@main.command()
@_guarded
def targets() -> int:
    """List what can be fuzzed by name, and the domain of each."""
    from fuzz_attn.cli.listing import print_targets  # noqa: PLC0415 - as above

    print_targets(Console(highlight=False))
    return 0


if __name__ == "__main__":
    main()
