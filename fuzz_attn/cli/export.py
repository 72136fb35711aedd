"""``fuzz-attn export``: a saved counterexample as a script that needs torch and the target only."""

from __future__ import annotations

from pathlib import Path

import click

from fuzz_attn.cli.options import FILE, OUTPUT_FILE, exits, target_option
from fuzz_attn.counterexamples import counterexample
from fuzz_attn.counterexamples.trust import is_installed
from fuzz_attn.errors import CounterexampleError
from fuzz_attn.report.plain_text import safe


@click.command()
@click.argument("file", type=FILE)
@click.option("--script", type=OUTPUT_FILE, required=True, metavar="FILE", help="The script to write.")
@target_option("the target named in the file")
@click.option("--trust", is_flag=True, help="Run the target that the file names, also outside of installed packages.")
@exits
def export(*, file: Path, script: Path, target: str | None, trust: bool) -> int:
    """Write a script that shows a saved failure.

    The script contains the tensors, the call, the expected output and its error bound. It needs torch and the target
    only, to paste into a report or to run under compute-sanitizer. It exits with 1 while the target is wrong. Large
    tensors go to a safetensors file beside it. A file that names a target outside of the installed packages needs
    --target or --trust, because importing a target runs its code.
    """
    from fuzz_attn.export.exporting import exported  # noqa: PLC0415 - imports torch, which other commands do without

    found = counterexample.load(file)
    if target is None and not trust and not is_installed(found.target):
        raise CounterexampleError(
            f"{file}: names target={found.target!r}, which is no installed package: export it with --target T, or with "
            "--trust to run the code of that target"
        )
    for path in exported(found, target or found.target).save(script):
        click.echo(safe(f"written  {path}"))
    return 0
