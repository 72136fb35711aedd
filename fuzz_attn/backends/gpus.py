"""GPUs: which of the GPUs that the caller may use is assigned to a worker process, and what kind it is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

DEVICES: Final = Path("/dev")

GpuFacts: TypeAlias = tuple[int, int, int]
"""The compute capability of a GPU, major and minor, and the number of its multiprocessors."""


def gpu_environment(index: int, environment: Mapping[str, str] = os.environ, devices: Path = DEVICES) -> dict[str, str]:
    """Return environment variables that assign a GPU to the worker of that number; set them before torch is imported.

    Workers get one GPU each, in turn, from the caller's ``CUDA_VISIBLE_DEVICES``, else from the machine's. Without a
    choice none is named. torch must count GPUs without initialising them, so that the process can still fork.
    """
    gpus = visible_gpus(environment, devices)
    chosen = {"CUDA_VISIBLE_DEVICES": gpus[index % len(gpus)]} if len(gpus) > 1 else {}
    return {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", **chosen}


def visible_gpus(environment: Mapping[str, str], devices: Path = DEVICES) -> list[str]:
    """Return CUDA's names of the GPUs that the caller may use, in order."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    nodes = [path for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    return [str(number) for number in range(len(nodes))]


def may_use_gpu(backend: str) -> bool:
    """Return whether workers with a backend use a GPU where there is one, as far as that is known without torch."""
    return backend == "cuda" or (backend == "auto" and os.environ.get("TRITON_INTERPRET") != "1")


def gpu_facts() -> GpuFacts:
    """Return what torch says of the GPU of this process; raises :class:`RuntimeError` where it cannot be used."""
    import torch  # noqa: PLC0415 - the command line starts without it

    properties = torch.cuda.get_device_properties()
    return properties.major, properties.minor, properties.multi_processor_count
