"""``fuzz-attn targets`` and ``bind``: the targets that have names, what each promises, and how a target is called."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from fuzz_attn.case import aspect_table
from fuzz_attn.cli.options import WORDS, backend_option, binding_option, exits, family_option, stated_binding
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.orders import Order, Ready, Setup
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.operations.registry import FAMILIES, operation_of
from fuzz_attn.report.printing import show


@click.command()
@exits
def targets() -> int:
    """List the targets that have names, and the domain of each."""
    from fuzz_attn.targets.loading import target_names  # noqa: PLC0415 - imports torch, which other commands do without

    console = Console(highlight=False)
    for name in dict.fromkeys((*FAMILIES, *target_names())):
        print_target(name, console)
    show(console, "Other targets: module:function and path.py:function; their domain follows from their signature.")
    return 0


def print_target(name: str, console: Console) -> None:
    """Print the domain of a target, or why it does not load."""
    try:
        with IsolatedWorker(Setup(name)) as worker:
            show(console, domain_table(name, worker.ready))
    except FuzzAttnError as error:
        show(console, f"{name}: does not load: {error}")


def domain_table(name: str, ready: Ready) -> Table:
    """Return what a target promises to handle, one row for each dimension, and what is not drawn."""
    table = Table(title=f"{name} (family {ready.family})", title_justify="left", show_header=False, box=None)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for what, value in operation_of(ready.domain).limits_of(ready.domain).items():
        table.add_row(what, value)
        if what == "features":
            table.add_row("not drawn", "\n".join(aspect_table.sentences(ready.not_drawn)) or "-")
    if ready.unexercised:
        table.add_row("not exercised", "\n".join(ready.unexercised))
    return table


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
    setup = Setup(target, family, backend, binding=stated_binding(binding))
    with IsolatedWorker(setup) as worker:
        print_binding(worker.ready, Console(highlight=False), _read_of(worker))
    return 0


def _read_of(worker: IsolatedWorker) -> tuple[str, ...]:
    """Return what one easy launch tells of how a target rounds, in sentences; none where the target cannot run it."""
    with suppress(FuzzAttnError):
        easy = operation_of(worker.ready.domain).easy_case(worker.ready.domain)
        return () if easy is None else worker.judge(Order(easy)).notes
    return ()


def print_binding(ready: Ready, printer: Console, read: tuple[str, ...] = ()) -> None:
    """Print the binding of a target that is ready, and what was ``read`` of its roundings."""
    words, operation = FAMILIES[ready.family], operation_of(ready.domain)
    show(printer, f"{ready.target}: {words} (family {ready.family})")
    table = Table(box=None)
    for heading in ("parameter", "role", "why"):
        table.add_column(heading, overflow="fold")
    for row in operation.parameters_of(ready.binding, ready.reasons):
        table.add_row(*row)
    show(printer, table)
    show(printer, "")
    calibrated = {note.replace(" (calibrated).", "."): note for note in ready.notes if note.endswith(" (calibrated).")}
    conventions = list(operation.conventions_of(ready.binding))
    notes = (note for note in (*ready.notes, *read) if note not in {calibrated.get(line) for line in conventions})
    for line in (*(calibrated.get(line, line) for line in conventions), *(f"Note: {note}" for note in notes)):
        show(printer, line)
    show(printer, "")
    show(printer, domain_table("Cases are drawn from", ready))
