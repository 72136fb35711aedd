"""``fuzz-attn explain``: what a kernel does wrong in a saved failure, in words and as weights."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Group

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
from fuzz_attn.engine.explaining import explanation_of
from fuzz_attn.report import explanation as report
from fuzz_attn.report import failure
from fuzz_attn.report.picture import save_picture
from fuzz_attn.report.plain_text import console, show
from fuzz_attn.settings import load_settings


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
    shown = Group(failure.headline(explained.found, explained.verdict), report.render(explained.explanation))
    show(console(), shown)
    if svg is not None:
        save_picture(shown, svg, title=f"fuzz-attn explain {file}")
    return 0
