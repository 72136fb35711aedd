"""The tables of `make faults` fit the harness: each old text occurs once, and each named test exists."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "faults" / "check_faults.py"
FEWEST = 40
PACKAGES = (
    *("oracle", "binding", "properties", "backends", "simulator", "targets", "inputs", "ttir"),
    *("case", "calibration", "engine", "report", "export", "cli", "workers", "operations"),
    "forensics",
    *("counterexamples.py", "foreign_files.py", "given.py"),
)

Loader = Callable[[Path], ModuleType]


@pytest.fixture(scope="module")
def faults(module_at: Loader) -> list[Any]:
    """Return the faults of all tables."""
    return list(module_at(SCRIPT).load_faults())


def test_there_are_many_faults_of_each_part_of_the_harness(faults: list[Any]) -> None:
    assert len(faults) >= FEWEST
    assert all(count == 1 for count in Counter(fault.name for fault in faults).values())
    assert {Path(fault.file).parts[1] for fault in faults} == set(PACKAGES)


def test_each_fault_changes_one_place_and_leaves_python(faults: list[Any]) -> None:
    for fault in faults:
        assert fault.old != fault.new, fault.name
        assert fault.matters, fault.name
        ast.parse(around(fault, fault.text_in(ROOT)))


def around(fault: Any, text: str) -> str:
    """Return the top-level statements of a file that a fault changes: between them are two empty lines."""
    old = (ROOT / fault.file).read_text()
    start = old.index(fault.old)
    behind = old[start + len(fault.old) :].partition("\n\n\n")[2]
    return text[old.rfind("\n\n\n", 0, start) + 1 : len(text) - len(behind)]


def test_each_named_test_exists(faults: list[Any]) -> None:
    for fault in faults:
        path, _, node = fault.test.partition("::")
        assert re.search(rf"^def {node.partition('[')[0]}\(", (ROOT / path).read_text(), re.MULTILINE), fault.name


def test_a_text_that_occurs_twice_is_refused(module_at: Loader, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    fault = module_at(SCRIPT).Fault("twice", "a.py", "x = 1", "x = 2", "", "")
    with pytest.raises(ValueError, match=r"twice: old text occurs 2 times in a\.py"):
        fault.text_in(tmp_path)


def check_with(codes: list[int], module: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch, old: str) -> int:
    """Return what a check of one fault returns if pytest ends with these codes, first without the fault."""

    def copied(place: Path) -> Path:
        place.mkdir()
        (place / "a.py").write_text("x = 1\n")
        return place

    def run_tests(_: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
        if "--collect-only" in tests:
            return subprocess.CompletedProcess(tests, 0, "test.py::test_y\n", "")
        return subprocess.CompletedProcess(tests, codes.pop(0), "", "")

    monkeypatch.setattr(module, "copy_of_checkout", copied)
    monkeypatch.setattr(module, "run_tests", run_tests)
    return int(module.check([module.Fault("made_up", "a.py", old, "x = 2", "test.py::test_x", "")], 1))


@pytest.mark.parametrize(
    ("codes", "old", "status", "line"),
    [
        ([0, 1], "x = 1", 0, "1 of 1 faults found"),
        ([0, 1], "x = 1", 0, "1 of them are slow: `make test` leaves them to the night\n    test.py::test_x"),
        ([0, 0], "x = 1", 1, "made_up  survived"),
        ([0, 2], "x = 1", 1, "made_up  no verdict"),
        ([0], "x = 3", 1, "made_up  does not apply"),
        ([1], "x = 1", 2, "must pass before faults are put in"),
        ([4], "x = 1", 2, "must pass before faults are put in"),
    ],
)
def test_only_a_failing_test_finds_a_fault(
    codes: list[int],
    old: str,
    status: int,
    line: str,
    module_at: Loader,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert check_with(codes, module_at(SCRIPT), tmp_path, monkeypatch, old) == status
    assert line in capsys.readouterr().out


def test_an_unknown_name_is_refused() -> None:
    process = subprocess.run([sys.executable, SCRIPT, "no-such-fault"], check=False, capture_output=True, text=True)
    assert process.returncode == 2
    assert "no fault's name contains no-such-fault" in process.stderr
