"""``fuzz-attn run --ray``: the shards of a run on the nodes of a Ray cluster."""

from __future__ import annotations

import dataclasses
import math

from fuzz_attn.cli.runs.campaign import Request, run_campaigns
from fuzz_attn.errors import FuzzAttnError


def run_on_ray(address: str, request: Request, gpu_share: float, workers: int | None) -> int:
    """Fuzz as :func:`run_campaigns` does, on a cluster, and return the exit status.

    On a GPU each worker gets ``gpu_share`` of one. ``workers`` is by default as many as the cluster has room for.
    """
    from fuzz_attn.engine.run.ray_shards import RayCluster, RayShards  # noqa: PLC0415 - the extra may be missing

    with RayCluster(address) as cluster:
        backend = request.backend
        if backend == "auto":
            backend = "cuda" if cluster.total("GPU") else "simulator"
        share = gpu_share if backend == "cuda" else 0.0
        workers = workers or _room(cluster.total("CPU"), cluster.total("GPU"), share)
        placed = dataclasses.replace(request, backend=backend, workers=workers, mps=False)
        return run_campaigns(placed, lambda plan: RayShards(plan.run_folder, plan.counterexamples, share))


def _room(processors: float, gpus: float, share: float) -> int:
    """Return how many workers fit on a cluster at once; raises FuzzAttnError if none does."""
    room = math.floor(min(processors, gpus / share) if share else processors)
    if not room:
        needed = f"a processor and {share:g} of a GPU" if share else "a processor"
        raise FuzzAttnError(
            f"--ray: each worker needs {needed}, and the cluster has {processors:g} and {gpus:g} of them"
        )
    return room
