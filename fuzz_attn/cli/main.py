"""The command ``fuzz-attn``: a group with one command in each module of this package."""

from __future__ import annotations

import os
import sys
from typing import Final

import click

from fuzz_attn.cli.audit import audit
from fuzz_attn.cli.failure_files import explain, export, mark, replay, show
from fuzz_attn.cli.guard import Program
from fuzz_attn.cli.ledger import ledger
from fuzz_attn.cli.report import coverage, report, watch
from fuzz_attn.cli.run import merge, run
from fuzz_attn.cli.targets import bind, targets
from fuzz_attn.settings import command_line_defaults, load_settings

ONLY_READ: Final = ("show", "mark", "merge", "report", "watch", "coverage")
"""Commands that read files and import no target: what lies in the current folder is never imported for them."""


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fuzz-attn", prog_name="fuzz-attn")
@click.pass_context
def main(context: click.Context) -> None:
    """Fuzz Triton paged-attention kernels against a float64 oracle.

    Exit status: 0 no case fails but known failures, 1 a case fails, 2 too few cases were judged, or an argument or a
    file is wrong, 70 a defect of fuzz-attn itself, which one line names together with a file that holds the traceback.
    """
    if context.invoked_subcommand == "run":
        context.default_map = {"run": command_line_defaults(load_settings())}
    if context.invoked_subcommand not in ONLY_READ:
        sys.path.insert(0, os.getcwd())  # modules of the current folder are targets, as with `python -m`


for command in (run, merge, replay, bind, show, explain, mark, export, report, watch, coverage, audit, ledger, targets):
    main.add_command(command)

if __name__ == "__main__":
    main()
