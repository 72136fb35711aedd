"""The number of cores follows the affinity of the process and the quotas of its control groups, versions 1 and 2."""

import os
from pathlib import Path

import pytest

from fuzz_attn.engine.run_plan import available_cores


@pytest.fixture(autouse=True)
def affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 5, 7}, raising=False)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


CASES = {
    "no quota": ("0::/a/b", {"a/cpu.max": "max 100000"}, 6),
    "of the group": ("0::/a/b", {"a/b/cpu.max": "200000 100000"}, 2),
    "of a group above": ("0::/a/b", {"a/cpu.max": "350000 100000", "a/b/cpu.max": "max 100000"}, 3),
    "in a container, whose group is the root": ("0::/docker/x", {"cpu.max": "400000 100000"}, 4),
    "below one core": ("0::/", {"cpu.max": "50000 100000"}, 1),
    "above the affinity": ("0::/", {"cpu.max": "6400000 100000"}, 6),
    "version 1": (
        "4:cpu,cpuacct:/a\n1:name=systemd:/a",
        {"cpu,cpuacct/a/cpu.cfs_quota_us": "200000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
        2,
    ),
    "version 1 without a quota": (
        "4:cpu,cpuacct:/a",
        {"cpu,cpuacct/a/cpu.cfs_quota_us": "-1", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
        6,
    ),
    "nonsense": ("0::/", {"cpu.max": "many"}, 6),
}


@pytest.mark.parametrize("name", CASES)
def test_cores(name: str, tmp_path: Path) -> None:
    groups, files, expected = CASES[name]
    write(tmp_path, {"proc": groups + "\n", **{f"root/{path}": text for path, text in files.items()}})
    assert available_cores(tmp_path / "proc", tmp_path / "root") == expected


def test_without_control_groups(tmp_path: Path) -> None:
    assert available_cores(tmp_path / "missing", tmp_path) == 6
