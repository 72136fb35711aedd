"""``fuzz-attn replay``: run saved counterexamples again."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click
from rich.console import Console, Group, RenderableType
from rich.padding import Padding

from fuzz_attn.cli.options import FILE, backend_option, exits, target_option
from fuzz_attn.counterexamples import counterexample
from fuzz_attn.engine.replay import Replayed
from fuzz_attn.engine.replay import replay as replay_files
from fuzz_attn.report.plain_text import show, whole

FOLDER: Final = Path("tests") / "counterexamples"
COLOURS: Final = {
    "FIXED": "bold green",
    "PASSES": "bold green",
    "FAILED": "bold red",
    "REGRESSED": "bold red",
    "KNOWN": "bold yellow",
    "UNSEEN": "bold yellow",
}


@click.command()
@click.argument("places", nargs=-1, metavar="[FILE_OR_DIR ...]", type=FILE)
@target_option("the target named in the file")
@backend_option
@click.option("--in-process", is_flag=True, help="Run the target in this process, so that print and breakpoint work.")
@exits
def replay(*, places: tuple[Path, ...], target: str | None, backend: str, in_process: bool) -> int:
    """Replay saved counterexamples.

    Print FAILED or FIXED for each and exit with 1 if any fails. The default is all of tests/counterexamples. KNOWN
    fails as its file says and is no failure of the replay, PASSES is a known one that passes now, and REGRESSED is a
    fixed one that fails again. UNSEEN means that the failure is flaky, or that only sanitizers can see it and the
    backend has none; it counts as a failure while the file's status is open.
    """
    if not places and not FOLDER.is_dir():
        click.echo(f"no counterexamples: {FOLDER} does not exist")
        return 0
    console, failed, unseen = Console(), 0, 0
    paths = tuple(counterexample.files_in(places or (FOLDER,)))
    for replayed in replay_files(paths, target=target, backend=backend, in_process=in_process):
        show(console, _result(replayed))
        failed += replayed.still_fails
        unseen += replayed.status == "UNSEEN"
    show(console, f"{len(paths)} replayed, {failed} failed" + f", {unseen} unseen" * bool(unseen))
    return 1 if failed else 0


def _unseen(replayed: Replayed) -> str:
    """Return why a failure that was not seen may remain."""
    found = replayed.found
    if found.confirmation == "flaky":
        return f"the failure is flaky: it failed {found.failed} times of {found.tries} when it was found, and not now"
    return "only sanitizers can see this failure, and this backend has none"


def _result(replayed: Replayed) -> RenderableType:
    """Return the status and the path of a counterexample, and below them what there is to know of its failure."""
    line = whole("").append(f"{replayed.status:6}", COLOURS[replayed.status])
    notes = [replayed.verdict.message] * (not replayed.verdict.passed)
    notes += [_unseen(replayed)] * (replayed.status == "UNSEEN")
    if replayed.found.status == "known":
        notes.append(f"known: {replayed.found.because} ({replayed.found.reference})")
    if replayed.status == "PASSES":
        notes.append("an unexpected pass: mark it as fixed if the bug is")
    notes += ["the tensors differ from those that the case was saved with"] * replayed.drifted
    return Group(line.append(f"  {replayed.path}"), *(Padding(note, (0, 0, 0, 8)) for note in notes))
