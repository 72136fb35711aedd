"""``fuzz-attn mark``: the status of a saved counterexample."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click
import msgspec

from fuzz_attn.cli.options import FILE, WORDS, exits
from fuzz_attn.counterexamples import counterexample
from fuzz_attn.report.plain_text import safe


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
    found = counterexample.load(file)
    if status == "known" and not (because.strip() and reference.strip()):
        raise click.UsageError("the status known needs --reference '#12' and --because 'waits for the next release'")
    if status != "known" and (because or reference):
        raise click.UsageError(f"--because and --reference belong to the status known, not to {status}")
    marked = msgspec.structs.replace(found, status=status, because=because, reference=reference)
    counterexample.overwrite(marked, file)
    click.echo(safe(f"{file}: {status}"))
    return 0
