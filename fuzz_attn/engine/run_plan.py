"""RunPlan: what a run does, on how many cores, and the plans of its shards; the event that begins it."""

from __future__ import annotations

import math
import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from fuzz_attn.case.plain import Plain
from fuzz_attn.counterexamples import environment_of
from fuzz_attn.engine.events import ONLY_PART, Part, Started
from fuzz_attn.engine.orders import Setup
from fuzz_attn.engine.rounds import StagePlan
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


def available_cores(cgroups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the number of cores, at least 1. A quota of one and a half cores counts as one."""
    affine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.floor(min([affine, *_quotas(cgroups, root)])))


def _quotas(cgroups: Path, root: Path) -> Iterator[float]:
    """Yield the quota in cores of each control group above this process that has one."""
    try:
        lines = cgroups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield from _of_groups(root, path, _version_2)
        elif "cpu" in controllers.split(","):
            for place in (root / controllers, root / "cpu"):
                yield from _of_groups(place, path, _version_1)


def _of_groups(root: Path, path: str, quota_in: Callable[[Path], float]) -> Iterator[float]:
    """Yield the quotas of a group and of all groups above it; inside a container the root is the container's group."""
    group = PurePosixPath(path.lstrip("/"))
    for part in (group, *group.parents):
        try:
            yield quota_in(root / part)
        except (OSError, ValueError):
            continue


def _version_2(folder: Path) -> float:
    """Return the quota in ``cpu.max``; raises ValueError for ``max``, which is none."""
    quota, period = (folder / "cpu.max").read_text().split()
    return int(quota) / int(period)


def _version_1(folder: Path) -> float:
    """Return the quota in ``cpu.cfs_quota_us``; raises ValueError for -1, which is none."""
    quota = int((folder / "cpu.cfs_quota_us").read_text())
    if quota <= 0:
        raise ValueError("no quota")
    return quota / int((folder / "cpu.cfs_period_us").read_text())


GPUS: Final = Path("/proc/driver/nvidia/gpus")


def started(
    target: str, seed: int, workers: int, max_time: float | None, max_cases: int | None, part: Part = ONLY_PART
) -> Started:
    """Return the event that begins a run now."""
    versions = environment_of("", ()).versions
    return Started(target, seed, workers, time.time(), max_time, max_cases, part, versions, system())


def system(gpus: Path = GPUS) -> str:
    """Return the operating system, the processors that this process may use, and the GPUs, in words."""
    cores = available_cores()
    words = [platform.platform(), f"{cores} core{'s' * (cores != 1)} of {platform.machine()}"]
    return ", ".join(words + _gpus(gpus))


def _gpus(folder: Path) -> list[str]:
    """Return the GPUs of the machine, each model once, from the files of NVIDIA's driver."""
    try:
        texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*/information"))]
    except OSError:
        return []
    models = [found[1] for text in texts if (found := re.search(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE))]
    return [f"{models.count(model)} x {model}" for model in dict.fromkeys(models)]
