"""What the next operation must not have to look for: rules that only one module knows, found by their words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for folder in ("fuzz_attn", "strategies")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path != ROOT / "fuzz_attn" / "case" / "visibility.py"
]
WORDS = {
    "a family by its name, where fuzz_attn.case.families says what tells them apart": r"\bfamily (==|!=|in) ?[\"'(]",
    "how a window cuts, which fuzz_attn.case.visibility knows": r"(position|context|row|query)\w* [-+] \w*\.?window\b",
    "an fp8 type by its size, where int8 and bytes have that too": r"itemsize (==|!=|>) 1\b",
}


@pytest.mark.parametrize("words", WORDS, ids=["family", "window", "fp8"])
def test_no_other_module_has_the_rule(words: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in SOURCES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(WORDS[words], line)
    ]
    assert not found, f"{words}: {found}"
