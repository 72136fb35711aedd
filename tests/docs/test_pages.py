"""The pages that `make docs` makes: no warning, nothing missing, and nothing that a reader's browser would download."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path
from typing import Final, get_args

import click
import pytest

from fuzz_attn.binding.matching import PUBLISHED
from fuzz_attn.cli.main import main
from fuzz_attn.oracle.verdict import Kind
from fuzz_attn.properties.check import LAUNCH_PROPERTIES
from fuzz_attn.properties.relations import RELATIONS

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = sorted((ROOT / "docs").glob("*.md"))
OPTIONS: Final = re.compile(r"sphinx-build (--quiet.*) -d ")
STYLE: Final = re.compile(r"""@import\s+["']([^"']*)|url\(["']?([^"')]*)""")
LOADED: Final = {
    ".html": re.compile(r'<(?:script|img|iframe)\b[^>]*?\bsrc="([^"]*)"|<link\b[^>]*?\bhref="([^"]*)"'),
    ".css": STYLE,
    ".svg": STYLE,
}
"""What a file loads, by its kind."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the pages, made with the options of `make docs`."""
    folder = tmp_path_factory.mktemp("pages")
    (options,) = OPTIONS.findall((ROOT / "Makefile").read_text(encoding="utf-8"))
    command = [sys.executable, "-m", "sphinx", *options.split(), "-d", str(folder / "trees"), ".", str(folder / "html")]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "html"


def text_of(page: Path) -> str:
    """Return the words of a page's main part."""
    source = page.read_text(encoding="utf-8")
    return html.unescape(re.sub(r"<[^>]*>", "", source[source.index("<article") :]))


@pytest.mark.slow
def test_every_page_is_made_and_is_in_the_contents(built: Path) -> None:
    index = (built / "docs" / "index.html").read_text(encoding="utf-8")
    linked = set(re.findall(r'class="reference internal" href="([\w.]+)\.html"', index))
    assert {path.stem for path in PAGES} - {"index"} <= linked
    assert all((built / "docs" / f"{path.stem}.html").exists() for path in PAGES)
    assert 'url=docs/index.html"' in (built / "index.html").read_text(encoding="utf-8")


def test_first_page_has_the_lines_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"^    from fuzz_attn import fuzz\n(?:    .*\n|\n)+", readme, re.MULTILINE)
    assert lines.strip() in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_command_line_page_has_every_command_and_option(built: Path) -> None:
    text = text_of(built / "docs" / "cli.html")
    for name, command in main.commands.items():
        assert f"fuzz-attn {name}" in text
        options = [option for given in command.params if isinstance(given, click.Option) for option in given.opts]
        assert [option for option in options if option not in text] == []


@pytest.mark.slow
def test_api_page_has_the_public_names(built: Path) -> None:
    text = text_of(built / "docs" / "api.html")
    for name in (
        "verify",
        "fuzz",
        "check",
        "cases",
        "KernelError",
        "FuzzAttnError",
        "RunReport",
        "Target",
        "Domain",
        "RoundingModel",
        "Binding",
    ):
        assert name in text
    assert "Fuzz a target in worker processes and return what was found" in text


@pytest.mark.slow
def test_pages_load_nothing_from_a_network(built: Path) -> None:
    for file in (path for path in built.rglob("*") if path.suffix in LOADED):
        places = [place for found in LOADED[file.suffix].findall(file.read_text(encoding="utf-8")) for place in found]
        assert [place for place in places if re.match(r"(?:https?:)?//", place)] == [], file.name


def test_properties_page_has_every_property_and_relation() -> None:
    text = (ROOT / "docs" / "properties.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| (\w+) \|.*\n\| --- .*\n((?:\|.*\n)+)", text, re.MULTILINE)
    named: dict[str, list[str]] = {kind: [] for kind, _ in tables}
    for kind, rows in tables:
        named[kind] += re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)
    assert sorted(named["property"] + named["relation"]) == sorted((*LAUNCH_PROPERTIES, *RELATIONS))
    assert set(named["kind"]) <= set(get_args(Kind))
    assert {"out_of_bounds", "race", "overflow", "false_hint", "undefined_integer"} <= set(named["kind"])


def test_api_page_has_every_option_of_pytest(pytestconfig: pytest.Config) -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    known = {option for option in vars(pytestconfig.option) if option.startswith("fuzz_")}
    assert {name.replace("-", "_") for name in re.findall(r"^\| `--(fuzz-[\w-]+)", text, re.MULTILINE)} == known


@pytest.mark.parametrize("family", PUBLISHED)
def test_signatures_have_every_parameter_and_mark_those_needed(family: str) -> None:
    sections = re.split(r"^## ", (ROOT / "docs" / "signatures.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    by_title = {section.partition("\n")[0]: section for section in sections}
    text = by_title[family] + (
        by_title["Options of split caches"] if "options of split caches" in by_title[family] else ""
    )
    cells = re.findall(r"^\| ([^|]*`[^|]*) \|", text, flags=re.MULTILINE)
    named = {name: bool(bold) for cell in cells for bold, name in re.findall(r"(\*\*)?`(\w+)`", cell)}
    published = PUBLISHED[family]
    assert set(named) == set(published.binding.roles)
    assert {name for name, needed in named.items() if needed} == published.required
