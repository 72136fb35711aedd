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


def sources_of(part: str) -> list[Path]:
    """Return the files of a package, or a module."""
    place = ROOT / "fuzz_attn" / part
    found = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    assert found
    return found


KNOW_NO_OPERATION = ("engine", "workers", "counterexamples", "report", "export", "mutation", "cli")
"""Packages that ask an operation, and know none by name."""
OF_AN_OPERATION = re.compile(
    r"AttentionCase|StateCase|WriteCase|operations\.(attention|merge_states|cache_write)|fuzz_attn\.strategies\.(?!draws\b)|"
    r"fuzz_attn\.case\.(attention_case|case_fields|cases|changes|compile_key|description|domain|families|parts|recipes|serving)\b"
)


@pytest.mark.parametrize("package", KNOW_NO_OPERATION)
def test_a_package_that_serves_all_operations_names_none(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources_of(package)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if OF_AN_OPERATION.search(line)
    ]
    assert not found


TENSORS_OF_ATTENTION = re.compile(
    r"(inputs\.(tensors|biases)|oracle\.(reference|row_blocks|logits)|properties\.relations)\b"
)
PRELOADED = "engine/preloaded.py"
"""Imports modules for the processes that are forked from it, and calls none."""


@pytest.mark.parametrize("package", ["engine", "workers", "counterexamples", "report", "cli"])
def test_only_an_operation_makes_tensors_and_references(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in sources_of(package)
        for line in path.read_text().splitlines()
        if "import" in line and TENSORS_OF_ATTENTION.search(line) and not str(path).endswith(PRELOADED)
    ]
    assert not found
