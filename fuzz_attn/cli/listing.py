"""The list of targets that have names, with what each promises to handle."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FEATURES
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.messages import Setup
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.report.plain_text import show
from fuzz_attn.targets.target import target_names


def print_targets(console: Console) -> None:
    """Print every built-in target and every entry point; one that does not load is listed with the reason."""
    for name in target_names():
        try:
            with IsolatedWorker(Setup(name)) as worker:
                show(console, domain_table(name, worker.ready.family, worker.ready.domain))
        except FuzzAttnError as error:
            show(console, f"{name}: does not load: {error}")
    show(console, "Besides: module:function and path.py:function, their domain derived from their signature.")


def domain_table(name: str, family: str, domain: Domain) -> Table:
    """Return what a target promises, one line for each dimension."""
    table = Table(title=f"{name} (family {family})", title_justify="left", show_header=False, box=None)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    table.add_row("types of q", ", ".join(domain.dtypes))
    table.add_row("head sizes", _range(domain.head_sizes))
    table.add_row("page sizes", _range(domain.block_sizes))
    table.add_row("group sizes", _range(domain.group_sizes))
    table.add_row("features", ", ".join(sorted(domain.features & FEATURES[domain.family])) or "none")
    table.add_row("never", ", ".join(sorted(FEATURES[domain.family] - domain.features)) or "-")
    table.add_row("launch paths", ", ".join(domain.paths))
    return table


def _range(bounds: tuple[int, ...]) -> str:
    if len(bounds) == 2:
        return f"{bounds[0]} to {bounds[1]}"
    return ", ".join(str(bound) for bound in bounds)
