"""Other people's pytest plugins, installed beside ours, do not break this suite, whose warnings are errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def suite_beside(folder: Path, *plugins: str) -> subprocess.CompletedProcess[str]:
    """Run some of this suite's tests beside plugins."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "no:cacheprovider"]
    for number, plugin in enumerate(plugins):
        (folder / f"other_plugin_{number}.py").write_text(plugin)
        command += ["-p", f"other_plugin_{number}"]
    return subprocess.run(
        [*command, "tests/house/test_seams.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=A_HANG,
        check=False,
    )


def test_the_suite_passes_beside_known_plugins(tmp_path: Path) -> None:
    done = suite_beside(tmp_path, ASYNCIO, BENCHMARK)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_unknown_warning_is_still_an_error(tmp_path: Path) -> None:
    done = suite_beside(tmp_path, UNKNOWN)
    assert done.returncode != 0
    assert "UserWarning: a plugin that this suite does not know complains" in done.stdout + done.stderr
