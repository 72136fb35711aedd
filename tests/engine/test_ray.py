"""A run on a Ray cluster judges the cases that were asked for, also when a node is lost and another one joins late."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from fuzz_attn import counterexamples
from fuzz_attn.engine.events import CaseJudged, Event, Finished, Note, WorkerReady
from fuzz_attn.engine.fuzz_run import FuzzRun, run_and_log
from fuzz_attn.engine.orders import Setup
from fuzz_attn.engine.ray_shards import RayCluster, RayShards
from fuzz_attn.engine.run_plan import RunPlan
from fuzz_attn.errors import FuzzAttnError

NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
CASES = 60
TARGETS = Path(__file__).parents[1] / "sample_targets"


PROBE = """
import ray
from ray.cluster_utils import Cluster
made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
ray.init(made.address, log_to_driver=False)
"""
PROBE_SECONDS = 120


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster of two nodes with one processor each, beside a head that runs nothing.

    Ray waits for ever for a cluster that does not start, so another process tries first.
    """
    try:
        subprocess.run([sys.executable, "-c", PROBE], timeout=PROBE_SECONDS, check=True, capture_output=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        pytest.skip(f"Ray starts no cluster on this machine: {error}")
    made = Cluster(
        initialize_head=True, head_node_args=NODE | {"num_cpus": 0, "include_dashboard": False}, shutdown_at_exit=False
    )
    try:
        for _ in range(2):
            made.add_node(**NODE)
        with RayCluster(made.address):
            yield made
    finally:
        made.shutdown()  # type: ignore[no-untyped-call] # Ray's


def plan_in(folder: Path, target: str, **changes: Any) -> RunPlan:
    fields: dict[str, Any] = {
        "setup": Setup(target, backend="simulator"),
        "seed": 1,
        "workers": 2,
        "max_time": 600.0,
        "max_cases": CASES,
        "run_folder": folder / "run",
        "counterexamples": folder / "counterexamples",
    }
    return RunPlan(**(fields | changes))


def shards_of(plan: RunPlan) -> RayShards:
    return RayShards(plan.run_folder, plan.counterexamples)


SLOW = """
import functools, importlib.util, sys, time
from pathlib import Path
spec = importlib.util.spec_from_file_location("correct", {path!r})
correct = sys.modules["correct"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(correct)

@functools.wraps(correct.unified_attention)
def unified_attention(*args, **options):
    if not Path({go!r}).exists():
        time.sleep(1.0)
    correct.unified_attention(*args, **options)
"""
"""A correct target, slow until a file exists: two workers judge at once even if one starts long after the other, and
one whose node is killed has not finished before it dies too."""


@pytest.mark.slow
def test_a_lost_node_and_a_late_one_leave_the_number_of_cases(cluster: Cluster, tmp_path: Path) -> None:
    ready: set[int] = set()
    ended: set[int] = set()
    judged: Counter[int] = Counter()
    late: list[Any] = []
    go = tmp_path / "go"

    def disturb(event: Event) -> None:
        if isinstance(event, WorkerReady):
            ready.add(event.shard)
        if isinstance(event, Finished):
            ended.add(event.shard)
        if isinstance(event, CaseJudged):
            judged[event.shard] += 1
            if not late and len(ready - ended) == 2:
                lost = next(iter(cluster.worker_nodes))  # chosen first: each of these has a worker
                late.append(cluster.add_node(**NODE))
                cluster.remove_node(lost, allow_graceful=False)
        if isinstance(event, Note) and "lost with its node" in event.text:
            go.touch()

    target = tmp_path / "slow.py"
    target.write_text(SLOW.format(path=str(TARGETS / "torch_attention.py"), go=str(go)))
    plan = plan_in(tmp_path, f"{target}:unified_attention", workers=3)
    results = FuzzRun(plan, disturb, shards=shards_of(plan)).run()
    assert late, "two workers judged at once"
    assert results.statistics.cases == CASES == judged.total()
    assert results.failures == ()
    # Ray takes a node that a busy machine keeps from answering for a lost one too.
    lost = [note for note in results.notes if "lost with its node" in note]
    assert lost
    assert all("its work went on elsewhere" in note for note in lost)
    assert len(ready) >= 4, "three workers, and the rest of one"
    assert not results.errors


@pytest.mark.slow
def test_each_bug_is_reported_once_and_saved_here(cluster: Cluster, tmp_path: Path, spec: Callable[[str], str]) -> None:
    plan = plan_in(tmp_path, spec("window_one_too_long"))
    report = run_and_log(plan, shards=shards_of(plan))
    (failure,) = report.failures
    assert failure.done
    path = Path(failure.path)
    assert path.is_relative_to(tmp_path / "counterexamples")
    assert counterexamples.load(path) == failure.counterexample
    assert [*(tmp_path / "counterexamples").rglob("*.json")] == [path]
    saved = path.read_bytes()
    again = run_and_log(plan_in(tmp_path, spec("window_one_too_long"), seed=2, max_cases=4), shards=shards_of(plan))
    (known,) = again.failures
    assert (known.saved, known.path) == (True, str(path))
    assert path.read_bytes() == saved


@pytest.mark.slow
def test_a_target_that_does_not_load_ends_the_run(cluster: Cluster, tmp_path: Path) -> None:
    plan = plan_in(tmp_path, "nowhere:function")
    with pytest.raises(FuzzAttnError, match="nowhere"):
        FuzzRun(plan, shards=shards_of(plan)).run()


@pytest.mark.parametrize(
    ("address", "says"),
    [("127.0.0.1:1", "no Ray cluster answers there .*refused"), ("127.0.0.1:99999", "port 99999 must be 1 to 65535")],
)
def test_an_address_without_a_cluster_is_refused_at_once(address: str, says: str) -> None:
    with pytest.raises(FuzzAttnError, match=f"--ray={address}: {says}"):
        RayCluster(address)
