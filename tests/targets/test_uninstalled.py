"""A campaign runs from a checkout that is not installed, without entry points and scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from sysconfig import get_path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python that has all packages of this one except fuzz_attn."""
    folder = tmp_path_factory.mktemp("uninstalled")
    packages = folder / "packages"
    packages.mkdir()
    for entry in Path(get_path("purelib")).iterdir():
        if "fuzz_attn" not in entry.name:
            (packages / entry.name).symlink_to(entry)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(f"{packages}\n")
    return folder / "venv" / "bin" / "python"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with only our package, without the `*.egg-info` that an editable installation leaves there."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "fuzz_attn").symlink_to(ROOT / "fuzz_attn")
    return folder


@pytest.fixture
def run(python: Path, checkout: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        command = [str(python), "-m", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)

    return call


@pytest.mark.slow
def test_the_command_line_runs_a_campaign(
    run: Callable[..., subprocess.CompletedProcess[str]], spec: Callable[[str], str]
) -> None:
    target = ("--target", spec("unified_attention"), "--backend", "interpreter")
    done = run("fuzz_attn.cli.main", "run", *target, "--max-cases", "12", "--workers", "2")
    assert "12 in" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_pytest_takes_the_plugin_by_name(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run("pytest", "-p", "fuzz_attn.pytest_plugin", "--help")
    assert "--fuzz-backend" in done.stdout
    assert "--fuzz-backend" not in run("pytest", "--help").stdout, "fuzz_attn is installed"
