"""``fuzz-attn bind``: how a target is called, and why."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from fuzz_attn.calibration.easy_cases import plain_case, sizes
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.cli.options import WORDS, backend_option, binding_option, exits, family_option, stated_binding
from fuzz_attn.cli.targets import domain_table
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.messages import Order, Ready, Setup
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.report.bindings import conventions_of, parameters_of
from fuzz_attn.report.plain_text import show


@click.command()
@click.argument("target", metavar="TARGET", type=WORDS)
@family_option
@binding_option
@backend_option
@exits
def bind(*, target: str, family: str | None, binding: Path | None, backend: str) -> int:
    """Print how a target is called: the role of each parameter with its reason, and the conventions.

    TARGET is a value of `fuzz-attn run --target`. With --binding FILE the file says what the names do not tell. Exit
    status: 0 the target can be called, 2 it cannot, with the reason.
    """
    setup = Setup(target, family, backend, binding=stated_binding(binding))  # type: ignore[arg-type] # click.Choice
    with IsolatedWorker(setup) as worker:
        print_binding(worker.ready, Console(highlight=False), _read_of(worker))
    return 0


def _read_of(worker: IsolatedWorker) -> tuple[str, ...]:
    """Return what one easy launch tells of how a target rounds, in sentences; none where the target cannot run it."""
    with suppress(FuzzAttnError):
        size = next(sizes(worker.ready.domain))
        return worker.judge(Order(plain_case(worker.ready.family, size))).notes
    return ()


def print_binding(ready: Ready, printer: Console, read: tuple[str, ...] = ()) -> None:
    """Print the binding of a target that is ready, and what was ``read`` of its roundings."""
    words = FAMILIES[ready.family].words
    table = Table(title=f"{ready.target}: {words} (family {ready.family})", title_justify="left", box=None)
    for heading in ("parameter", "role", "why"):
        table.add_column(heading, overflow="fold")
    for row in parameters_of(ready):
        table.add_row(*row)
    show(printer, table)
    show(printer, "")
    for line in (*conventions_of(ready), *(f"Note: {note}" for note in (*ready.notes, *read))):
        show(printer, line)
    show(printer, "")
    show(printer, domain_table("Cases are drawn from", ready))
