"""Failure files: the commands ``replay``, ``show``, ``explain``, ``export`` and ``mark`` for saved counterexamples."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final, Literal

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from fuzz_attn import counterexamples
from fuzz_attn.cli.options import (
    FILE,
    WORDS,
    Seconds,
    annotations_option,
    backend_option,
    binding_option,
    exits,
    markdown_option,
    memory_option,
    stated_binding,
    target_option,
)
from fuzz_attn.counterexamples import Counterexample, trusted_call
from fuzz_attn.engine.isolated_worker import LAUNCH_SECONDS
from fuzz_attn.engine.replay import Replayed, explanation_of
from fuzz_attn.engine.replay import replay as replay_files
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.report import failure, run_documents
from fuzz_attn.report import printing as output
from fuzz_attn.report.printing import console, safe, save_picture, whole
from fuzz_attn.report.run_documents import append_markdown, markdown_of_replay
from fuzz_attn.report.summary import Waiting
from fuzz_attn.settings import load_settings


@click.command()
@click.argument("file", type=FILE)
@click.option("--svg", type=FILE, metavar="FILE", help="Also save the output as a picture of a terminal.")
@exits
def show(*, file: Path, svg: Path | None) -> int:
    """Show a saved failure and the command that replays it."""
    found = counterexamples.load(file)
    shown = Group(failure.render(found, file), origin(found))
    output.show(Console(), shown)
    if svg is not None:
        save_picture(shown, svg, title=f"fuzz-attn show {file}")
    return 0


def origin(found: Counterexample) -> RenderableType:
    """Return the status of a counterexample and the environment that it was found in."""
    versions = ", ".join(f"{name} {number}" for name, number in found.environment.versions.items())
    shims = ", ".join(found.environment.shims) or "none"
    return f"Status {found.status}. Found with {versions}; shims: {shims}."


@click.command()
@click.argument("file", type=FILE)
@target_option("the target named in the file")
@binding_option
@click.option(
    "--healthy",
    type=WORDS,
    metavar="T",
    default="",
    help="A target that is right on the case, named as for --target: name the first operation that differs from it.",
)
@click.option("--trust", is_flag=True, help="Run the target that the file names, called as it says.")
@backend_option
@memory_option
@click.option("--svg", type=FILE, metavar="FILE", help="Also save the output as a picture of a terminal.")
@exits
def explain(
    *,
    file: Path,
    target: str | None,
    binding: Path | None,
    healthy: str,
    trust: bool,
    backend: str,
    memory: int,
    svg: Path | None,
) -> int:
    """Explain a saved failure: which key, row, head or factor is wrong.

    The target is called again with other numbers in the same case. V made of unit vectors shows which keys each query
    attends, and how much. Where a small case leaves several reasons, larger ones of the same kind are tried. A file
    does not choose what code runs: unless it names a built-in target, an installed entry point or the target of the
    settings, it needs --target or --trust.

    In the simulator, one change of the kernel, or of an argument, is looked for that makes the case right. That takes
    up to 20 seconds, and 15 more if constants are tried too. Your files are not changed.

    With --healthy, for example an earlier version of the kernel, both run the case in the simulator, and the first
    operation is named whose value differs.
    """
    explained = explanation_of(
        file,
        target=target,
        backend=backend,
        memory=memory,
        trust=trust,
        named=load_settings().targets,
        binding=stated_binding(binding),
        healthy=healthy,
    )
    headline = failure.headline(explained.found, explained.verdict)
    needed = failure.needs_lines(explained.found)
    shown = Group(headline, *needed, failure.render_explanation(explained.explanation))
    output.show(output.console(), shown)
    if svg is not None:
        save_picture(shown, svg, title=f"fuzz-attn explain {file}")
    return 0


@click.command()
@click.argument("file", type=FILE)
@click.option("--script", type=FILE, required=True, metavar="FILE", help="The script to write.")
@target_option("the target named in the file")
@binding_option
@click.option("--trust", is_flag=True, help="Run the target that the file names, called as it says.")
@exits
def export(*, file: Path, script: Path, target: str | None, binding: Path | None, trust: bool) -> int:
    """Write a script that shows a saved failure.

    The script contains the tensors, the call, the expected output and its error bound. It needs torch and the target
    only, to paste into a report or to run under compute-sanitizer. It exits with 1 while the target is wrong. Large
    tensors go to a safetensors file beside it. A file does not choose what code runs: unless it names a
    built-in target, an installed entry point or the target of the settings, it needs --target or --trust.
    """
    found = counterexamples.load(file)
    name, stated = trusted_call(
        file, found, target, stated_binding(binding), trust=trust, named=load_settings().targets
    )
    from fuzz_attn.export.script import exported  # noqa: PLC0415 - imports torch, which other commands do without

    for path in exported(found, name, stated).save(script):
        click.echo(safe(f"written  {path}"))
    return 0


@click.command()
@click.argument("file", type=FILE)
@click.argument("status", type=click.Choice(("known", "fixed", "open")))
@click.option("--because", type=WORDS, metavar="TEXT", default="", help="Why it is accepted; needed for known.")
@click.option(
    "--reference",
    type=WORDS,
    metavar="TEXT",
    default="",
    help="Its number or address in a tracker; needed for known.",
)
@exits
def mark(*, file: Path, status: Literal["known", "fixed", "open"], because: str, reference: str) -> int:
    """Mark a saved failure as known, fixed or open.

    A known failure is played first and counted in every campaign, and does not fail it. A fixed one that fails again is
    a regression, which does.
    """
    found = counterexamples.load(file)
    if status == "known" and not (because.strip() and reference.strip()):
        raise click.UsageError("the status known needs --reference '#12' and --because 'waits for the next release'")
    if status != "known" and (because or reference):
        raise click.UsageError(f"--because and --reference belong to the status known, not to {status}")
    marked = msgspec.structs.replace(found, status=status, because=because, reference=reference)
    counterexamples.overwrite(marked, file)
    click.echo(safe(f"{file}: {status}"))
    return 0


FOLDER: Final = Path("tests") / "counterexamples"
COLOURS: Final = {
    "FIXED": "bold green",
    "PASSES": "bold green",
    "FAILED": "bold red",
    "CHANGED": "bold red",
    "REGRESSED": "bold red",
    "KNOWN": "bold yellow",
    "UNSEEN": "bold yellow",
    "REFUSED": "bold yellow",
}


@click.command()
@click.argument("places", nargs=-1, metavar="[FILE_OR_DIR ...]", type=FILE)
@target_option("the target named in the file")
@binding_option
@click.option("--trust", is_flag=True, help="Run the targets that the files name, called as they say.")
@backend_option
@memory_option
@click.option(
    "--launch-limit",
    type=Seconds(),
    metavar="SECONDS",
    default=LAUNCH_SECONDS,
    show_default=True,
    help="After how long a launch counts as a hang.",
)
@click.option("--in-process", is_flag=True, help="Run the target in this process, so that print and breakpoint work.")
@markdown_option
@annotations_option
@exits
def replay(
    *,
    places: tuple[Path, ...],
    target: str | None,
    binding: Path | None,
    trust: bool,
    backend: str,
    memory: int,
    launch_limit: float,
    in_process: bool,
    markdown: Path | None,
    annotations: bool,
) -> int:
    """Replay saved counterexamples.

    Print FAILED or FIXED for each and exit with 1 if any fails. The default is all of tests/counterexamples. KNOWN
    fails as its file says and is no failure of the replay, PASSES is a known one that passes now, and REGRESSED is a
    fixed one that fails again. CHANGED is a known or fixed one that fails in another way than its file says, or also
    in another way, and is a failure. REFUSED means that the target or the compiler refuses the case now, or that the
    target does not promise what the case has. UNSEEN means that the failure is flaky, that only sanitizers can see it
    and the backend has none, or that only another backend shows it, such as a GPU; it counts as a failure while the
    file's status is open. If none fails and a file cannot be replayed, the exit status is 2. A file does not choose
    what code runs: unless it names a built-in target, an installed entry point or the target of the settings, it needs
    --target or --trust.
    """
    if not places and not any(FOLDER.rglob("*.json")):
        click.echo(f"no counterexamples: {FOLDER} {'holds none' if FOLDER.is_dir() else 'does not exist'}")
        return 0
    paths = tuple(counterexamples.files_in(places or (FOLDER,)))
    printer, counts, done, errors = console(), Counter[str](), list[Replayed](), list[str]()

    def report(path: Path, error: FuzzAttnError) -> None:
        waiting.stop()
        named = str(error).startswith(f"{path}: ")
        errors.append(safe(str(error) if named else f"{path}: {error}"))
        click.echo(f"fuzz-attn: {errors[-1]}", err=True)
        counts["not replayed"] += 1

    named = load_settings().targets
    with Waiting(console(stderr=True)) as waiting:
        for replayed in replay_files(
            paths,
            target=target,
            backend=backend,
            memory=memory,
            in_process=in_process,
            trust=trust,
            named=named,
            binding=stated_binding(binding),
            launch_seconds=launch_limit,
            on_start=lambda path: None if in_process else waiting.start(f"Replaying {path}"),
            on_error=report,
        ):
            waiting.stop()
            done.append(replayed)
            output.show(printer, _result(replayed))
            counts["failed"] += replayed.still_fails
            counts["unseen"] += replayed.status == "UNSEEN"
    if len(paths) > counts["not replayed"]:
        output.show(printer, _total(len(paths) - counts["not replayed"], counts))
    if markdown is not None:
        append_markdown(markdown, markdown_of_replay(done, errors))
    for line in run_documents.annotations_of_replay(done, errors) if annotations else ():
        click.echo(line)
    return 1 if counts["failed"] else 2 if counts["not replayed"] else 0


def _total(replayed: int, counts: Counter[str]) -> str:
    more = [f"{counts[what]} {what}" for what in ("unseen", "not replayed") if counts[what]]
    return ", ".join([f"{replayed} replayed", f"{counts['failed']} failed", *more])


def _unseen(replayed: Replayed) -> str:
    """Return why a failure that was not seen may remain."""
    found = replayed.found
    if replayed.unsupported:
        return "this backend cannot run the case"
    if unseen := found.unseen_on(replayed.backend):
        return unseen
    if found.confirmation == "flaky":
        return f"the failure is flaky: it failed {found.failed} times of {found.tries} when it was found, and not now"
    return "only sanitizers can see this failure, and this backend has none"


def _result(replayed: Replayed) -> RenderableType:
    """Return the status and the path of a counterexample, and below them what there is to know of its failure."""
    line = whole("").append(f"{replayed.status:6}", COLOURS[replayed.status])
    notes = [replayed.message] * (not replayed.verdict.passed)
    if replayed.status != "CHANGED":
        others = [verdict for verdict in replayed.others if verdict != replayed.verdict]
        notes += [f"also {verdict.what}: {verdict.message}" for verdict in others]
    notes += [_unseen(replayed)] * (replayed.status == "UNSEEN")
    notes += [replayed.refused] * bool(replayed.refused)
    if replayed.found.status == "known":
        notes.append(f"known: {replayed.found.because} ({replayed.found.reference})")
    if replayed.status == "PASSES":
        notes.append("an unexpected pass: mark it as fixed if the bug is")
    notes += ["the tensors differ from those that the case was saved with"] * replayed.drifted
    return Group(line.append(f"  {replayed.path}"), *(Padding(Text(note), (0, 0, 0, 8)) for note in notes))
