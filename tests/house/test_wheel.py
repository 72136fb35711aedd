"""The wheel contains every module and data file of the checkout, under its import name."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = ("pyproject.toml", "README.md", "LICENSE")
FOLDERS = {"fuzz_attn": "fuzz_attn", "kernels": "fuzz_attn/kernels", "strategies": "fuzz_attn/strategies"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # In a copy, because setuptools leaves build folders behind and would take stale modules from them.
    copy = tmp_path_factory.mktemp("copy")
    for name in FILES:
        shutil.copy(ROOT / name, copy)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-build-isolation", "--no-deps", "-w", "out", "."]
    subprocess.run(command, cwd=copy, check=True)
    (built,) = (copy / "out").glob("*.whl")
    return built


def shipped() -> set[str]:
    """Return the path in the wheel of each file of the three folders."""
    names = set()
    for folder, package in FOLDERS.items():
        root = ROOT / folder
        files = (path for path in root.rglob("*") if path.is_file() and path.resolve().is_relative_to(root))
        names |= {f"{package}/{path.relative_to(root)}" for path in files if "__pycache__" not in path.parts}
    return names


def test_wheel_contains_every_file_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == shipped(), "does [tool.setuptools] of pyproject.toml list every package and its data?"


def test_wheel_contains_the_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_audit_runs_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    options = ["--only", "causal_or_equal", "--max-cases", "40", "--seed", "1", "--workers", "1", "--no-rules"]
    command = [sys.executable, "-P", "-m", "fuzz_attn.cli.main", "audit", *options, "--out", str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1 of 1, 100.0 %" in done.stdout
    assert done.stderr == ""
