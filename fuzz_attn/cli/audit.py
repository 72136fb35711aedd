"""``fuzz-attn audit``: put bugs into a target's kernels and count those that a campaign finds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from fuzz_attn.cli.options import FILE, exits, family_option, out_option, seed_option, target_option, workers_option
from fuzz_attn.engine.run_folder import new_run_folder
from fuzz_attn.mutation import audit_report
from fuzz_attn.mutation.audit_results import load_reasons, own_reasons, own_score
from fuzz_attn.report.printing import show, whole

SEEDED_BUGS: Final = Path(__file__).parents[1] / "mutation" / "seeded" / "tables"


@click.command()
@target_option("unified")
@family_option
@click.option("--seeded/--ir", default=None, help="Seeded bugs, or generated changes of the kernels' IR.")
@click.option("--only", multiple=True, metavar="TEXT", help="Only mutants whose name contains TEXT. Can be repeated.")
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="Only N mutants, chosen by the seed.")
@click.option(
    "--max-cases",
    type=click.IntRange(min=1),
    default=400,
    show_default=True,
    metavar="N",
    help="Case limit for each mutant.",
)
@click.option(
    "--examine",
    type=click.IntRange(min=0),
    default=150,
    show_default=True,
    metavar="N",
    help="Cases that run the change of a mutant that no seed found, to report what it changes; 0: none.",
)
@click.option(
    "--rules/--no-rules", default=True, show_default=True, help="Also evaluate two fixed tolerances (attention)."
)
@workers_option
@seed_option
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Judge every mutant under N seeds, from --seed on.",
)
@click.option(
    "--fail-under",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help="Exit with 1 if the mean score of the seeds is lower.",
)
@click.option(
    "--seeded-bugs",
    type=FILE,
    default=SEEDED_BUGS,
    metavar="DIR",
    help="Folder of seeded bugs, as TOML files. Default: those of this package.",
)
@click.option(
    "--reasons",
    type=FILE,
    metavar="FILE",
    help="Reasons of known survivors. Default, in a checkout: those of the built-in kernels' IR.",
)
@out_option
@exits
def audit(
    *,
    target: str | None,
    family: str | None,
    seeded: bool | None,
    only: tuple[str, ...],
    sample: int | None,
    max_cases: int,
    examine: int,
    rules: bool,
    workers: int,
    seed: int,
    seeds: int,
    fail_under: float | None,
    seeded_bugs: Path,
    reasons: Path | None,
    out: Path | None,
) -> int:
    """Count the bugs put into a kernel that a campaign finds.

    The bugs are seeded bugs, the default for the built-in targets, or generated changes of the kernels' IR, the default
    for all others. Every mutant is judged on the cases of a default campaign, in the same order. A mutant that no case
    tells apart counts as not found, unless a written reason says that no case can.
    """
    from fuzz_attn.mutation.audit import Request  # noqa: PLC0415 - imports torch, which the other commands do without
    from fuzz_attn.mutation.audit import audit as run_audit  # noqa: PLC0415 - likewise

    name = target or family or "unified"
    seeded = ":" not in name if seeded is None else seeded
    console, folder = Console(), new_run_folder(out)
    built_in = () if seeded or ":" in name else own_reasons()
    known = load_reasons(reasons) if reasons else built_in
    chosen = tuple(range(seed, seed + seeds))
    request = Request(
        target=name,
        family=family,
        seeded_bugs=seeded_bugs if seeded else None,
        only=only,
        sample=sample,
        max_cases=max_cases,
        enough=examine,
        rules=rules,
        seeds=chosen,
        workers=workers,
        folder=folder,
        reasons=known,
    )
    show(console, whole(f"Auditing {name} with {'seed' if seeds == 1 else 'seeds'} {', '.join(map(str, chosen))}"))
    done = run_audit(request, console)
    show(console, audit_report.render(done, known))
    show(console, whole(f"Written  {os.path.relpath(folder / 'audit.json')}"))
    percent = own_score(done.outcomes).percent
    return 1 if fail_under is not None and (percent is None or percent < fail_under) else 0
