"""Programs kept on disk: found again, told apart, and never trusted when they cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fuzz_attn.backends.simulator import Options, lowering, session, simulate
from tests.simulator.sample_kernels import add_kernel


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are lowered from here on, with an empty cache in memory."""
    names: list[str] = []
    original = lowering.lower

    def lower(function: Any, signature: dict[str, str], constants: dict[str, Any]) -> str:
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
    assert len(lowered) == len(list(tmp_path.glob("*.json"))) == 3


def test_a_damaged_file_is_written_anew(lowered: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _launch(tmp_path)
    (path,) = tmp_path.glob("*.json")
    path.write_text("{}")
    monkeypatch.setattr(session, "_PROGRAMS", {})
    assert torch.equal(_launch(tmp_path), first)
    assert len(path.read_text()) > 2


def test_a_folder_that_cannot_be_written_is_no_error(lowered: list[str], tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert torch.equal(_launch(blocked / "below"), torch.arange(40.0) * 2)
    assert lowered == ["add_kernel"]
