"""The two rooms outside of the package are reached through relative links, and nothing shadows their import scheme."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("kernels", "strategies")


@pytest.mark.parametrize("room", ROOMS)
def test_link_is_relative(room: str) -> None:
    assert (ROOT / "fuzz_attn" / room).readlink() == Path("..") / room


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a checkout says how git stores a link")
@pytest.mark.parametrize("room", ROOMS)
def test_link_is_committed_as_a_link(room: str) -> None:
    command = ["git", "ls-files", "--stage", "--", f"fuzz_attn/{room}"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert listing.startswith("120000 "), f"git has {listing!r}: `git add fuzz_attn/{room}` on a system with links"


@pytest.mark.parametrize("room", ROOMS)
def test_room_is_no_regular_package(room: str) -> None:
    # With an __init__.py, `import kernels` from the project root would find ours before the one of Hugging Face.
    assert (ROOT / room).is_dir()
    assert not (ROOT / room / "__init__.py").exists()


@pytest.mark.parametrize("name", ["conftest.py", "__init__.py", "tests/__init__.py"])
def test_nothing_puts_the_root_on_the_path(name: str) -> None:
    assert not (ROOT / name).exists()


def test_no_folder_of_tests_is_a_package() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))
