"""Programs are kept in memory and on disk: found again, never confused, and generated anew if a file is damaged."""

from __future__ import annotations

import base64
import builtins
import hashlib
import importlib.util
import json
import linecache
import marshal
import os
import resource
import stat
import time
import zlib
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch

from fuzz_attn.simulator.disk_cache import LIMIT_BYTES, DiskCache, generator_version, key_of
from fuzz_attn.simulator.session import simulate
from fuzz_attn.simulator.simulator import Simulator

KERNELS = "sample_kernels.py"


def _launch(kernels: Any, simulator: Simulator, dtype: torch.dtype = torch.float32, block: int = 16) -> torch.Tensor:
    x = torch.arange(40).to(dtype)
    out = torch.zeros_like(x)
    with simulate(simulator):
        kernels.add_kernel[(3,)](x, x, out, 40, BLOCK=block)
    return out


def test_a_program_in_memory_is_not_lowered_again(kernels: Any) -> None:
    simulator = Simulator()
    _launch(kernels, simulator)
    _launch(kernels, simulator)
    assert simulator.lowering.count == 1


def test_the_programs_in_memory_are_those_that_ran_last(kernels: Any) -> None:
    simulator = Simulator(most_programs=2)
    for block in (16, 32, 16, 64, 16):
        _launch(kernels, simulator, block=block)
    assert simulator.lowering.count == 3
    _launch(kernels, simulator, block=32)
    assert simulator.lowering.count == 4, "the program that ran longest ago was dropped"


def test_a_program_on_disk_is_not_lowered_again(kernels: Any, tmp_path: Path) -> None:
    first = _launch(kernels, Simulator(cache_dir=tmp_path))
    other = Simulator(cache_dir=tmp_path)
    assert torch.equal(_launch(kernels, other), first)
    assert other.lowering.count == 0


def test_types_and_constants_select_different_programs(kernels: Any, tmp_path: Path) -> None:
    simulator = Simulator(cache_dir=tmp_path)
    _launch(kernels, simulator)
    _launch(kernels, simulator, dtype=torch.float16)
    _launch(kernels, simulator, block=32)
    assert simulator.lowering.count == len(list(tmp_path.glob("*.program"))) == 3


FUNCTIONS = """
from triton.runtime.jit import JITFunction
@JITFunction
def change(x):
    return x {sign} 2
"""


