"""RunPlan: what a run does, and the plans of its shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from fuzz_attn.case.plain import Plain
from fuzz_attn.engine.compiling.rounds import StagePlan
from fuzz_attn.engine.events import ONLY_PART, Part
from fuzz_attn.engine.orders import Setup
from fuzz_attn.engine.run.machine import available_cores
from fuzz_attn.operations.operation import ALL_SHARDS, derived_seed


class ShardPlan(Plain, frozen=True):
    """The plan of one shard as a message to its process; ``worker`` is its number on this machine."""

    setup: Setup
    shard: int
    worker: int
    shards: int
    seed: int
    max_time: float | None
    max_cases: int | None
    run_folder: str
    counterexamples: str
    covered: frozenset[int] = frozenset()
    stage: StagePlan | None = None
    """The compile stage on the shard's machine; None where each shard compiles its own kernels."""
    lost: int = 0
    """How often this work was begun on a machine that was lost."""
    saved: frozenset[str] | None = None
    """The files from before the run, by their paths below ``counterexamples``, for the worker that plays them."""
    begun: float | None = None
    """When the time began of which starting takes a part, as a time of ``time.time``."""


@dataclass(frozen=True)
class RunPlan:
    """What a run does. All shards together share ``max_cases``; ``max_time`` (seconds) holds for each.

    ``run_folder`` is for logs and journals, ``counterexamples`` for saved failures, with a folder for each target.
    With a ``part``, ``max_cases`` is the limit of all parts together.
    """

    setup: Setup
    seed: int
    workers: int
    max_time: float | None
    max_cases: int | None
    run_folder: Path
    counterexamples: Path
    part: Part = ONLY_PART
    mps: bool = True
    """Whether the workers on a GPU share it through CUDA's Multi-Process Service, where that is possible."""
    until_flat: float | None = None
    """The run ends when nothing was new for so many seconds."""
    covered: frozenset[int] = frozenset()
    """The numbers of compile keys that are drawn last."""
    compiles_ahead: bool = True
    """Whether a GPU's kernels are compiled by processes of their own, ahead of the cases that need them."""


ROUNDS: Final = "rounds"
"""The folder, in that of a run, of the files that say which rounds are compiled."""
MOST_LOSSES: Final = 3
"""Work that was lost so often is not begun again: it may be what ends the machines."""


def stage_plan(plan: RunPlan) -> StagePlan:
    """Return the plan of the compile stage of a run; each part of a large run has its rounds in another order."""
    seed = derived_seed(plan.seed, ALL_SHARDS, plan.part.number)
    return StagePlan(plan.setup, seed, str(plan.run_folder / ROUNDS), available_cores(), plan.covered)


def rest_of(plan: ShardPlan, cases: int, seconds: float) -> ShardPlan | None:
    """Return the work that a shard has left after some cases and seconds; None if there is none, or it was lost often.

    The rest is another shard, with a number that no other has, so that it draws other cases: those that were judged on
    the lost machine and not reported are not known. The saved counterexamples are played again if no case was drawn.
    """
    max_cases = None if plan.max_cases is None else plan.max_cases - cases
    max_time = None if plan.max_time is None else plan.max_time - seconds
    if (
        plan.lost == MOST_LOSSES
        or (max_cases is not None and max_cases < 1)
        or (max_time is not None and max_time <= 0)
    ):
        return None
    return msgspec.structs.replace(
        plan,
        shard=plan.shard + plan.shards,
        worker=plan.worker + plan.shards if cases else plan.worker,
        max_cases=max_cases,
        max_time=max_time,
        lost=plan.lost + 1,
    )


def share_of(max_cases: int | None, shard: int, shards: int) -> int | None:
    """Return one shard's part of the cases; the parts add up exactly."""
    if max_cases is None:
        return None
    return max_cases // shards + (shard < max_cases % shards)


def shard_plans(plan: RunPlan) -> Iterator[ShardPlan]:
    """Yield the plan of each shard that has at least one case.

    The parts of a large run take its shards in turn: no two have the same number, also where their workers differ.
    """
    part, folders = plan.part, (str(plan.run_folder), str(plan.counterexamples))
    own = share_of(plan.max_cases, part.number - 1, part.of)
    for worker in range(plan.workers):
        cases, shard = share_of(own, worker, plan.workers), worker * part.of + part.number - 1
        if cases != 0:
            shards = plan.workers * part.of
            saved = None if worker else names_below(plan.counterexamples)
            own_plan = plan.setup, shard, worker, shards, plan.seed, plan.max_time, cases, *folders, plan.covered
            yield ShardPlan(*own_plan, saved=saved)


def names_below(folder: Path) -> frozenset[str]:
    """Return the paths in a folder of the counterexamples below it."""
    return frozenset(str(path.relative_to(folder)) for path in folder.rglob("*.json"))
