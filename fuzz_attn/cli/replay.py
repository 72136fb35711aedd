"""``fuzz-attn replay``: run saved counterexamples again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

import click
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from fuzz_attn.cli.options import (
    FILE,
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
from fuzz_attn.counterexamples import counterexample
from fuzz_attn.engine.isolated_worker import LAUNCH_SECONDS
from fuzz_attn.engine.replay import Replayed
from fuzz_attn.engine.replay import replay as replay_files
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.report import run_documents
from fuzz_attn.report.printing import console, safe, show, whole
from fuzz_attn.report.run_documents import append_markdown, markdown_of_replay
from fuzz_attn.report.summary import Waiting
from fuzz_attn.settings import load_settings

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
    paths = tuple(counterexample.files_in(places or (FOLDER,)))
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
            show(printer, _result(replayed))
            counts["failed"] += replayed.still_fails
            counts["unseen"] += replayed.status == "UNSEEN"
    if len(paths) > counts["not replayed"]:
        show(printer, _total(len(paths) - counts["not replayed"], counts))
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
