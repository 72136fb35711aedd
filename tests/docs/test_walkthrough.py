"""The tutorial and the page of the examples show what their commands print today, and it is right."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

import fuzz_attn

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
EXAMPLES: Final = ROOT / "examples"
MOST_LINES: Final = 120


@pytest.fixture(scope="module")
def walkthrough(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(Path(__file__).with_name("walkthrough.py"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["docs/tutorial.md", "examples/README.md"])
def test_pages_show_what_is_printed(walkthrough: ModuleType, name: str, tmp_path: Path) -> None:
    assert name in walkthrough.PAGES
    page = (ROOT / name).read_text(encoding="utf-8")
    assert walkthrough.renewed(page, tmp_path) == page, "run `make walk`"
    for shown, made in walkthrough.PICTURE.findall(page):
        pictures = [path.read_text(encoding="utf-8") for path in (DOCS / shown, tmp_path / made)]
        old, new = map(walkthrough.words_of, pictures)
        assert "wrong," in new
        assert old == new, "run `make walk`"


def test_a_page_takes_what_is_printed(walkthrough: ModuleType, tmp_path: Path) -> None:
    start = "Save it as `test_it.py`:\n\n```python\ndef test_it():\n    assert False\n```\n\n"
    change = "```diff\n-    assert False\n+    assert True\n```\n\n"
    page = start + change + "    pytest -q \\\n        test_it.py\n\nIt prints\n\n```text\n{}```\n\nEnd\n"
    assert re.search(r"```text\n\.? +\[100%\]\n1 passed.*\n```\n\nEnd", walkthrough.renewed(page.format(""), tmp_path))


def test_texts_that_differ_in_seconds_only_stay(walkthrough: ModuleType) -> None:
    rows = ["  10.3 s  found  x, the first after 0.2 s; open", "   0.5 s  found  x, the first after 11.2 s; open"]
    assert len({walkthrough.VARYING.sub("", row) for row in rows}) == 1


def test_the_tutorial_explains_the_bug_and_mends_it() -> None:
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    sentence = "causal: query 0 of sequence 0 attends key 1: hidden by causality (1 key behind its own, key 0)"
    assert sentence in re.sub(r"\s+", " ", page)
    assert "\nFIXED   tests/counterexamples/" in page
    assert "\nNo failure in 31 cases of my_attention.py:my_attention" in page


def test_the_page_of_failures_quotes_the_picture_of_the_tutorial(walkthrough: ModuleType) -> None:
    picture = " ".join(walkthrough.words_of((DOCS / "tutorial-failure.svg").read_text(encoding="utf-8")))
    quoted = re.findall(r"^\| `((?:oracle|Why).*?)(?: \.\.\.)?` \|", (DOCS / "failures.md").read_text(), re.MULTILINE)
    assert len(quoted) == 2
    assert [words for words in quoted if words not in picture] == []


def test_each_example_does_what_its_page_says() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    right, wrong, foreign = re.findall(r"^(?:No failure|1 failure) in 60 cases .*\n.*\n", page, re.MULTILINE)
    assert right.startswith("No failure in 60 cases of paged_decode.py:")
    assert wrong.startswith("1 failure in 60 cases of sliding_window.py:")
    assert "window: query 0 of sequence 0 misses key 31: the first of its window" in wrong
    assert foreign.startswith("No failure in 60 cases of foreign_names.py:")


@pytest.mark.slow
def test_the_bug_of_the_example_is_its_only_one(tmp_path: Path) -> None:
    source = (EXAMPLES / "sliding_window.py").read_text(encoding="utf-8")
    assert source.count("seq_len - 1 - left") == 1
    mended = tmp_path / "sliding_window.py"
    mended.write_text(source.replace("seq_len - 1 - left", "position - left"), encoding="utf-8")
    target = f"{mended}:sliding_window"
    assert fuzz_attn.verify(target, max_cases=30, seed=1, workers=1, backend="simulator", out=tmp_path).ok


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_short_and_on_their_page(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    assert f"    fuzz-attn run --target {path.name}:" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.svg")), ids=lambda path: path.name)
def test_pictures_hold_no_path_of_a_machine(path: Path) -> None:
    assert re.findall(r"/(?:home|root|tmp|work|Users)/", path.read_text(encoding="utf-8")) == []
