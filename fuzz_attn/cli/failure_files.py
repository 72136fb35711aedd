"""Failure files: the commands ``show``, ``explain``, ``export`` and ``mark``, each for a saved counterexample."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click
import msgspec
from rich.console import Console, Group, RenderableType

from fuzz_attn.cli.options import (
    FILE,
    WORDS,
    backend_option,
    binding_option,
    exits,
    memory_option,
    stated_binding,
    target_option,
)
from fuzz_attn.counterexamples import counterexample
from fuzz_attn.counterexamples.counterexample import Counterexample
from fuzz_attn.counterexamples.trust import trusted_call
from fuzz_attn.engine.replay import explanation_of
from fuzz_attn.report import failure
from fuzz_attn.report import printing as output
from fuzz_attn.report.printing import safe, save_picture
from fuzz_attn.settings import load_settings


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


@click.command()
@click.argument("file", type=FILE)
@target_option("the target named in the file")
@binding_option
@click.option(
    "--healthy",
    type=WORDS,
    metavar="T",
    default="",
    help="A target that is right on the case, named as for --target: name the first operation that differs from it.",
)
@click.option("--trust", is_flag=True, help="Run the target that the file names, called as it says.")
@backend_option
@memory_option
@click.option("--svg", type=FILE, metavar="FILE", help="Also save the output as a picture of a terminal.")
@exits
def explain(
    *,
    file: Path,
    target: str | None,
    binding: Path | None,
    healthy: str,
    trust: bool,
    backend: str,
    memory: int,
    svg: Path | None,
) -> int:
    """Explain a saved failure: which key, row, head or factor is wrong.

    The target is called again with other numbers in the same case. V made of unit vectors shows which keys each query
    attends, and how much. Where a small case leaves several reasons, larger ones of the same kind are tried. A file
    does not choose what code runs: unless it names a built-in target, an installed entry point or the target of the
    settings, it needs --target or --trust.

    In the simulator, one change of the kernel, or of an argument, is looked for that makes the case right. That takes
    up to 20 seconds, and 15 more if constants are tried too. Your files are not changed.

    With --healthy, for example an earlier version of the kernel, both run the case in the simulator, and the first
    operation is named whose value differs.
    """
    explained = explanation_of(
        file,
        target=target,
        backend=backend,
        memory=memory,
        trust=trust,
        named=load_settings().targets,
        binding=stated_binding(binding),
        healthy=healthy,
    )
    headline = failure.headline(explained.found, explained.verdict)
    shown = Group(headline, failure.render_explanation(explained.explanation))
    output.show(output.console(), shown)
    if svg is not None:
        save_picture(shown, svg, title=f"fuzz-attn explain {file}")
    return 0


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
    from fuzz_attn.export.script import exported  # noqa: PLC0415 - imports torch, which other commands do without

    for path in exported(found, name, stated).save(script):
        click.echo(safe(f"written  {path}"))
    return 0


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
