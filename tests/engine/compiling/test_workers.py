"""What the compile stage expects of the workers before one of them is ready, and what it does if that was wrong."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from fuzz_attn.backends import gpus
from fuzz_attn.backends.gpus import GpuFacts
from fuzz_attn.bindings.binding import Binding
from fuzz_attn.case.domain import Domain
from fuzz_attn.engine.compiling import compiler, workers
from fuzz_attn.engine.compiling.compiler import rounds_compiled
from fuzz_attn.engine.compiling.rounds import StagePlan
from fuzz_attn.engine.compiling.workers import Workers, ask_gpu, ask_workers, workers_of
from fuzz_attn.engine.events import WHOLE_RUN, RoundCompiled
from fuzz_attn.engine.messages import Ready, Setup

GPU = (9, 0, 132)
READY = Ready("paged", "paged", "paged", "cuda", "cuda", domain=Domain(family="paged"), gpu=GPU)


def test_a_gpu_is_asked_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "gpu_facts", lambda: GPU)
    assert ask_gpu()() == GPU


@pytest.mark.parametrize("error", [RuntimeError, AssertionError])
def test_without_a_gpu_there_is_no_answer(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def no_gpu() -> GpuFacts:
        raise error("Found no NVIDIA driver on your system.")

    monkeypatch.setattr(gpus, "gpu_facts", no_gpu)
    assert ask_gpu()() is None


def test_a_gpu_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs() -> GpuFacts:
        while True:
            pass

    monkeypatch.setattr(gpus, "gpu_facts", hangs)
    monkeypatch.setattr(workers, "ANSWER_SECONDS", 0.1)
    assert ask_gpu()() is None


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows whenever the GPU is asked."""
    times: list[int] = []

    def ask() -> Callable[[], GpuFacts | None]:
        times.append(1)
        return lambda: GPU

    monkeypatch.setattr(workers, "ask_gpu", ask)
    return times


def test_the_workers_of_a_built_in_target_are_known_beforehand(asked: list[int]) -> None:
    expected = ask_workers(Setup("chunked"))()
    assert asked
    assert expected is not None
    assert (expected.gpu, expected.binding) == (GPU, None)
    assert expected.domain.family == "chunked"
    assert not expected.domain.features & {"large_offsets", "far_axes"}


def test_those_of_other_targets_are_not_and_their_module_is_left_alone(tmp_path: Path, asked: list[int]) -> None:
    module = tmp_path / "target.py"
    module.write_text("raise SystemError('executed')")
    assert ask_workers(Setup(f"{module}:attend"))() is None
    assert not asked


def test_those_of_a_target_with_a_stated_binding_are_not(asked: list[int]) -> None:
    assert ask_workers(Setup("paged", binding=Binding()))() is None
    assert not asked


def test_nothing_is_expected_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "ask_gpu", lambda: lambda: None)
    assert ask_workers(Setup("paged"))() is None


WRONG = READY.domain.in_memory()


@pytest.mark.parametrize(
    ("expected", "compiled"),
    [
        (workers_of(Setup("paged"), READY), [0, 1, 2]),
        (None, [0, 1, 2]),
        (Workers(GPU, WRONG, None), [0, 0, 1, 2]),
        (Workers((8, 0, 108), READY.domain, None), [0, 0, 1, 2]),
    ],
    ids=["right", "nothing", "another domain", "another GPU"],
)
def test_the_first_round_is_compiled_again_where_workers_say_something_else(
    expected: Workers | None, compiled: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Workers] = []

    class FakeCompiler:
        def __init__(self, plan: StagePlan, workers: Workers) -> None:
            self.workers = workers

        def compile_round(self, number: int) -> RoundCompiled:
            used.append(self.workers)
            return RoundCompiled(WHOLE_RUN, number, 0, 0, 0, True, 0.0)

        def wait_for(self, number: int) -> None:
            pass

    monkeypatch.setattr(compiler, "Compiler", FakeCompiler)
    plan = StagePlan(Setup("paged"), 1, str(tmp_path), cores=1)
    done = list(islice(rounds_compiled(plan, expected, lambda: READY), len(compiled)))
    assert [each.round for each in done] == compiled
    assert used[-2:] == [workers_of(plan.setup, READY)] * 2


def test_a_calibrated_binding_is_that_of_the_worker() -> None:
    stated, found = Binding(), msgspec.structs.replace(Binding(), roles={"q": "query"})
    setup = Setup("t", binding=stated)
    assert workers_of(setup, READY).binding == stated
    calibrated = msgspec.structs.replace(READY, published=False, binding=found)
    assert workers_of(setup, calibrated).binding == found