def _apply(kernels: Any, simulator: Simulator, folder: Path, sign: str) -> float:
    """Launch a kernel with a function of the user's file as its constant, as the file is now."""
    (folder / "functions.py").write_text(FUNCTIONS.format(sign=sign))
    specification = importlib.util.spec_from_file_location("functions", folder / "functions.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    linecache.clearcache()
    specification.loader.exec_module(module)
    out = torch.zeros(1)
    with simulate(simulator):
        kernels.apply_kernel[(1,)](torch.full((1,), 5.0), out, FUNCTION=module.change)
    return float(out)


@pytest.mark.parametrize("on_disk", [False, True])
def test_the_source_of_a_function_that_is_a_constant_selects_the_program(
    kernels: Any, tmp_path: Path, on_disk: bool
) -> None:
    lowered, one = 0, Simulator(cache_dir=tmp_path)
    for sign, expected in zip("+*+", (7.0, 10.0, 7.0), strict=True):
        simulator = Simulator(cache_dir=tmp_path) if on_disk else one
        lowered -= simulator.lowering.count
        assert _apply(kernels, simulator, tmp_path, sign) == expected
        lowered += simulator.lowering.count
    assert lowered == 2


def test_a_damaged_file_is_written_anew(kernels: Any, tmp_path: Path) -> None:
    first = _launch(kernels, Simulator(cache_dir=tmp_path))
    (path,) = tmp_path.glob("*.program")
    whole = path.read_bytes()
    for damaged in (b"", whole[:40], whole[:-1], whole[:50] + bytes([whole[50] ^ 1]) + whole[51:]):
        path.write_bytes(damaged)
        simulator = Simulator(cache_dir=tmp_path)
        assert torch.equal(_launch(kernels, simulator), first)
        assert path.read_bytes() == whole
        assert simulator.lowering.count == 1


def test_a_file_holds_the_source_and_its_code(kernels: Any, tmp_path: Path) -> None:
    _launch(kernels, Simulator(cache_dir=tmp_path))
    (path,) = tmp_path.glob("*.program")
    fields = json.loads(path.read_bytes()[32:])
    assert fields[0] == "add_kernel"
    assert "def kernel(" in fields[1]
    assert _unpacked(fields[-1]) == compile(fields[1], _unpacked(fields[-1]).co_filename, "exec")


def test_a_program_on_disk_is_not_compiled_again(kernels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _launch(kernels, Simulator(cache_dir=tmp_path))
    monkeypatch.setattr(builtins, "compile", None)
    assert torch.equal(_launch(kernels, Simulator(cache_dir=tmp_path)), first)


def test_another_version_of_compiled_code_is_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    own = generator_version.__wrapped__()
    monkeypatch.setattr(importlib.util, "MAGIC_NUMBER", b"other")
    assert generator_version.__wrapped__() != own


def _unpacked(text: str) -> CodeType:
    """Return the code of a file's last field."""
    code = marshal.loads(zlib.decompress(base64.b64decode(text)))
    assert isinstance(code, CodeType)
    return code


def test_a_new_folder_belongs_to_its_owner_only(kernels: Any, tmp_path: Path) -> None:
    simulator = Simulator(cache_dir=tmp_path / "new" / "cache")
    _launch(kernels, simulator)
    assert stat.S_IMODE((tmp_path / "new" / "cache").stat().st_mode) == 0o700
    assert simulator.cache_obstacle == ""


def _planted(folder: Path, kernels: Any) -> None:
    """Make a folder with a program of another user's choice."""
    _launch(kernels, Simulator(cache_dir=folder))
    (path,) = folder.glob("*.program")
    fields = json.loads(path.read_bytes()[32:])
    fields[1] = fields[1].replace("def kernel(", "raise SystemExit(1)\ndef kernel(")
    code = marshal.dumps(compile(fields[1], "<simulated>", "exec"))
    fields[-1] = base64.b64encode(zlib.compress(code)).decode()
    body = json.dumps(fields).encode()
    path.write_bytes(hashlib.sha256(body).digest() + body)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_folder_that_others_may_write_is_not_used(kernels: Any, tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "cache"
    _planted(folder, kernels)
    folder.chmod(mode)
    simulator = Simulator(cache_dir=folder)
    assert torch.equal(_launch(kernels, simulator), torch.arange(40.0) * 2)
    assert simulator.cache_obstacle == f"other users may write to {folder}"


def test_a_folder_of_another_user_is_not_used(kernels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _planted(tmp_path / "cache", kernels)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    simulator = Simulator(cache_dir=tmp_path / "cache")
    assert torch.equal(_launch(kernels, simulator), torch.arange(40.0) * 2)
    assert simulator.cache_obstacle == f"{tmp_path / 'cache'} belongs to another user"


def test_a_program_of_a_usable_folder_is_executed(kernels: Any, tmp_path: Path) -> None:
    """Otherwise the tests above could not fail."""
    _planted(tmp_path / "cache", kernels)
    with pytest.raises(SystemExit):
        _launch(kernels, Simulator(cache_dir=tmp_path / "cache"))


def test_a_folder_that_cannot_be_made_is_no_error(kernels: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, obstacle in (
        (tmp_path / "file", "{} is no folder"),
        (tmp_path / "file" / "below", "{} cannot be made: File exists"),
        (tmp_path / "file" / "far" / "below", "{} cannot be made: Not a directory"),
    ):
        simulator = Simulator(cache_dir=folder)
        assert torch.equal(_launch(kernels, simulator), torch.arange(40.0) * 2)
        assert simulator.cache_obstacle == obstacle.format(folder)


def test_a_full_disk_is_no_error_and_leaves_no_part(kernels: Any, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # Python ignores the signal, so that writing fails
    try:
        assert torch.equal(_launch(kernels, Simulator(cache_dir=tmp_path)), torch.arange(40.0) * 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def _files(folder: Path, count: int, size: int = 1000) -> list[Path]:
    """Make program files, the first one used longest ago."""
    paths = [folder / f"{key_of(index)}.program" for index in range(count)]
    for index, path in enumerate(paths):
        path.write_bytes(bytes(size))
        os.utime(path, (1e9 + index, 1e9 + index))
    return paths


def test_a_folder_above_the_limit_loses_the_files_used_longest_ago(tmp_path: Path) -> None:
    paths = _files(tmp_path, 20)
    DiskCache(tmp_path, limit=20_000).prune()
    assert all(path.exists() for path in paths)
    DiskCache(tmp_path, limit=16_000).prune()
    assert [path.exists() for path in paths] == [False] * 8 + [True] * 12


def test_a_program_that_is_read_counts_as_used(kernels: Any, tmp_path: Path) -> None:
    _launch(kernels, Simulator(cache_dir=tmp_path))
    (own,) = tmp_path.glob("*.program")
    os.utime(own, (1e8, 1e8))
    others = _files(tmp_path, 8, own.stat().st_size)
    _launch(kernels, Simulator(cache_dir=tmp_path))
    DiskCache(tmp_path, limit=8 * own.stat().st_size).prune()
    assert own.exists()
    assert [path.exists() for path in others] == [False] * 3 + [True] * 5


def test_only_our_own_files_are_removed_and_unfinished_ones_only_when_old(tmp_path: Path) -> None:
    (whole,), foreign = _files(tmp_path, 1), tmp_path / "notes.json"
    old, new = tmp_path / "tmpabc.part", tmp_path / "tmpdef.part"
    for path in (foreign, old, new):
        path.write_bytes(bytes(1000))
        os.utime(path, (1e9, 1e9))
    os.utime(new, (time.time(), time.time()))
    DiskCache(tmp_path, limit=0).prune()
    assert not whole.exists()
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


def test_the_first_program_stored_and_one_in_many_check_the_size(kernels: Any, tmp_path: Path) -> None:
    simulator, x = Simulator(), torch.zeros(40)
    kernel = simulator.translations.translated(kernels.add_kernel)
    program = simulator.program(kernel, simulator.bind(kernel, (x, x, x, 40), {"BLOCK": 16}))
    cache = DiskCache(tmp_path, limit=0, check_every=2)
    left = []
    for index in range(4):
        cache.put(key_of(index), program)
        left.append(len(list(tmp_path.iterdir())))
    assert left == [0, 1, 0, 1]


def test_the_limit_holds_many_programs(kernels: Any, tmp_path: Path) -> None:
    _launch(kernels, Simulator(cache_dir=tmp_path))
    (path,) = tmp_path.glob("*.program")
    assert LIMIT_BYTES / path.stat().st_size > 1000
