"""The pytest plugin in a user's folder: fuzz tests of two lines, options, and xdist."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fuzz_attn import pytest_plugin
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence
from fuzz_attn.counterexamples import signed
from fuzz_attn.engine import campaign
from fuzz_attn.engine.campaign import Plan
from fuzz_attn.engine.events import Emit, FailureFound, Finished
from fuzz_attn.engine.listeners.event_log import logs_in, report_of
from fuzz_attn.engine.listeners.statistics import Statistics
from fuzz_attn.engine.orders import Setup
from fuzz_attn.oracle.verdict import Verdict

TORCH = Path(__file__).parents[1] / "sample_targets" / "torch_attention.py"

TWO_LINES = """
from fuzz_attn import fuzz
test_attention = fuzz("attention.py:unified_attention", max_cases=30)
"""

AUTO_WORKERS = 3
"""What ``-n auto`` stands for, on every machine."""

OF_OTHERS = (
    *("-W", "ignore:The configuration option:pytest.PytestDeprecationWarning"),
    *("-W", "ignore:Benchmarks are automatically disabled"),
)
"""Options that silence what pytest-asyncio and pytest-benchmark say of themselves, where they are installed."""

WITHOUT_HYPOTHESIS = ("-p", "no:hypothesispytest")
"""Options that let pytest start without Hypothesis' plugin, which takes more than half of the time of its start."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a new folder that contains a kernel and nothing else."""
    shutil.copy(TORCH, tmp_path / "attention.py")
    return tmp_path


def call_pytest(
    folder: Path, test: str, *options: str, without: tuple[str, ...] = WITHOUT_HYPOTHESIS
) -> "subprocess.CompletedProcess[str]":
    """Run pytest in the folder on one file, without any settings of Triton and pytest in the environment."""
    (folder / "test_attention.py").write_text(test)
    settings = ("TRITON_INTERPRET", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "COLUMNS")
    environment = {name: value for name, value in os.environ.items() if name not in settings}
    environment["PYTEST_XDIST_AUTO_NUM_WORKERS"] = str(AUTO_WORKERS)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *without, *options, *OF_OTHERS, "test_attention.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def statistics_in(folder: Path) -> list[Statistics]:
    (run,) = (folder / "reports" / "runs").iterdir()
    return [report_of(log).statistics for log in logs_in(run)]


def test_fuzz_test_of_two_lines(folder: Path) -> None:
    strict = ("--strict-markers", "--strict-config", "-W", "error")
    done = call_pytest(folder, TWO_LINES, *strict, "-n", "2", without=())
    assert done.returncode == 0, done.stdout
    shards = statistics_in(folder)
    assert len(shards) == 2
    assert sum(shard.cases for shard in shards) == 30
    assert len({shard.seed for shard in shards}) == 1
    assert "2 passed" in done.stdout
    assert done.stdout.count("Summary of attention.py:unified_attention") == 1
    assert re.search(rf"seed +{shards[0].seed}, split over 2 shard", done.stdout)
    assert not (folder / "tests").exists()


@pytest.mark.parametrize(("workers", "shards"), [("0", 1), ("2", 2), ("auto", AUTO_WORKERS)])
def test_collection_lists_a_shard_for_each_worker(workers: str, shards: int, folder: Path) -> None:
    done = call_pytest(folder, TWO_LINES, "-n", workers, "--collect-only", "-q")
    assert re.findall(r"^test_attention.py::test_attention\[shard(\d+)\]$", done.stdout, re.MULTILINE) == [
        str(shard) for shard in range(shards)
    ]


@pytest.mark.slow
def test_options_replace_arguments(folder: Path) -> None:
    options = ("--fuzz-max-cases=3", "--fuzz-seed=7", "--fuzz-workers=2", "--fuzz-out=elsewhere", "-v")
    done = call_pytest(folder, TWO_LINES, *options, "--fuzz-target=attention.py:last_row_unwritten")
    assert done.returncode == 1, done.stdout
    for shard in range(2):
        assert f"test_attention[shard{shard}]" in done.stdout
    assert sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name[0] not in "._") == ["elsewhere"]
    (run,) = (folder / "elsewhere" / "runs").iterdir()
    shards = [report_of(log).statistics for log in logs_in(run)]
    assert {shard.target for shard in shards} == {"attention.py:last_row_unwritten"}
    assert [shard.seed for shard in shards] == [7, 7]
    assert all(1 <= shard.cases <= 2 for shard in shards)
    assert list((folder / "elsewhere" / "counterexamples").rglob("*.json"))


def test_failure_is_printed_with_a_command_that_replays_it(folder: Path) -> None:
    done = call_pytest(folder, TWO_LINES.replace("unified_attention", "last_row_unwritten"))
    assert done.returncode == 1
    assert "FAILED test_attention.py::test_attention[shard0] - Failed: unwritten: " in done.stdout
    output = done.stdout[done.stdout.index("FAILED attention.py") :]
    parts = ["FAILED attention.py:last_row_unwritten on ", "oracle (unwritten): ", " never written"]
    parts += ["The case\n", "sequence 0 ", "Worst elements\n", "expected", "Replay it\n"]
    assert sorted(parts, key=output.index) == parts
    assert "Traceback" not in output
    assert "fuzz_attn/pytest_plugin.py" not in output
    (command,) = set(re.findall(r"Replay it\n +(.*)", output))  # with CI=true, pytest repeats it in its summary
    assert "tests/counterexamples/attention.py-last_row_unwritten/oracle-unwritten-" in command
    replayed = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=False)
    assert replayed.returncode == 1, replayed.stderr
    assert replayed.stdout.startswith("FAILED  tests/counterexamples/")
    assert replayed.stdout.endswith("1 replayed, 1 failed\n")


