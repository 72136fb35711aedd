"""The commands and files that the documents name exist, and CI runs the same commands."""

import importlib
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fuzz_attn.cli.main import main

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests", "reports", "examples")
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", *(f"{name}/README.md" for name in FOLDERS))
DOCUMENTS = (*PAGES, *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS}
TARGETS = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)

SHELL = frozenset(("||", "&&", "|", ">", "2>", ";"))
"""Words that end a command."""


def code_of(markdown: str) -> Iterator[str]:
    """Yield the code of a document: fenced blocks, indented lines, and `spans`."""
    for index, part in enumerate(re.split(r"^```.*$", markdown, flags=re.MULTILINE)):
        if index % 2:
            yield part
        else:
            yield from re.findall(r"^ {4}.*$|`[^`\n]+`", part, flags=re.MULTILINE)


def make_targets_in(markdown: str) -> set[str]:
    """Return the make targets that a document names."""
    return {target for code in code_of(markdown) for target in re.findall(r"\bmake ([a-z-]+)", code)}


def test_prose_is_not_code() -> None:
    markdown = "make sure\n\n    make a\n\n`make b` makes\n```sh\nmake c\n```\nmake do\n"
    assert make_targets_in(markdown) == {"a", "b", "c"}


def test_documents_name_existing_targets() -> None:
    unknown = {(name, target) for name, text in TEXTS.items() for target in make_targets_in(text) - set(TARGETS)}
    assert unknown == set()


def test_documents_name_existing_files() -> None:
    assert {document: missing_files(document) for document in TEXTS if missing_files(document)} == {}


def missing_files(document: str) -> set[str]:
    """Return the files that a document names or links to and that are nowhere."""
    text = TEXTS[document]
    code = [span for part in code_of(text) for span in re.findall(r"(?<![\w./])[\w.-]+(?:/[\w.-]+)+/?", part)]
    linked = re.findall(r"\]\(([\w./-]*\w)\)", text)
    places = (ROOT, ROOT / "fuzz_attn", (ROOT / document).parent, ROOT / "fuzz_attn" / "simulator")
    named = {
        name for name in code if name.endswith((".py", ".toml", ".svg", ".md", ".yml", "/")) and not invented(name)
    }
    return {name for name in named | set(linked) if not any((place / name).exists() for place in places)}


def invented(name: str) -> bool:
    """Return whether a path is an example, or is made by a run."""
    return "TARGET" in name or name.startswith(("path/", "my_package/", "a.json", "merged/", "OWNER/"))


def test_documents_name_existing_commands() -> None:
    calls = [
        (document, *call)
        for document, text in TEXTS.items()
        for code in code_of(text)
        for call in re.findall(r"fuzz-attn ([a-z]+)(.*)", code)
    ]
    assert {(document, name) for document, name, _ in calls if name not in main.commands} == set()
    for document, name, rest in calls:
        options = {
            option for parameter in main.commands[name].params for option in parameter.opts + parameter.secondary_opts
        }
        assert set(re.findall(r"--[a-z-]+", rest.partition("`")[0])) <= options | {"--help"}, document


def command_lines(markdown: str) -> Iterator[list[str]]:
    """Yield the words behind `fuzz-attn` in each line of a code block, joined with the lines that continue it."""
    blocks = "".join(f"{code}\n" for code in code_of(markdown) if not code.startswith("`"))
    joined = re.sub(r" *\\\n +", " ", blocks)
    joined = re.sub(r"\$\{\{.*?\}\}|\$\w+", "1", joined)  # variables of a shell and of GitHub Actions
    for line in joined.splitlines():
        found = re.match(r" *(?:- run: )?fuzz-attn (.*)", line)
        if found:
            words = shlex.split(found[1], comments=True)
            yield words[: next((at for at, word in enumerate(words) if word in SHELL), len(words))]


def test_command_lines_are_found_whole() -> None:
    first = "    fuzz-attn run --target a.py:f \\\n        --seed 7  # a comment\n"
    second = "    fuzz-attn replay || true\n"
    assert list(command_lines(f"text `fuzz-attn run`\n\n{first}{second}")) == [
        ["run", "--target", "a.py:f", "--seed", "7"],
        ["replay"],
    ]


def test_command_lines_in_documents_parse() -> None:
    """The program's own parser takes each command: its options, their values, and how many arguments it needs."""
    for document, words in ((document, words) for document, text in TEXTS.items() for words in command_lines(text)):
        command = main.commands[words[0]]
        try:
            command.make_context(words[0], words[1:])
        except click.ClickException as error:
            pytest.fail(f"{document}: fuzz-attn {shlex.join(words)}: {error.format_message()}")


def anchors_of(markdown: str) -> set[str]:
    """Return the names by which GitHub links to the headings of a document."""
    headings = re.findall(r"^#+ (.*)$", markdown, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_existing_headings() -> None:
    for document, text in TEXTS.items():
        for place, anchor in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", text):
            target = (ROOT / document).parent / place if place else ROOT / document
            assert anchor in anchors_of(target.read_text(encoding="utf-8")), f"{document}: {place}#{anchor}"


def test_documents_import_existing_names() -> None:
    for document, code in ((document, code) for document, text in TEXTS.items() for code in code_of(text)):
        for module, names in re.findall(r"from (fuzz_attn[\w.]*) import ([\w, ]+)", code):
            imported = importlib.import_module(module)
            assert [name for name in names.split(", ") if not hasattr(imported, name.strip())] == [], document


def test_readme_names_the_two_commands() -> None:
    assert make_targets_in((ROOT / "README.md").read_text(encoding="utf-8")) >= {"fuzz", "test"}


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: ([a-z -]+)$", makefile, flags=re.MULTILINE)
    listing = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert {line.split()[1] for line in listing.splitlines() if line.startswith("make ")} == set(phony.split())


def test_ci_runs_lint_and_test() -> None:
    script = ROOT / ".ci" / "run"
    commands = set(re.findall(r"^make (?:--no-print-directory )?([a-z]+)", script.read_text(), flags=re.MULTILINE))
    assert os.access(script, os.X_OK)
    assert commands == {"lint", "test"}


def test_pull_request_workflow_runs_the_ci_script() -> None:
    workflow = (ROOT / ".github" / "workflows" / "pull-request.yml").read_text(encoding="utf-8")
    assert re.findall(r"^ +- run: (.*)$", workflow, flags=re.MULTILINE) == [".ci/run", "make docs"]
