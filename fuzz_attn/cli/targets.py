"""``fuzz-attn targets``: the targets that have names, and what each promises to handle."""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table

from fuzz_attn.case import not_drawn
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.features import CASE_FEATURES
from fuzz_attn.cli.options import exits
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.messages import Ready, Setup
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.report.plain_text import show


@click.command()
@exits
def targets() -> int:
    """List the targets that have names, and the domain of each."""
    from fuzz_attn.targets.loading import target_names  # noqa: PLC0415 - imports torch, which other commands do without

    console = Console(highlight=False)
    for name in target_names():
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
    domain = ready.domain
    table = Table(title=f"{name} (family {ready.family})", title_justify="left", show_header=False, box=None)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    table.add_row("types of q", ", ".join(domain.dtypes))
    table.add_row("head sizes", _range(domain.head_sizes))
    table.add_row("page sizes", _range(domain.block_sizes))
    table.add_row("group sizes", _range(domain.group_sizes))
    table.add_row("features", ", ".join(sorted(domain.features & FAMILIES[domain.family].features)) or "none")
    table.add_row("not drawn", "\n".join(not_drawn.sentences(ready.not_drawn)) or "-")
    table.add_row("launch paths", ", ".join(domain.paths))
    for what, value in limits_of(domain).items():
        table.add_row(what, value)
    return table


def limits_of(domain: Domain) -> dict[str, str]:
    """Return in words the limits of a domain that most targets do not have."""
    unlimited = Domain()
    words = {feature.name: feature.words for feature in CASE_FEATURES}
    together = (" and ".join(words[name] for name in words if name in each) for each in domain.excluded)
    limits = {
        "types of caches": ", ".join(domain.cache_dtypes) * (domain.cache_dtypes != unlimited.cache_dtypes),
        "types of the output": ", ".join(domain.output_dtypes) * (domain.output_dtypes != unlimited.output_dtypes),
        "segments": _range(domain.segments) * (domain.segments != unlimited.segments),
        "not together": "; ".join(together),
        "ALiBi slopes": ", ".join(domain.alibi_kinds) * (domain.alibi_kinds != unlimited.alibi_kinds),
    }
    return {what: value for what, value in limits.items() if value}


def _range(bounds: tuple[int, ...]) -> str:
    if len(bounds) == 2:
        return f"{bounds[0]} to {bounds[1]}"
    return ", ".join(str(bound) for bound in bounds)