OWN_FUNCTIONS = """
from functools import partial

import attention
from fuzz_attn import fuzz

def my_attention(**arguments):
    attention.unified_attention(**arguments)

test_own = fuzz(my_attention, max_cases=5)
test_imported = fuzz(attention.unified_attention, max_cases=6)
test_again = fuzz(attention.unified_attention, max_cases=7)

def test_of_another_kind():
    assert True
"""


@pytest.mark.slow
def test_functions_are_targets(folder: Path) -> None:
    done = call_pytest(folder, OWN_FUNCTIONS)
    assert "4 passed" in done.stdout, done.stdout
    counts = sorted((shard.target, shard.cases) for shard in statistics_in(folder))
    assert counts == [
        ("attention.py:unified_attention", 6),
        ("attention.py:unified_attention", 7),
        ("test_attention.py:my_attention", 5),
    ]
    assert done.stdout.count("Summary of attention.py:unified_attention") == 1
    assert re.search(r"cases +13 in ", done.stdout)


def test_other_tests_print_and_write_nothing(folder: Path) -> None:
    done = call_pytest(folder, "def test_of_another_kind(): pass\n")
    assert "1 passed" in done.stdout
    assert "Summary" not in done.stdout
    assert not (folder / "reports").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--fuzz-max-time=nan", "argument --fuzz-max-time: nan must be above 0"),
        ("--fuzz-max-cases=-3", "argument --fuzz-max-cases: -3 must be above 0"),
        ("--fuzz-seed=x", "argument --fuzz-seed: invalid int value: 'x'"),
        ("--fuzz-backend=gpu", "argument --fuzz-backend: invalid choice: 'gpu' (choose from "),
    ],
)
def test_wrong_option_is_a_usage_error(option: str, message: str, folder: Path) -> None:
    done = call_pytest(folder, TWO_LINES, option)
    assert done.returncode == 4
    assert message in done.stderr


MISTAKES = {
    "missing target": ('fuzz("gone.py:attend")', "target file 'gone.py' does not exist"),
    "no family": (
        'fuzz("math:gcd")',
        "target='math:gcd' has no parameter for query or batched_query, key_cache or ",
    ),
    "lambda": ("fuzz(lambda: None)", "must be a function that its file holds under its own name"),
    "no budget": ('fuzz("unified", max_cases=0)', "max_cases=0 must be above 0"),
    "family": ('fuzz("unified", family="split")', "family='split' must be one of: unified, paged, context, chunked"),
    "backend": ('fuzz("unified", backend="gpu")', "backend='gpu' must be one of: auto, "),
    "no marker": ("None\ndef test_mine(fuzz_attn_shard): pass", "test_mine[shard0] takes fuzz_attn_shard without"),
}


def test_mistakes_in_a_test_are_reported_in_one_line(folder: Path) -> None:
    for name, (call, _) in MISTAKES.items():
        file = folder / f"test_{name.replace(' ', '_')}.py"
        file.write_text(f"from fuzz_attn import fuzz\ntest_it = {call}\n")
    done = call_pytest(folder, "", "--continue-on-collection-errors", str(folder))
    assert done.returncode != 0
    assert "During handling" not in done.stdout
    for name, (_, message) in MISTAKES.items():
        assert message in done.stdout, f"{name}: {done.stdout}"


def test_help_lists_the_options_of_the_command_line() -> None:
    text = subprocess.run([sys.executable, "-m", "pytest", "--help"], capture_output=True, text=True, check=True).stdout
    for name in ("target", "family", "backend", "max-time", "max-cases", "seed", "workers", "out"):
        assert f"--fuzz-{name}" in text


def test_plugin_imports_little(folder: Path) -> None:
    code = (
        "import sys, fuzz_attn.pytest_plugin; "
        "print(sorted({'torch', 'triton', 'hypothesis', 'rich'} & set(sys.modules)))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "[]\n"


@pytest.mark.parametrize("status", ["known", "open"])
def test_only_a_known_failure_passes_the_test(status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = signed("mine.py:attend", "unified", None, AttentionCase((Sequence(1),)), Verdict("oracle", "nan", "NaN"))
    found = msgspec.structs.replace(found, status=status, reference="#7", because="waits for a release")

    class Found:
        def __init__(self, plan: Plan, emit: Emit) -> None:
            self.emit = emit

        def run(self) -> None:
            self.emit(FailureFound(0, 0, found, "a.json"))
            self.emit(Finished(0, 1.0))

    monkeypatch.setattr(campaign, "Campaign", Found)
    reason = pytest_plugin._failure(Plan(Setup("mine.py:attend"), 0, 1, 0, None, 1, tmp_path, tmp_path))
    assert ("FAILED mine.py:attend" in reason) == (status == "open")
    assert bool(reason) == (status == "open")


IN_CLASSES = """
import pytest
from fuzz_attn import fuzz

class TestOne:
    test_it = fuzz("attention.py:unified_attention", max_cases=2)

    def test_another(self):
        assert True

@pytest.fixture(params=["a", "b"], autouse=True)
def of_users(request):
    return request.param

test_it = fuzz("attention.py:unified_attention", max_cases=3)
"""


@pytest.mark.slow
def test_fuzz_tests_in_classes_and_with_parameters(folder: Path) -> None:
    done = call_pytest(folder, IN_CLASSES, "-W", "error")
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout
    assert sorted(shard.cases for shard in statistics_in(folder)) == [2, 2, 3, 3], "each has a log of its own"
