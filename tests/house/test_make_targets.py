"""The commands and files that the documents name exist, and CI runs the same commands."""

import importlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz_attn.cli.main import main

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "tests/README.md", "reports/README.md")
DOCUMENTS = (*PAGES, *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
TARGETS = re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)


def code_of(markdown: str) -> Iterator[str]:
    """Yield the code of a document: fenced blocks, indented lines, and `spans`."""
    for index, part in enumerate(re.split(r"^```.*$", markdown, flags=re.MULTILINE)):
        if index % 2:
            yield part
        else:
            yield from re.findall(r"^ {4}.*$|`[^`\n]+`", part, flags=re.MULTILINE)


def make_targets_in(markdown: str) -> set[str]:
    """Return the make targets that a document names."""
    return {target for code in code_of(markdown) for target in re.findall(r"\bmake ([a-z]+)", code)}


def test_prose_is_not_code() -> None:
    markdown = "make sure\n\n    make a\n\n`make b` makes\n```sh\nmake c\n```\nmake do\n"
    assert make_targets_in(markdown) == {"a", "b", "c"}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_name_existing_targets(document: str) -> None:
    assert make_targets_in((ROOT / document).read_text(encoding="utf-8")) <= set(TARGETS)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_name_existing_files(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    code = [span for part in code_of(text) for span in re.findall(r"(?<![\w./])[\w.-]+(?:/[\w.-]+)+/?", part)]
    linked = re.findall(r"\]\(([\w./-]*\w)\)", text)
    places = (ROOT, ROOT / "fuzz_attn", (ROOT / document).parent, ROOT / "fuzz_attn" / "simulator")
    named = {
        name for name in code if name.endswith((".py", ".toml", ".svg", ".md", ".yml", "/")) and not invented(name)
    }
    assert {name for name in named | set(linked) if not any((place / name).exists() for place in places)} == set()


def invented(name: str) -> bool:
    """Return whether a path is an example, or is made by a run."""
    return "TARGET" in name or name.startswith(("path/", "my_package/", "a.json", "merged/", "OWNER/"))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_name_existing_commands(document: str) -> None:
    calls = [
        call for code in code_of((ROOT / document).read_text()) for call in re.findall(r"fuzz-attn ([a-z]+)(.*)", code)
    ]
    assert {name for name, _ in calls} <= set(main.commands)
    for name, rest in calls:
        options = {
            option for parameter in main.commands[name].params for option in parameter.opts + parameter.secondary_opts
        }
        assert set(re.findall(r"--[a-z-]+", rest.partition("`")[0])) <= options | {"--help"}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_import_existing_names(document: str) -> None:
    for code in code_of((ROOT / document).read_text(encoding="utf-8")):
        for module, names in re.findall(r"from (fuzz_attn[\w.]*) import ([\w, ]+)", code):
            imported = importlib.import_module(module)
            assert [name for name in names.split(", ") if not hasattr(imported, name.strip())] == []


def test_readme_names_the_two_commands() -> None:
    assert make_targets_in((ROOT / "README.md").read_text(encoding="utf-8")) >= {"fuzz", "test"}


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: ([a-z ]+)$", makefile, flags=re.MULTILINE)
    listing = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert {line.split()[1] for line in listing.splitlines() if line.startswith("make ")} == set(phony.split())


def test_ci_runs_lint_and_test() -> None:
    script = ROOT / ".ci" / "run"
    commands = set(re.findall(r"^make (?:--no-print-directory )?([a-z]+)", script.read_text(), flags=re.MULTILINE))
    assert os.access(script, os.X_OK)
    assert commands == {"lint", "test"}


def test_pull_request_workflow_runs_the_ci_script() -> None:
    workflow = (ROOT / ".github" / "workflows" / "pull-request.yml").read_text(encoding="utf-8")
    assert re.findall(r"^ +- run: (.*)$", workflow, flags=re.MULTILINE) == [".ci/run"]
