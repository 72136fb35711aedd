"""Programs kept on disk: found again, told apart, and never trusted when they cannot be read."""

from __future__ import annotations

import importlib.util
import linecache
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzz_attn.simulator import Options, session, simulate
from fuzz_attn.simulator.frontend import lowering
from fuzz_attn.simulator.runtime.program_cache import CHECK_EVERY, LIMIT_BYTES, DiskCache, key_of
from tests.simulator.sample_kernels import add_kernel, apply_kernel


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are lowered from here on, with an empty cache in memory."""
    names: list[str] = []
    original = lowering.lower

    def lower(function: Any, signature: dict[str, str], constants: dict[tuple[int, ...], Any]) -> str:
        names.append(function.__name__)
        return original(function, signature, constants)

    monkeypatch.setattr(session, "lower", lower)
    monkeypatch.setattr(session, "_PROGRAMS", {})
    return names


def _launch(folder: Path | None, dtype: torch.dtype = torch.float32, block: int = 16) -> torch.Tensor:
    x = torch.arange(40).to(dtype)
    out = torch.zeros_like(x)
    with simulate(Options(cache_dir=folder)):
        add_kernel[(3,)](x, x, out, 40, BLOCK=block)
    return out


def test_a_program_in_memory_is_not_lowered_again(lowered: list[str]) -> None:
    _launch(None)
    _launch(None)
    assert lowered == ["add_kernel"]


def test_the_programs_in_memory_are_those_that_ran_last(lowered: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MOST_PROGRAMS", 2)
    for block in (16, 32, 16, 64, 16):
        _launch(None, block=block)
    assert len(lowered) == 3
    _launch(None, block=32)
    assert len(lowered) == 4, "the one that had not run for longest was dropped"


def test_a_program_on_disk_is_not_lowered_again(
    lowered: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _launch(tmp_path)
    monkeypatch.setattr(session, "_PROGRAMS", {})
    assert torch.equal(_launch(tmp_path), first)
    assert lowered == ["add_kernel"]


def test_types_and_constants_are_told_apart(lowered: list[str], tmp_path: Path) -> None:
    _launch(tmp_path)
    _launch(tmp_path, dtype=torch.float16)
    _launch(tmp_path, block=32)
    assert len(lowered) == len(list(tmp_path.glob("*.program"))) == 3


FUNCTIONS = """
from triton.runtime.jit import JITFunction
@JITFunction
def change(x):
    return x {sign} 2
"""


def _apply(folder: Path, sign: str, cache: Path) -> float:
    """Launch a kernel with a function of the user's file as its constant, as the file is now."""
    (folder / "functions.py").write_text(FUNCTIONS.format(sign=sign))
    specification = importlib.util.spec_from_file_location("functions", folder / "functions.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    linecache.clearcache()
    specification.loader.exec_module(module)
    out = torch.zeros(1)
    with simulate(Options(cache_dir=cache)):
        apply_kernel[(1,)](torch.full((1,), 5.0), out, FUNCTION=module.change)
    return float(out)


def test_a_function_that_is_a_constant_is_told_by_its_source(lowered: list[str], tmp_path: Path) -> None:
    assert [_apply(tmp_path, sign, tmp_path) for sign in ("+", "*", "+")] == [7.0, 10.0, 7.0]
    assert lowered == ["apply_kernel"] * 2


def test_a_damaged_file_is_written_anew(lowered: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _launch(tmp_path)
    (path,) = tmp_path.glob("*.program")
    whole = path.read_bytes()
    for damaged in (b"", whole[:40], whole[:-1], whole[:50] + bytes([whole[50] ^ 1]) + whole[51:]):
        path.write_bytes(damaged)
        monkeypatch.setattr(session, "_PROGRAMS", {})
        assert torch.equal(_launch(tmp_path), first)
        assert path.read_bytes() == whole
    assert lowered == ["add_kernel"] * 5


def test_a_folder_that_cannot_be_written_is_no_error(lowered: list[str], tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert torch.equal(_launch(blocked / "below"), torch.arange(40.0) * 2)
    assert lowered == ["add_kernel"]


def _files(folder: Path, count: int, size: int = 1000) -> list[Path]:
    """Make program files, the first one used longest ago."""
    paths = [folder / f"{key_of(index)}.program" for index in range(count)]
    for index, path in enumerate(paths):
        path.write_bytes(bytes(size))
        os.utime(path, (1e9 + index, 1e9 + index))
    return paths


def test_a_folder_above_the_limit_loses_what_was_not_used_for_longest(tmp_path: Path) -> None:
    paths = _files(tmp_path, 20)
    DiskCache(tmp_path, limit=20_000).prune()
    assert all(path.exists() for path in paths)
    DiskCache(tmp_path, limit=16_000).prune()
    assert [path.exists() for path in paths] == [False] * 8 + [True] * 12


def test_a_program_that_is_read_counts_as_used(
    lowered: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _launch(tmp_path)
    (own,) = tmp_path.glob("*.program")
    os.utime(own, (1e8, 1e8))
    others = _files(tmp_path, 8, own.stat().st_size)
    monkeypatch.setattr(session, "_PROGRAMS", {})
    _launch(tmp_path)
    DiskCache(tmp_path, limit=8 * own.stat().st_size).prune()
    assert own.exists()
    assert [path.exists() for path in others] == [False] * 3 + [True] * 5


def test_only_our_own_files_are_removed_and_unfinished_ones_only_when_old(tmp_path: Path) -> None:
    former, foreign = tmp_path / f"{key_of(0)}.json", tmp_path / "notes.json"
    old, new = tmp_path / "tmpabc.part", tmp_path / "tmpdef.part"
    for path in (former, foreign, old, new):
        path.write_bytes(bytes(1000))
        os.utime(path, (1e9, 1e9))
    os.utime(new, (time.time(), time.time()))
    DiskCache(tmp_path, limit=0).prune()
    assert sorted(tmp_path.iterdir()) == sorted([foreign, new])


def test_pruning_survives_another_process_that_removes_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = _files(tmp_path, 4)
    original = os.unlink

    def late(path: str) -> None:
        original(path)
        original(path)

    monkeypatch.setattr(os, "unlink", late)
    DiskCache(tmp_path, limit=0).prune()
    assert not any(path.exists() for path in paths)


def test_the_first_program_stored_and_one_in_many_look_at_the_size(
    lowered: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[DiskCache] = []

    def prune(cache: DiskCache) -> None:
        looks.append(cache)

    monkeypatch.setattr(DiskCache, "prune", prune)
    monkeypatch.setattr(DiskCache, "_stored", 0)
    _launch(tmp_path)
    assert len(looks) == 1
    _launch(tmp_path, block=32)
    assert len(looks) == 1
    monkeypatch.setattr(DiskCache, "_stored", CHECK_EVERY)
    _launch(tmp_path, block=64)
    assert len(looks) == 2
    assert len(lowered) == 3


def test_the_limit_holds_many_programs(lowered: list[str], tmp_path: Path) -> None:
    _launch(tmp_path)
    (path,) = tmp_path.glob("*.program")
    assert LIMIT_BYTES / path.stat().st_size > 1000
