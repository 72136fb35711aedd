"""The folders kernels/ and strategies/ are imported through relative links, and nothing else puts them on the path."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("kernels", "strategies")


@pytest.mark.parametrize("folder", FOLDERS)
def test_link_is_relative(folder: str) -> None:
    assert (ROOT / "fuzz_attn" / folder).readlink() == Path("..") / folder


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git checkout")
@pytest.mark.parametrize("folder", FOLDERS)
def test_link_is_committed_as_a_link(folder: str) -> None:
    command = ["git", "ls-files", "--stage", "--", f"fuzz_attn/{folder}"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert listing.startswith("120000 "), f"git has {listing!r}: `git add fuzz_attn/{folder}` on a system with links"


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_is_no_regular_package(folder: str) -> None:
    # With an __init__.py, `import kernels` at the project root would find our folder before the Hugging Face package.
    assert (ROOT / folder).is_dir()
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize("name", ["conftest.py", "__init__.py", "tests/__init__.py"])
def test_nothing_puts_the_root_on_the_path(name: str) -> None:
    assert not (ROOT / name).exists()


def test_no_folder_of_tests_is_a_package() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))
