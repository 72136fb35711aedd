"""The top-level names `kernels` and `strategies` stay free for other packages of these names."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("kernels", "strategies")
ORIGIN = "import importlib.util, sys; spec = importlib.util.find_spec(sys.argv[1]); print(spec and spec.origin)"


@pytest.mark.parametrize("folder", FOLDERS)
def test_installation_takes_no_top_level_name(folder: str) -> None:
    # -P removes the current folder from the path, so that only installed packages are found.
    command = [sys.executable, "-P", "-c", ORIGIN, folder]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    assert found == "None" or not Path(found).is_relative_to(ROOT / folder)


@pytest.mark.parametrize("folder", FOLDERS)
def test_package_of_that_name_is_found_first_at_the_root(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without __init__.py our folder is a namespace package, and a regular package anywhere on the path goes first.
    package = tmp_path / folder / "__init__.py"
    package.parent.mkdir()
    package.touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = [sys.executable, "-c", ORIGIN, folder]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    assert Path(found) == package
