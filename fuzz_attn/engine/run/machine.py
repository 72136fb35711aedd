"""Machine: how many cores this process may use, and the first event of a run, with the versions that it runs with."""

from __future__ import annotations

import math
import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from fuzz_attn.counterexamples.counterexample import environment_of
from fuzz_attn.engine.events import ONLY_PART, Part, Started


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
