"""The bare names `kernels` and `strategies` stay free for the packages that own them elsewhere."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("kernels", "strategies")
ORIGIN = "import importlib.util, sys; spec = importlib.util.find_spec(sys.argv[1]); print(spec and spec.origin)"


@pytest.mark.parametrize("room", ROOMS)
def test_installation_claims_no_bare_name(room: str) -> None:
    # -P: without the current folder on the path, what is left is what installing this project has added to it.
    command = [sys.executable, "-P", "-c", ORIGIN, room]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    assert found == "None" or not Path(found).is_relative_to(ROOT / room)


@pytest.mark.parametrize("room", ROOMS)
def test_package_of_that_name_wins_at_the_root(room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The folder without __init__.py can only be a namespace, and a regular package anywhere on the path goes before it.
    package = tmp_path / room / "__init__.py"
    package.parent.mkdir()
    package.touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = [sys.executable, "-c", ORIGIN, room]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    assert Path(found) == package
