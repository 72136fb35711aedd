"""``fuzz-attn export``: a saved counterexample as a script that needs torch and the target only."""

from __future__ import annotations

from pathlib import Path

import click

from fuzz_attn.cli.options import FILE, binding_option, exits, stated_binding, target_option
from fuzz_attn.counterexamples import counterexample
from fuzz_attn.counterexamples.trust import trusted_call
from fuzz_attn.report.plain_text import safe
from fuzz_attn.settings import load_settings


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
    found = counterexample.load(file)
    name, stated = trusted_call(
        file, found, target, stated_binding(binding), trust=trust, named=load_settings().targets
    )
    from fuzz_attn.export.exporting import exported  # noqa: PLC0415 - imports torch, which other commands do without

    for path in exported(found, name, stated).save(script):
        click.echo(safe(f"written  {path}"))
    return 0
