"""Fixtures of the mutation tests: the seeded bugs, and each of them as a target that a campaign can load."""

from collections.abc import Callable
from pathlib import Path

import pytest

import fuzz_attn

TARGET = """
from pathlib import Path
from fuzz_attn.mutation.edited_kernels import target_with_seeded_bug

target = target_with_seeded_bug(Path({folder!r}), {name!r}, {family!r})
"""


@pytest.fixture(scope="session")
def seeded_bugs() -> Path:
    """Return the folder of this project's seeded bugs."""
    return Path(fuzz_attn.__file__).parent / "mutation" / "seeded" / "tables"


@pytest.fixture
def file_with_bug(tmp_path: Path, seeded_bugs: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Return a function from a seeded bug and a family to a target; the edited kernels lie in the test's folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def write(name: str, family: str) -> str:
        path = tmp_path / "seeded_bug.py"
        path.write_text(TARGET.format(folder=str(seeded_bugs), name=name, family=family))
        return f"{path}:target"

    return write
