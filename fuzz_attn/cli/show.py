"""``fuzz-attn show``: a saved counterexample in words."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console, Group, RenderableType

from fuzz_attn.cli.options import FILE, exits
from fuzz_attn.counterexamples import counterexample
from fuzz_attn.counterexamples.counterexample import Counterexample
from fuzz_attn.report import failure
from fuzz_attn.report import plain_text as output
from fuzz_attn.report.picture import save_picture


@click.command()
@click.argument("file", type=FILE)
@click.option("--svg", type=FILE, metavar="FILE", help="Also save the output as a picture of a terminal.")
@exits
def show(*, file: Path, svg: Path | None) -> int:
    """Show a saved failure and the command that replays it."""
    found = counterexample.load(file)
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
