"""Fault drills: disks that are full or read-only, caches that cannot be used, and runs at the same time."""

from __future__ import annotations

import contextlib
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]

CASES = ("--max-cases", "8", "--max-time", "100")
DISK_BYTES = 512 * 2**10


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a small disk. Only root can mount one; elsewhere the tests with a limit of file sizes stand in."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "drill", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a disk; test_files_that_cannot_grow stands in")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Write until the disk is full."""
    with contextlib.suppress(OSError), (folder / "ballast").open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with contextlib.suppress(OSError), (folder / "ballast").open("ab", buffering=0) as file:
        while True:
            file.write(b"x")


def running(run: Any) -> bool:
    """Return whether cases are being judged."""
    return any(run.folder.rglob("journal-*.json"))


def test_a_disk_that_is_full_before_the_run(start: Start, disk: Path) -> None:
    (disk / "run").mkdir()
    fill(disk)
    run = start("wrong", *CASES, folder=disk / "run")
    run.end(2)
    assert "No space left on device" in run.output.splitlines()[-1]


def test_a_disk_that_fills_during_the_search(start: Start, disk: Path) -> None:
    run = start("slow", "--max-time", "200", folder=disk / "run")
    run.wait_until(lambda: running(run))
    fill(disk)
    run.end(2)
    assert "No space left on device" in run.output


def test_a_failure_that_is_found_on_a_full_disk_is_printed(start: Start, disk: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    run = start("wrong_later", "--max-time", "200", folder=disk / "run", FUZZ_ATTN_DRILL_WRONG=str(wrong))
    run.wait_until(lambda: running(run))
    fill(disk)
    wrong.touch()
    run.end(1, 2)
    assert "No space left on device" in run.output


@pytest.mark.slow
def test_a_disk_that_fills_while_a_failure_is_shrunk(start: Start, disk: Path) -> None:
    run = start("slow_and_wrong", "--max-time", "60", folder=disk / "run")
    run.wait_until(lambda: run.files)
    fill(disk)
    run.end(1, 2)
    assert "FAILED" in run.output
    (disk / "ballast").unlink()
    assert "FAILED" in run.replay_here(), "the file that was saved first is kept"


@pytest.mark.slow
def test_files_that_cannot_grow(start: Start) -> None:
    run = start("wrong", *CASES, shell="ulimit -f 1")
    run.end(1, 2)
    assert "File too large" in run.output


@pytest.mark.parametrize("place", ["/proc/out", "/dev/null", "/dev/null/out"])
def test_an_output_folder_that_cannot_be_written(place: str, start: Start) -> None:
    run = start("wrong", *CASES, "--out", place)
    run.end(2)
    (line,) = run.output.splitlines()
    assert line.startswith("fuzz-attn: ")
    assert place in line


def shared(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def in_the_place_of_a_file(folder: Path) -> None:
    folder.write_text("")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("make", "note"),
    [(shared, "other users may write to"), (in_the_place_of_a_file, "is no folder")],
    ids=["shared", "unwritable"],
)
def test_a_cache_that_must_not_be_used(make: Callable[[Path], None], note: str, start: Start, tmp_path: Path) -> None:
    make(tmp_path / "cache")
    run = start("paged", "--max-cases", "2", "--max-time", "100", FUZZ_ATTN_CACHE=str(tmp_path / "cache"))
    run.end(0)
    assert "Generated programs are not cached: " in " ".join(run.output.split())
    assert note in " ".join(run.output.split())


def test_a_corrupt_cache(start: Start, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    options = ("--max-cases", "2", "--max-time", "100")
    start("paged", *options, FUZZ_ATTN_CACHE=str(cache)).end(0)
    programs = list(cache.glob("*.program"))
    assert programs
    for path in programs:
        path.write_bytes(path.read_bytes()[:-100] + bytes(100))
    start("paged", *options, FUZZ_ATTN_CACHE=str(cache)).end(0)


@pytest.mark.slow
def test_two_runs_at_once_leave_no_journal_and_files_that_others_may_read(start: Start) -> None:
    runs = [start("wrong", *CASES, shell="umask 022") for _ in range(2)]
    for run in runs:
        run.end(1)
    assert {found.verdict.kind for found in runs[0].found} == {"mismatch"}, "every file loads"
    assert "FAILED" in runs[0].replay_here()
    files = [path for path in (runs[0].folder / "out").rglob("*") if path.is_file() and ".hypothesis" not in path.parts]
    assert files
    assert not [path for path in files if path.name.startswith("journal")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o644}
