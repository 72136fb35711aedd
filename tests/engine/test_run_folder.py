"""Old run folders are deleted, and nothing else."""

import os
import time
from pathlib import Path

import pytest

from fuzz_attn.engine import run_folder
from fuzz_attn.engine.run_folder import IDLE_SECONDS, is_run_folder, new_run_folder, output_folder, prune


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with five runs, whose processes have all ended, and things that are no runs."""
    monkeypatch.setattr(run_folder, "_is_running", lambda pid: pid == 3)
    for number in range(1, 6):
        folder = tmp_path / f"20260101-00000{number}-{number}" / ("target" if number == 2 else "")
        folder.mkdir(parents=True)
        (folder / "events.jsonl").write_text("")
        age(tmp_path / f"20260101-00000{number}-{number}")
    (tmp_path / "20250101-000000-9").mkdir()  # without a log
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "events.jsonl").write_text("")
    return tmp_path


def age(folder: Path) -> None:
    """Let a folder look as if nothing was written to it for long."""
    then = time.time() - 2 * IDLE_SECONDS
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (then, then))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_runs_stay(runs: Path) -> None:
    prune(runs, kept=2)
    assert names(runs) == [
        "20250101-000000-9",
        "20260101-000003-3",  # its process still runs
        "20260101-000004-4",
        "20260101-000005-5",
        "mine",
    ]


def test_few_runs_all_stay(runs: Path) -> None:
    before = names(runs)
    prune(runs)
    assert names(runs) == before


def test_a_folder_that_does_not_exist_has_no_runs(tmp_path: Path) -> None:
    prune(tmp_path / "gone")


def test_two_runs_of_one_second_and_process_number_have_two_folders(tmp_path: Path) -> None:
    folders = [new_run_folder(tmp_path) for _ in range(100)]
    assert len({folder.name for folder in folders}) == 100
    assert {output_folder(folder) for folder in folders} == {tmp_path}
    folders[0].mkdir(parents=True)
    (folders[0] / "events.jsonl").write_text("")
    assert is_run_folder(folders[0])


def test_an_older_name_is_that_of_a_run(tmp_path: Path) -> None:
    assert output_folder(tmp_path / "runs" / "20260101-000001-17") == tmp_path


@pytest.mark.parametrize("written", ["", "events.jsonl", "new.json"])
def test_a_run_that_wrote_lately_stays_whatever_processes_run_here(
    written: str, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be that of another machine: this one knows nothing of its processes."""
    monkeypatch.setattr(run_folder, "_is_running", lambda pid: False)
    folder = runs / "20260101-000001-1"
    (folder / written).touch()
    prune(runs, kept=1)
    assert names(runs) == ["20250101-000000-9", "20260101-000001-1", "20260101-000005-5", "mine"]
