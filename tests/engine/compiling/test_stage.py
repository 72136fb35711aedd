"""The compile stage of a run: it compiles for the GPU of the workers, and is gone with the run."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest

from fuzz_attn.backends.gpus import visible_gpus
from fuzz_attn.case.domain import Domain
from fuzz_attn.engine import rounds
from fuzz_attn.engine.events import Event, Note, RoundCompiled
from fuzz_attn.engine.fuzz_run import FuzzRun
from fuzz_attn.engine.listeners.statistics import Statistics
from fuzz_attn.engine.orders import Ready, Setup
from fuzz_attn.engine.rounds import CompileStage, ReadyRound, Rounds, StagePlan
from fuzz_attn.engine.run_folder import TRITON_CACHE
from fuzz_attn.engine.run_plan import RunPlan

SMALL = Domain(
    family="paged",
    features=frozenset(),
    head_sizes=(16,),
    block_sizes=(16,),
    group_sizes=(1,),
    dtypes=("float32",),
    tile_sizes=(16,),
)
READY = Ready("paged", "paged", "paged", "cuda", "cuda", domain=SMALL, gpu=(9, 0, 132))


def events_of(compiling: CompileStage, enough: int) -> list[Event]:
    """Wait for so many events."""
    seen: list[Event] = []
    while len(seen) < enough:
        seen += compiling.events()
        time.sleep(0.01)
    return seen


@pytest.mark.slow
def test_a_round_becomes_ready_and_a_second_run_finds_its_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRITON_CACHE, str(tmp_path / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # else Triton 3.9 warns
    counts = []
    for folder in ("first", "second"):
        plan = StagePlan(Setup("paged"), 1, str(tmp_path / folder), cores=1)
        with CompileStage(plan) as compiling:
            compiling.begin(READY)
            first = events_of(compiling, 1)[0]
            assert isinstance(first, RoundCompiled)
            assert Rounds(Path(plan.folder)).next(Random(1), lambda: True) == ReadyRound(0, complete=True)
        counts.append((first.compiled, first.loaded, first.failed))
    compiled = counts[0][0]
    assert compiled
    assert counts == [(compiled, 0, 0), (0, compiled, 0)]


def test_a_compiler_that_dies_is_reported_and_shards_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "COMMAND", (sys.executable, "-c", "import sys; print('no memory'); sys.exit(3)"))
    with CompileStage(StagePlan(Setup("paged"), 1, str(tmp_path), cores=1)) as compiling:
        compiling.begin(READY)
        (note,) = events_of(compiling, 1)
        assert isinstance(note, Note)
        assert "the compiler ended its process with status 3; it last printed:\nno memory" in note.text
        assert not list(compiling.events())
    assert (tmp_path / "ended").exists()


def statistics_of(plan: RunPlan) -> Statistics:
    return msgspec.structs.replace(FuzzRun(plan).run().statistics, seconds=0.0, judging=0.0)


@pytest.mark.slow
@pytest.mark.skipif(bool(visible_gpus({})), reason="a machine with a GPU would use it")
def test_a_run_on_a_cpu_is_the_same_where_a_gpu_might_be(
    spec: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(folder: str) -> RunPlan:
        return RunPlan(Setup(spec("unified_attention")), 5, 1, None, 20, tmp_path / folder, tmp_path / "saved")

    monkeypatch.delenv("TRITON_INTERPRET")
    for name in ("CUDA_VISIBLE_DEVICES", TRITON_CACHE):
        monkeypatch.delenv(name, raising=False)
    without = statistics_of(plan("cpu"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert statistics_of(plan("gpu")) == without
    assert (tmp_path / "gpu" / "rounds" / "ended").exists()
    assert not (tmp_path / "cpu" / "rounds").exists()
    assert os.environ.get(TRITON_CACHE) is None
