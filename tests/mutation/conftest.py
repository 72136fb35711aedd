"""What the detection tests share: the museum, and its specimens as targets that a campaign can load."""

from collections.abc import Callable
from pathlib import Path

import pytest

MUSEUM = Path(__file__).parents[2] / "fuzz_attn" / "mutation" / "seeded" / "tables"

TARGET = """
from pathlib import Path
from fuzz_attn.mutation.seeded.edited_kernels import specimen_target

target = specimen_target(Path({museum!r}), {name!r}, {family!r})
"""


@pytest.fixture
def museum() -> Path:
    return MUSEUM


@pytest.fixture
def specimen_file(tmp_path: Path) -> Callable[[str, str], str]:
    def write(name: str, family: str) -> str:
        (tmp_path / "specimen.py").write_text(TARGET.format(museum=str(MUSEUM), name=name, family=family))
        return f"{tmp_path / 'specimen.py'}:target"

    return write
