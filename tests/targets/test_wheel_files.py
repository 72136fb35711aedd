"""Wheels of anybody: names that lead elsewhere, damaged archives, and files that would fill the memory."""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

import pytest

from fuzz_attn.errors import TargetError
from fuzz_attn.targets import wheel
from fuzz_attn.targets.wheel import Wheel


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """Return a wheel that was downloaded as a whole."""
    monkeypatch.setenv("FUZZ_ATTN_CACHE", str(tmp_path / "deep" / "cache"))
    found = Wheel("evil", "1")
    found.folder.mkdir(parents=True)
    with zipfile.ZipFile(found.folder / "evil-1.whl", "w") as archive:
        for name in ("pkg/a.py", "pkg/../../../../../../escaped.py", "/escaped.py"):
            archive.writestr(name, "x = 1")
    return found


def test_no_member_leads_to_another_folder(evil: Wheel, tmp_path: Path) -> None:
    evil.provide("pkg/")
    evil.provide("/")
    assert {path.name for path in tmp_path.rglob("*.py")} == {"a.py"}
    assert evil.file("pkg/../../../../../../escaped.py") is None


def test_a_damaged_wheel_is_one_line(evil: Wheel) -> None:
    (evil.folder / "evil-1.whl").write_bytes(b"no archive")
    with pytest.raises(TargetError, match=r"^evil==1: .*evil-1\.whl is no wheel: File is not a zip file; delete it$"):
        evil.provide("pkg/")


@pytest.mark.parametrize("text", ["", "{", "{}", "[1]", "[" * 100_000])
def test_a_damaged_list_of_names_is_one_line(text: str, evil: Wheel) -> None:
    (evil.folder / "names.json").write_text(text)
    with pytest.raises(TargetError, match=re.escape(f"evil==1: {evil.folder}/names.json cannot be read: ")):
        evil.provide("pkg/")


def test_a_huge_file_is_not_unpacked(evil: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "LARGEST_FILE", 4)
    with pytest.raises(TargetError, match=r"^evil==1: pkg/a\.py cannot be downloaded: it has 5 bytes, more than 4$"):
        evil.file("pkg/a.py")


def test_pip_is_asked_once_where_there_is_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new process of a worker would ask again: pip took most of the time of a run on a GPU without a network."""
    monkeypatch.setenv("FUZZ_ATTN_CACHE", str(tmp_path))
    calls = tmp_path / "calls"
    script = f"import sys; open({str(calls)!r}, 'a').write('x'); sys.exit('no network')"
    monkeypatch.setattr(wheel, "_PIP", (sys.executable, "-c", script))
    for words in (r"^far==1 cannot be downloaded: no network$", r": no network \(less than 60 s ago\)$"):
        with pytest.raises(TargetError, match=words):
            Wheel("far", "1").provide("far/")
    assert calls.read_text() == "x"
    monkeypatch.setattr(wheel, "RETRY_SECONDS", 0.0)
    with pytest.raises(TargetError, match=r": no network$"):
        Wheel("far", "1").provide("far/")
    assert calls.read_text() == "xx"
