"""The first event of a run, which says on what machine and with which versions it runs."""

from __future__ import annotations

import platform
import re
import time
from pathlib import Path
from typing import Final

from fuzz_attn.counterexamples.counterexample import environment_of
from fuzz_attn.engine.events import ONLY_PART, Part, Started
from fuzz_attn.engine.run.cores import available_cores

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
