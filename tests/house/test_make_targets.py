"""What the documents tell people to type exists, and CI types the same."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "tests/README.md", "reports/README.md")
TARGETS = re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)


def code_of(markdown: str) -> Iterator[str]:
    """Yield what stands as code in a document: fenced blocks, indented lines, and `spans`."""
    for index, part in enumerate(re.split(r"^```.*$", markdown, flags=re.MULTILINE)):
        if index % 2:
            yield part
        else:
            yield from re.findall(r"^ {4}.*$|`[^`\n]+`", part, flags=re.MULTILINE)


def make_targets_in(markdown: str) -> set[str]:
    """Return the targets that a document says to make."""
    return {target for code in code_of(markdown) for target in re.findall(r"\bmake ([a-z]+)", code)}


def test_code_is_told_from_prose() -> None:
    markdown = "make sure\n\n    make a\n\n`make b` makes\n```sh\nmake c\n```\nmake do\n"
    assert make_targets_in(markdown) == {"a", "b", "c"}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_name_real_targets(document: str) -> None:
    assert make_targets_in((ROOT / document).read_text(encoding="utf-8")) <= set(TARGETS)


def test_readme_names_the_two_commands() -> None:
    assert make_targets_in((ROOT / "README.md").read_text(encoding="utf-8")) >= {"fuzz", "test"}


def test_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: ([a-z ]+)$", makefile, flags=re.MULTILINE)
    listing = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert {line.split()[1] for line in listing.splitlines() if line.startswith("make ")} == set(phony.split())


def test_ci_runs_what_the_readme_names() -> None:
    script = ROOT / ".ci" / "run"
    commands = set(re.findall(r"^make (?:--no-print-directory )?([a-z]+)", script.read_text(), flags=re.MULTILINE))
    assert os.access(script, os.X_OK)
    assert commands == {"lint", "test"}


def test_workflow_runs_the_same_script() -> None:
    workflow = (ROOT / ".github" / "workflows" / "pull-request.yml").read_text(encoding="utf-8")
    assert re.findall(r"^ +- run: (.*)$", workflow, flags=re.MULTILINE) == [".ci/run"]
