"""How much faster a Ray cluster of several nodes judges than one node: ``bench_ray.py NODES SECONDS``.

The cluster is made on this machine, one processor for each node, which must have so many cores, and one more for the
run itself. Each run draws the same family for so many seconds after its workers are ready.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from ray.cluster_utils import Cluster

from fuzz_attn.engine.events import CaseJudged, Event
from fuzz_attn.engine.fuzz_run import run_and_log
from fuzz_attn.engine.orders import Setup
from fuzz_attn.engine.ray_shards import RayCluster, RayShards
from fuzz_attn.engine.run_plan import RunPlan, available_cores

NODE: Final[dict[str, Any]] = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
HEAD: Final = NODE | {"num_cpus": 0, "include_dashboard": False}
SEED: Final = 20261123
FAMILY: Final = "unified"


class Rate:
    """Cases a second in the last half of a run, when most kernels are lowered."""

    def __init__(self, seconds: float) -> None:
        self._half = seconds / 2
        self._first = 0.0
        self.late = 0

    def __call__(self, event: Event) -> None:
        """Count a case of the last half."""
        if isinstance(event, CaseJudged):
            now = time.monotonic()
            self._first = self._first or now
            self.late += now > self._first + self._half


def rate_of(nodes: int, seconds: float) -> float:
    """Return the cases a second that a cluster of so many nodes judges in the last half of a run."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FUZZ_ATTN_CACHE"] = f"{folder}/cache"  # no run finds kernels that another one has lowered
        return _rate_in(Path(folder), nodes, seconds)


def _rate_in(folder: Path, nodes: int, seconds: float) -> float:
    made = Cluster(initialize_head=True, head_node_args=HEAD, shutdown_at_exit=False)
    try:
        for _ in range(nodes):
            made.add_node(**NODE)
        with RayCluster(made.address):
            places = folder / "run", folder / "counterexamples"
            plan = RunPlan(Setup(FAMILY, backend="simulator"), SEED, nodes, seconds, None, *places)
            rate = Rate(seconds)
            report = run_and_log(plan, rate, shards=RayShards(*places))
    finally:
        made.shutdown()  # type: ignore[no-untyped-call] # Ray's
    print(
        f"{nodes} nodes: {report.statistics.cases} cases in {seconds:.0f} s, {rate.late / seconds * 2:.1f} a second in "
        f"the last half, {len(report.failures)} failures",
        flush=True,
    )
    return rate.late / seconds * 2


def main(nodes: int = 4, seconds: float = 60.0) -> None:
    """Print the cases a second of one node and of several, and their ratio."""
    if available_cores() <= nodes:
        print(f"bench_ray: {nodes} nodes need {nodes + 1} cores, and there are {available_cores()}: nothing to measure")
        return
    one, several = rate_of(1, seconds), rate_of(nodes, seconds)
    print(f"{nodes} nodes judge {several / one:.2f} times as many cases as one")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
