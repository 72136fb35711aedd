"""The tutorial keeps its word: its run finds the bug, explains it as the page says, and passes the mended kernel.

The kernel is the one on the page, so what a reader copies is what runs here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

import fuzz_attn
from fuzz_attn.cli.main import main

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
CODE: Final = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
SPEC: Final = "my_attention.py:my_attention"
WRONG: Final = "position = seq_len - query_len + index + 1"
FILE: Final = f"{SPEC.replace(':', '-')}/oracle-mismatch-auto-plain-scattered-1e6.json"
RUN: Final[dict[str, Any]] = {"backend": "simulator", "seed": 1, "workers": 1}
SENTENCE: Final = "query 0 of sequence 0 attends key 1: hidden by causality (1 key behind its own, key 0)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_its_kernel_is_found_explained_and_mended(folder: Path) -> None:
    kernel = folder / "my_attention.py"
    kernel.write_text(CODE[0])
    found = fuzz_attn.verify(SPEC, max_cases=6, **RUN)
    (failure,) = found.failures
    assert failure.path.endswith(FILE)
    assert failure.counterexample.verdict.explanation == f"causal: {SENTENCE}"
    assert CODE[0].count(WRONG) == 1
    kernel.write_text(CODE[0].replace(WRONG, WRONG.removesuffix(" + 1")))
    replayed = CliRunner().invoke(main, ["replay", "--trust", "--backend", "simulator"])
    assert (replayed.exit_code, replayed.stdout.split()[0]) == (0, "FIXED"), replayed.output
    assert fuzz_attn.verify(SPEC, max_cases=30, **RUN).ok


def test_the_page_says_what_is_printed() -> None:
    assert PAGE.count(FILE) >= 3
    assert f"    {WRONG}\n" in PAGE


@pytest.mark.parametrize("picture", ["tutorial-failure.svg", "tutorial-explain.svg"])
def test_its_pictures_show_the_same_failure(picture: str) -> None:
    drawn = (ROOT / "docs" / picture).read_text(encoding="utf-8").replace("&#160;", " ")
    words = " ".join(re.sub(r"<[^>]*>", " ", drawn[drawn.index("</style>") :]).split())
    assert "16 of 32 elements wrong" in words
    assert SENTENCE.partition(":")[0] in words
    assert f"{picture}" in PAGE


def test_its_test_is_a_fuzz_test() -> None:
    names: dict[str, object] = {}
    exec(CODE[1], names)
    assert callable(names["test_my_attention"])
