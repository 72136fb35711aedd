"""Where Triton keeps compiled kernels during a run, and which of them are deleted."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fuzz_attn.engine.run_folder import (
    IN_USE_SECONDS,
    TRITON_CACHE,
    compiled_kernels_in,
    new_run_folder,
    output_folder,
    prune_kernels,
)

DAY = 24 * 3600.0


def kernel(cache: Path, name: str, days: float, size: int = 100) -> None:
    """Make a compiled kernel of two files that was last used so many days ago."""
    folder = cache / name
    folder.mkdir(parents=True)
    for file in ("kernel.cubin", "kernel.json"):
        (folder / file).write_bytes(b"x" * (size // 2))
        os.utime(folder / file, times=(time.time() - days * DAY,) * 2)


def names(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.delenv(TRITON_CACHE, raising=False)


@pytest.mark.parametrize(
    ("most", "left"),
    [(300, {"a", "b", "c"}), (299, {"a", "b"}), (100, {"a"}), (0, {"a"})],
)
def test_kernels_not_used_for_longest_are_deleted_but_none_of_the_last_day(
    most: int, left: set[str], tmp_path: Path
) -> None:
    for name, days in (("b", 3.0), ("c", 9.0), ("a", 0.5)):
        kernel(tmp_path, name, days)
    assert IN_USE_SECONDS == DAY
    prune_kernels(tmp_path, most)
    assert names(tmp_path) == left


def test_a_kernel_that_was_read_counts_as_used(tmp_path: Path) -> None:
    for name in ("read", "left"):
        kernel(tmp_path, name, 9.0)
    os.utime(tmp_path / "read" / "kernel.cubin", times=(time.time() - 2 * DAY, time.time() - 9 * DAY))
    prune_kernels(tmp_path, 100)
    assert names(tmp_path) == {"read"}


@pytest.mark.usefixtures("gpu")
def test_nothing_is_kept_where_kernels_are_interpreted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with compiled_kernels_in(tmp_path, "auto"):
        assert TRITON_CACHE not in os.environ
    with compiled_kernels_in(tmp_path, "cuda"):
        assert TRITON_CACHE in os.environ


@pytest.mark.usefixtures("gpu")
def test_kernels_are_kept_and_pruned_in_the_output_folder(tmp_path: Path) -> None:
    kernel(tmp_path / "triton", "old", 9.0)
    with compiled_kernels_in(tmp_path, "auto", most_bytes=0):
        assert os.environ[TRITON_CACHE] == str(tmp_path / "triton")
        assert names(tmp_path / "triton") == set()
    assert TRITON_CACHE not in os.environ


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("place", "left"), [("out/mine", set()), ("elsewhere", {"old"})])
def test_a_place_that_the_user_chose_stays_and_is_pruned_in_the_output_folder_only(
    place: str, left: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel(tmp_path / place, "old", 9.0)
    monkeypatch.setenv(TRITON_CACHE, str(tmp_path / place))
    with compiled_kernels_in(tmp_path / "out", "cuda", most_bytes=0):
        assert os.environ[TRITON_CACHE] == str(tmp_path / place)
    assert os.environ[TRITON_CACHE] == str(tmp_path / place)
    assert names(tmp_path / place) == left


def test_the_output_folder_is_that_of_the_run() -> None:
    folder = new_run_folder("/somewhere/out")
    assert output_folder(folder) == output_folder(folder / "unified") == Path("/somewhere/out")
    assert output_folder(Path("/elsewhere/run")) == Path("/elsewhere")


@pytest.mark.parametrize(("backend", "gpus"), [("simulator", "0"), ("auto", "")])
def test_nothing_is_done_where_nothing_is_compiled(
    backend: str, gpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    monkeypatch.delenv(TRITON_CACHE, raising=False)
    with compiled_kernels_in(tmp_path, backend):
        assert TRITON_CACHE not in os.environ
