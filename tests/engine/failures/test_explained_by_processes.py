"""What a worker in Triton's interpreter finds, another one in the simulator explains, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz_attn import counterexamples
from fuzz_attn.counterexamples import Counterexample
from fuzz_attn.engine import isolated_worker
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.listeners.results import Results
from fuzz_attn.engine.orders import Setup
from fuzz_attn.engine.replay import replay
from fuzz_attn.report.failure import certainty

TARGETS = Path(__file__).parents[2] / "sample_targets" / "on_one_backend.py"
Found = Callable[[str], tuple[Counterexample, Path]]


@pytest.fixture
def found(campaign: Callable[..., Results]) -> Found:
    """Return a function that returns the first failure that the interpreter finds in a target, and its file."""

    def run(name: str) -> tuple[Counterexample, Path]:
        target = f"{TARGETS}:{name}"
        explaining = IsolatedWorker(Setup(target, backend="simulator"))
        results = campaign(name, setup=Setup(target, backend="interpreter"), explaining=explaining, until_failure=True)
        assert results.failure is not None
        assert results.path is not None
        assert counterexamples.load(results.path) == results.failure
        return results.failure, results.path

    return run


def test_a_bug_of_logic_is_shrunk_and_explained_in_the_simulator(found: Found) -> None:
    failure, path = found("sinks_ignored")
    assert failure.elsewhere is not None
    assert (failure.elsewhere.outcome, failure.elsewhere.shrunk_case) == ("fails", "fails")
    assert failure.environment.backend == "interpreter"
    assert failure.shrunk
    assert "sinks" in failure.trigger
    assert "sink" in failure.verdict.explanation
    for backend in ("interpreter", "simulator"):
        (replayed,) = replay((path,), backend=backend)
        assert replayed.status == "FAILED"


@pytest.mark.slow
def test_a_failure_of_the_interpreter_only_says_so_and_is_not_taken_for_mended(found: Found) -> None:
    failure, path = found("sinks_ignored_in_the_interpreter")
    assert failure.elsewhere is not None
    assert failure.elsewhere.outcome == "passes"
    assert "sinks" in failure.trigger
    assert "only on interpreter: it passes in the simulator" in certainty(failure)
    statuses = {each: next(iter(replay((path,), backend=each))).status for each in ("interpreter", "simulator")}
    assert statuses == {"interpreter": "FAILED", "simulator": "UNSEEN"}


@pytest.mark.slow
def test_a_simulator_that_does_not_end_costs_no_failure(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated_worker, "EXPLAINING_SECONDS", 3.0)
    failure, _ = found("sinks_ignored_and_never_ending_in_the_simulator")
    assert failure.elsewhere is not None
    assert failure.elsewhere.reason == "the launch takes more than 3 s there"
    assert (failure.confirmation, failure.shrunk) == ("confirmed", True)
