"""What the compile stage expects of the workers before one of them is ready, and what it does if that was wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path

import msgspec
import pytest

from fuzz_attn.backends import gpus
from fuzz_attn.backends.gpus import GpuFacts
from fuzz_attn.binding.binding import Binding
from fuzz_attn.case.domain import Domain
from fuzz_attn.engine import compiler
from fuzz_attn.engine.compiler import Workers, ask_gpu, ask_workers, rounds_compiled, workers_of
from fuzz_attn.engine.events import WHOLE_RUN, RoundCompiled
from fuzz_attn.engine.orders import Ready, Setup
from fuzz_attn.engine.rounds import StagePlan

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
    monkeypatch.setattr(compiler, "ANSWER_SECONDS", 0.1)
    assert ask_gpu()() is None


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows whenever the GPU is asked."""
    times: list[int] = []

    def ask() -> Callable[[], GpuFacts | None]:
        times.append(1)
        return lambda: GPU

    monkeypatch.setattr(compiler, "ask_gpu", ask)
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
    monkeypatch.setattr(compiler, "ask_gpu", lambda: lambda: None)
    assert ask_workers(Setup("paged"))() is None


WRONG = READY.domain.in_memory()


@pytest.mark.parametrize(
    ("expected", "before"),
    [
        (workers_of(Setup("paged"), READY), []),
        (None, []),
        (Workers(GPU, WRONG, None), ["ended"]),
        (Workers((8, 0, 108), READY.domain, None), ["ended"]),
    ],
    ids=["right", "nothing", "another domain", "another GPU"],
)
def test_all_begins_anew_where_workers_say_something_else(
    expected: Workers | None, before: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Workers] = []
    urgent: list[bool] = []
    ended: list[str] = []

    class FakeCompiler:
        def __init__(self, plan: StagePlan, workers: Workers) -> None:
            self.workers = workers
            self.number = count()
            self.urgent = False

        def step(self) -> Iterator[RoundCompiled]:
            used.append(self.workers)
            urgent.append(self.urgent)
            yield RoundCompiled(WHOLE_RUN, next(self.number), 0, 0, 0, True, 0.0)

        def end(self) -> None:
            ended.append("ended")

    def ready(seconds: float | None) -> Ready | None:
        waits.append(seconds)
        return READY if seconds is None or len(waits) == 3 else None

    waits: list[float | None] = []
    monkeypatch.setattr(compiler, "Compiler", FakeCompiler)
    plan = StagePlan(Setup("paged"), 1, str(tmp_path), cores=1)
    early = 0 if expected is None else 2
    events = islice(rounds_compiled(plan, expected, ready), early + 3)
    done = [event.round for event in events if isinstance(event, RoundCompiled)]
    anew = expected is None or bool(before)
    assert done == ([*range(early), *range(3)] if anew else [*range(early + 3)])
    assert urgent == [False] * early + [True] * 3
    assert used[early:] == [workers_of(plan.setup, READY)] * 3
    assert ended == before
    assert waits == ([None] if expected is None else [0.0] * 3)


def test_a_calibrated_binding_is_that_of_the_worker() -> None:
    stated, found = Binding(), msgspec.structs.replace(Binding(), roles={"q": "query"})
    setup = Setup("t", binding=stated)
    assert workers_of(setup, READY).binding == stated
    calibrated = msgspec.structs.replace(READY, published=False, binding=found)
    assert workers_of(setup, calibrated).binding == found
