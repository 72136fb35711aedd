"""Other people's pytest plugins, installed beside ours, do not break this suite, whose warnings are errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
A_HANG = 600.0
ASYNCIO = """
import warnings

import pytest


def pytest_configure(config):
    warnings.warn(pytest.PytestDeprecationWarning(
        "The configuration option 'asyncio_default_fixture_loop_scope' is unset.\\nThe event loop scope ..."))
"""
BENCHMARK = """
import warnings


class PytestBenchmarkWarning(Warning):
    pass


def pytest_configure(config):
    if hasattr(config, "workerinput") or config.getoption("numprocesses", None):
        warnings.warn(PytestBenchmarkWarning(
            "Benchmarks are automatically disabled because xdist plugin is active.Benchmarks cannot be performed"))
"""
UNKNOWN = """
import warnings


def pytest_configure(config):
    warnings.warn(UserWarning("a plugin that this suite does not know complains"))
"""


def suite_beside(plugin: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run some of this suite's tests beside a plugin."""
    (folder / "other_plugin.py").write_text(plugin)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "other_plugin", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "tests/house/test_seams.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=A_HANG,
        check=False,
    )


@pytest.mark.parametrize("plugin", [ASYNCIO, BENCHMARK], ids=["pytest-asyncio", "pytest-benchmark"])
def test_the_suite_passes_beside_a_known_plugin(plugin: str, tmp_path: Path) -> None:
    done = suite_beside(plugin, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_unknown_warning_is_still_an_error(tmp_path: Path) -> None:
    done = suite_beside(UNKNOWN, tmp_path)
    assert done.returncode != 0
    assert "UserWarning: a plugin that this suite does not know complains" in done.stdout + done.stderr
