"""GPUs: which of those that the caller may use a worker process gets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

DEVICES: Final = Path("/dev")


def gpu_environment(index: int, environment: Mapping[str, str] = os.environ, devices: Path = DEVICES) -> dict[str, str]:
    """Return what the environment of the worker of that number says of GPUs, before anything imports torch.

    One GPU for each worker, in turn: out of the caller's ``CUDA_VISIBLE_DEVICES``, else out of the machine's. Nothing
    is said where there is no choice. torch is told to count GPUs without waking them, so that it can still fork.
    """
    gpus = visible_gpus(environment, devices)
    chosen = {"CUDA_VISIBLE_DEVICES": gpus[index % len(gpus)]} if len(gpus) > 1 else {}
    return {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", **chosen}


def visible_gpus(environment: Mapping[str, str], devices: Path = DEVICES) -> list[str]:
    """Return how CUDA names each GPU that the caller may use, in order."""
    asked = environment.get("CUDA_VISIBLE_DEVICES")
    if asked is not None:
        return [name.strip() for name in asked.split(",") if name.strip()]
    nodes = [path for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    return [str(number) for number in range(len(nodes))]
