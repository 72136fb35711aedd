"""Old run folders are deleted, and nothing else."""

from pathlib import Path

import pytest

from fuzz_attn.engine import run_folder
from fuzz_attn.engine.run_folder import prune


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with five runs, whose processes have all ended, and things that are no runs."""
    monkeypatch.setattr(run_folder, "_is_running", lambda pid: pid == 3)
    for number in range(1, 6):
        folder = tmp_path / f"20260101-00000{number}-{number}" / ("target" if number == 2 else "")
        folder.mkdir(parents=True)
        (folder / "events.jsonl").write_text("")
    (tmp_path / "20250101-000000-9").mkdir()  # without a log
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "events.jsonl").write_text("")
    return tmp_path


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
