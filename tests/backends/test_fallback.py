"""A kernel that the simulator cannot run falls back to the interpreter, unless the simulator was named explicitly."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from click.testing import CliRunner

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence
from fuzz_attn.cli.main import main
from fuzz_attn.counterexamples import counterexample
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.listeners.results import Results
from fuzz_attn.engine.messages import Order, Setup
from fuzz_attn.engine.replay import replay
from fuzz_attn.errors import BackendError
from fuzz_attn.report.plain_text import text_of
from fuzz_attn.report.summary import render

FILE = Path(__file__).parents[1] / "sample_targets" / "beyond_the_simulator.py"
TARGET = f"{FILE}:unified_attention"
CASE = AttentionCase(sequences=(Sequence(1, 3),))


@pytest.mark.parametrize("name", ["unified_attention", "needs_a_constant", "has_something_else"])
def test_auto_falls_back_to_the_interpreter(name: str) -> None:
    with IsolatedWorker(Setup(f"{FILE}:{name}")) as worker:
        assert (worker.ready.backend, worker.ready.sanitizers) == ("simulator", True)
        assert worker.judge(Order(CASE)).verdict.passed
        assert (worker.ready.backend, worker.ready.sanitizers) == ("interpreter", False)
        assert "backend='simulator' cannot run this" in worker.fallback


def test_the_simulator_named_explicitly_is_an_error() -> None:
    with IsolatedWorker(Setup(TARGET, backend="simulator")) as worker, pytest.raises(BackendError, match="cannot run"):
        worker.judge(Order(CASE))


def test_the_summary_reports_the_fallback(campaign: Callable[..., Results]) -> None:
    outcome = campaign("unified_attention", setup=Setup(TARGET), max_cases=3)
    assert outcome.failure is None
    printed = text_of(render(outcome.statistics))
    assert "interpreter" in printed
    assert "fallback" in printed


def test_a_backend_without_sanitizers_does_not_report_their_findings_as_fixed() -> None:
    folder = Path(__file__).parents[1] / "counterexamples" / "unified"
    path = folder / "store_beyond_head.json"
    assert counterexample.load(path).verdict.property_name == "sanitizers"
    assert [entry.status for entry in replay((path,))] == ["FIXED"]
    assert [entry.status for entry in replay((path,), backend="interpreter")] == ["UNSEEN"]


@pytest.mark.parametrize(("marked", "exit_status"), [("fixed", 0), ("open", 1)])
def test_a_finding_that_the_backend_cannot_detect_fails_its_replay(
    marked: Literal["open", "fixed"], exit_status: int, tmp_path: Path
) -> None:
    known = counterexample.load(Path(__file__).parents[1] / "counterexamples" / "unified" / "store_beyond_head.json")
    path = tmp_path / "case.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(known, status=marked)))
    done = CliRunner().invoke(main, ["replay", "--backend", "interpreter", str(path)])
    assert done.exit_code == exit_status, done.output
    assert f"1 replayed, {exit_status} failed, 1 unseen" in done.output


def test_a_wrong_output_is_fixed_on_either_backend(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    known = counterexample.load(Path(__file__).parents[1] / "counterexamples" / "unified" / "window_too_long.json")
    path.write_bytes(msgspec.json.encode(known))
    for backend in ("simulator", "interpreter"):
        assert [entry.status for entry in replay((path,), backend=backend)] == ["FIXED"]
