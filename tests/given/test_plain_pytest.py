"""A user's test with ``@given``, run by plain pytest: it finds a bug, shrinks it, replays it, and says the cause."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz_attn import counterexamples
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.oracle.verdict import Verdict

TORCH = Path(__file__).parents[1] / "sample_targets" / "torch_attention.py"

TWELVE_LINES = """\
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz_attn import cases, check

KERNEL = "attention.py:window_one_too_long"


@settings(deadline=None)
@given(case=cases(KERNEL, window=st.integers(1, 64)))
def test_attention(case):
    check(KERNEL, case)
"""

OTHER_HABITS = """\
import pytest
from attention import unified_attention
from hypothesis import example, find, given, settings

from fuzz_attn import KernelError, cases, check

WRONG = "attention.py:last_row_unwritten"
SAVED = "saved.json"


@settings(max_examples=4)
@given(case=cases(WRONG))
def test_seed(case):
    print("drawn", case)


@example(case=SAVED)
@given(case=cases(unified_attention, max_seq_len=16))
def test_example_passes(case):
    check(unified_attention, case)


@example(case=SAVED)
@given(case=cases(WRONG))
def test_example_fails(case):
    check(WRONG, case)


def test_find():
    def is_wrong(case):
        try:
            check(WRONG, case)
        except KernelError:
            return True
        return False

    case = find(cases(WRONG, head_size=80), is_wrong)
    assert (case.heads.head_size, len(case.sequences), case.num_tokens) == (80, 1, 1)


@given(case=cases(WRONG, window=5))
def test_deadline(case):
    check(unified_attention, case)
"""

PROFILES = """\
from hypothesis import Phase, settings

QUICK = set(Phase) - {Phase.explain}
settings.register_profile("quick", phases=QUICK)
settings.register_profile("few", phases=QUICK, max_examples=4, deadline=None)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a kernel and tests of it."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "attention.py").write_text(f"{TORCH.read_text()}\nprint('attention is imported')\n")
    (folder / "test_window.py").write_text(TWELVE_LINES)
    (folder / "test_habits.py").write_text(OTHER_HABITS)
    (folder / "conftest.py").write_text(PROFILES)
    return folder


def call_pytest(folder: Path, *arguments: str) -> str:
    """Return what pytest prints; the width is that of CI, where summaries are not cut off."""
    settings = ("TRITON_INTERPRET", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "HYPOTHESIS_PROFILE")
    environment = {name: value for name, value in os.environ.items() if name not in settings} | {"COLUMNS": "500"}
    environment.pop("CI", None)  # Hypothesis keeps no database there
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_twelve_lines_find_shrink_and_explain(folder: Path) -> None:
    assert len(TWELVE_LINES.splitlines()) == 12
    first = call_pytest(folder, "test_window.py", "--hypothesis-profile=quick")
    summary = re.findall(r"^FAILED .*", first, re.MULTILINE)
    assert len(summary) == 1
    assert "fuzz_attn.KernelError: window: query" in summary[0]
    assert "one too far" in summary[0]
    assert "oracle (mismatch): 16 of 32 elements wrong" in summary[0]
    (path,) = re.findall(r"fuzz-attn replay (\S+\.json) --trust", first)
    found = counterexamples.load(folder / path)
    assert len(found.case.sequences) == 1
    assert found.case.num_tokens <= 4
    assert found.case.max_seq_len <= 4
    assert found.case.window == 1
    assert "causal, window of 1 key" in first
    again = call_pytest(folder, "test_window.py", "--hypothesis-show-statistics", "--hypothesis-profile=quick")
    assert "during reuse phase" in again
    assert "during generate phase" not in again
    assert path in again
    assert len(list((folder / path).parent.iterdir())) == 1, "the same case is saved once"


@pytest.mark.slow
def test_other_habits(folder: Path, case: AttentionCase) -> None:
    saved = counterexamples.signed("x", "unified", None, case, Verdict("oracle", "nan"))
    shutil.move(counterexamples.save(saved, folder), folder / "saved.json")
    printed = call_pytest(folder, "test_habits.py", "-s", "--hypothesis-profile=few", "--hypothesis-seed=3")
    assert re.findall(r"(\d+) failed, (\d+) passed", printed) == [("1", "4")]
    assert re.search(r"^FAILED test_habits.py::test_example_fails - .*never written", printed, re.MULTILINE)
    assert "case='saved.json'" in printed
    assert printed.count("attention is imported") == 1, "the test's own import is what is judged"
    drawn = re.findall("drawn (.*)", printed)
    assert len(set(drawn)) > 1
    printed = call_pytest(folder, "test_habits.py", "-s", "-k", "seed or deadline", "--hypothesis-seed=3")
    assert re.findall("drawn (.*)", printed) == drawn
    assert "NotJudgedError: deadline=200 ms is too short for a kernel" in printed
