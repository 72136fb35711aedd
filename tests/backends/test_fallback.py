"""A case that the simulator cannot run is judged in the interpreter, unless the simulator was named explicitly."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from click.testing import CliRunner

from fuzz_attn import counterexamples
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence
from fuzz_attn.cli.main import main
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.listeners.results import Results
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.engine.replay import replay
from fuzz_attn.report.printing import text_of
from fuzz_attn.report.summary import render

FILE = Path(__file__).parents[1] / "sample_targets" / "beyond_the_simulator.py"
TARGET = f"{FILE}:unified_attention"
CASE = AttentionCase(sequences=(Sequence(1, 3),))
SHORT = AttentionCase(sequences=(Sequence(1, 1),))


@pytest.mark.parametrize("name", ["unified_attention", "has_something_else", "gives_another_reason"])
def test_a_case_that_the_simulator_cannot_run_is_judged_in_the_interpreter(name: str) -> None:
    with IsolatedWorker(Setup(f"{FILE}:{name}")) as worker:
        for count in (1, 2):
            answer = worker.judge(Order(CASE))
            assert answer.judged
            assert answer.verdict.passed
            assert answer.instead == "interpreter"
            assert re.search(r"beyond_the_simulator.py:\d+", answer.unsupported)
            assert worker.unsupported == {answer.unsupported: count}
        assert worker.ready.backend == "simulator"


def test_the_simulator_goes_on_after_a_case_that_it_cannot_run() -> None:
    with IsolatedWorker(Setup(f"{FILE}:beyond_for_long_sequences")) as worker:
        for case, instead in ((SHORT, ""), (CASE, "interpreter"), (SHORT, "")):
            answer = worker.judge(Order(case))
            assert (answer.verdict.passed, answer.instead) == (True, instead)


def test_an_integer_one_is_a_constant_where_the_kernel_needs_it() -> None:
    with IsolatedWorker(Setup(f"{FILE}:needs_a_constant", backend="simulator")) as worker:
        answer = worker.judge(Order(CASE))
        assert answer.judged
        assert answer.verdict.passed


def test_the_simulator_named_explicitly_gives_no_verdict_on_what_it_cannot_run() -> None:
    with IsolatedWorker(Setup(TARGET, backend="simulator")) as worker:
        answer = worker.judge(Order(CASE))
        assert not answer.judged
        assert "cannot run this" in answer.unsupported


@pytest.mark.parametrize(
    ("backend", "cases", "words"),
    [("auto", 3, "3 cases, judged in the interpreter:"), ("simulator", 0, "3 cases, not judged:")],
)
def test_the_summary_counts_the_cases_that_the_simulator_cannot_run(
    backend: str, cases: int, words: str, campaign: Callable[..., Results]
) -> None:
    outcome = campaign("unified_attention", setup=Setup(TARGET, backend=backend), max_cases=3)
    assert outcome.failure is None
    statistics = outcome.statistics
    assert (statistics.cases, sum(statistics.unsupported.values())) == (cases, 3)
    assert words in text_of(render(statistics))


def test_a_backend_without_sanitizers_does_not_report_their_findings_as_fixed() -> None:
    folder = Path(__file__).parents[1] / "counterexamples" / "unified"
    path = folder / "store_beyond_head.json"
    assert counterexamples.load(path).verdict.property_name == "sanitizers"
    assert [entry.status for entry in replay((path,))] == ["FIXED"]
    assert [entry.status for entry in replay((path,), backend="interpreter", in_process=True)] == ["UNSEEN"]


@pytest.mark.parametrize(("marked", "exit_status"), [("fixed", 0), ("open", 1)])
def test_a_finding_that_the_backend_cannot_detect_fails_its_replay(
    marked: Literal["open", "fixed"], exit_status: int, tmp_path: Path
) -> None:
    known = counterexamples.load(Path(__file__).parents[1] / "counterexamples" / "unified" / "store_beyond_head.json")
    path = tmp_path / "case.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(known, status=marked)))
    done = CliRunner().invoke(main, ["replay", "--backend", "interpreter", "--in-process", str(path)])
    assert done.exit_code == exit_status, done.output
    assert f"1 replayed, {exit_status} failed, 1 unseen" in done.output


def test_a_wrong_output_is_fixed_on_either_backend(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    known = counterexamples.load(Path(__file__).parents[1] / "counterexamples" / "unified" / "window_too_long.json")
    path.write_bytes(msgspec.json.encode(known))
    assert [entry.status for entry in replay((path,), backend="simulator")] == ["FIXED"]
    assert [entry.status for entry in replay((path,), backend="interpreter", in_process=True)] == ["FIXED"]
