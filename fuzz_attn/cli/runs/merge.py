"""``fuzz-attn merge``: unite the results of several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fuzz_attn.cli.options import FILE, OUTPUT_DIRECTORY, exits
from fuzz_attn.cli.runs.campaign import Documents, documents_options, finish, print_report
from fuzz_attn.engine.run.merging import merge as merge_runs
from fuzz_attn.report.plain_text import console


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
    part is missing or was cut off, whatever the others found, 128 and the number of the signal that ended a part.
    """
    printer = console(stderr=documents["json"])
    merged = merge_runs(places, out)
    for run in merged:
        print_report(run.report, run.folder, printer)
    return finish([run.report for run in merged], Documents(**documents), is_whole=all(run.is_whole for run in merged))
