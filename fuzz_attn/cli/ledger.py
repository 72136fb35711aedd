"""``fuzz-attn ledger``: the defects of published kernels, and their replay on every pinned version."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzz_attn.cli.options import FILE, OUTPUT_DIRECTORY, backend_option, exits, memory_option
from fuzz_attn.ledger import summaries
from fuzz_attn.ledger.defects import OWN, Table, chosen, load_table
from fuzz_attn.ledger.summaries import write_pages
from fuzz_attn.report.printing import console, safe, show

if TYPE_CHECKING:
    from fuzz_attn.ledger.replaying import Cell


@click.command()
@click.argument("names", nargs=-1, metavar="[ROW ...]")
@click.option("--replay", "replays", is_flag=True, help="Replay each case on every pinned version.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")
@click.option("--pages", is_flag=True, help="Write the missing pages of confirmed rows.")
@click.option(
    "--out",
    type=OUTPUT_DIRECTORY,
    metavar="DIR",
    default=Path(summaries.FINDINGS),
    show_default=True,
    help="Folder of the pages.",
)
@click.option("--ledger", "folder", type=FILE, metavar="DIR", default=OWN, help="Another ledger than the package's.")
@backend_option
@memory_option
@exits
def ledger(
    *,
    names: tuple[str, ...],
    replays: bool,
    as_json: bool,
    pages: bool,
    out: Path,
    folder: Path,
    backend: str,
    memory: int,
) -> int:
    """Print the known defects of published kernels.

    With --replay, download the pinned versions into the cache, replay the case of each row on each of them, and print
    the outcomes. FAILED fails as the row says, FIXED passes after a version that failed, "passes" passes without one,
    REFUSED means that the target or the compiler refuses the case, and "absent" that the version has no such launcher
    or that it lacks a parameter of the case. On the newest version that FAILED, `fuzz-attn explain` is asked about the
    case too. The exit status is 1 if an outcome or an explanation is not the one that the ledger states, else 2 if a
    version cannot be downloaded or loaded.
    """
    table = chosen(load_table(folder), names)
    if pages:
        for path in write_pages(table, out):
            click.echo(safe(f"written  {path}"))
        return 0
    cells = _replayed(table, backend, memory) if replays else []
    if as_json:
        click.echo(summaries.document(table, cells))
    else:
        show(console(), summaries.matrix(table, cells) if replays else summaries.overview(table))
        if any(cell.explanation for cell in cells):
            click.echo(safe(summaries.agreement(cells)), err=True)
    for cell in cells:
        if cell.surprising or not cell.available:
            text = f"{cell.row.name} on {cell.version}: {cell.word}, stated is {cell.expected}. {cell.message}"
            click.echo(f"fuzz-attn: {safe(text)}", err=True)
        if cell.misexplained and cell.explanation is not None and cell.row.explained is not None:
            words, stated = safe(cell.explanation.sentence), cell.row.explained
            text = f"{cell.row.name} on {cell.version}: explained as {words}"
            click.echo(f"fuzz-attn: {text}, stated is {stated.reason}: {safe(stated.part)}", err=True)
    changed = any(cell.surprising or cell.misexplained for cell in cells)
    return 1 if changed else 2 if any(not cell.available for cell in cells) else 0


def _replayed(table: Table, backend: str, memory: int) -> list[Cell]:
    """Return the outcomes, and print each on standard error as it comes."""
    from fuzz_attn.ledger.replaying import replay  # noqa: PLC0415 - imports the engine, which printing does without

    cells = []
    for cell in replay(table, backend, memory):
        click.echo(safe(f"{cell.word:8} {cell.version:8} {cell.row.name}"), err=True)
        cells.append(cell)
    return cells
