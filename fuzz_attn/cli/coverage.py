"""``fuzz-attn coverage``: masks and branches of the kernels that a run did not exercise both ways."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from fuzz_attn.cli.options import FILE, exits
from fuzz_attn.coverage.mask_coverage import FILE_NAME, load
from fuzz_attn.report.coverage_gaps import print_gaps


@click.command()
@click.argument("run_folder", metavar="RUN_FOLDER", type=FILE)
@exits
def coverage(*, run_folder: Path) -> int:
    """List mask outcomes that a run did not exercise.

    The simulator records for the mask of every load, store and select, and for the condition of every branch and loop,
    whether it was all true, all false or mixed in some program. The list of missing outcomes names the source line. A
    mask that was never mixed is an untested boundary.

    RUN_FOLDER is the folder that a run printed, of one target or of several, or a coverage.json in it.
    """
    for file in coverage_files(run_folder):
        print_gaps(load(file), Console(highlight=False))
    return 0


def coverage_files(run_folder: Path) -> list[Path]:
    """Return the coverage files of a run: its own, or one for each of several targets.

    Return the path itself where there is none, for an error that names it.
    """
    return sorted(run_folder.glob(FILE_NAME)) or sorted(run_folder.glob(f"*/{FILE_NAME}")) or [run_folder]
