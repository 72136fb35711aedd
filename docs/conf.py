"""Settings of Sphinx, which makes the pages of `make docs`.

The source folder is the root of the checkout, so that the pages may link to README.md and its neighbours.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n)*)", re.MULTILINE)
ITEM = re.compile(r"^- .*\n(?:  .*\n)*", re.MULTILINE)
LINK = re.compile(r"\[(.*?)\]\(([\w./-]+)\.md\)")

project = "fuzz_attn"
author = "the authors of fuzz_attn"
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click"]
root_doc = "docs/index"
include_patterns = ["[A-Z]*.md", "docs/*.md", "examples/*.md", "reports/findings/*.md", "tests/README.md"]
exclude_patterns = [".*", "build", "dist", "fuzz_attn", "kernels", "strategies", "reports/runs"]
smartquotes = False  # they would make one dash of the two of an option

myst_heading_anchors = 3

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80

html_theme = "furo"
html_title = "fuzz_attn"
html_copy_source = False
html_show_copyright = False


REDIRECT = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=docs/index.html">\n'
FINDINGS = "reports/findings/README"


def setup(app: Sphinx) -> None:
    """Connect what is made while the pages are read, and after they were written."""
    app.connect("source-read", add_contents)
    app.connect("build-finished", make_accessible)
    app.connect("build-finished", add_first_page)
    app.connect("autodoc-process-signature", without_types)


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Add hidden tables of contents to the index, whose lists of links GitHub shows too, and to the defects found."""
    if page == app.config.root_doc:
        for caption, text in SECTION.findall(source[0]):
            links = LINK.findall("".join(ITEM.findall(text)))
            pages = [f"{name[0].upper()}{name[1:]} <{place}>" for name, place in links]
            source[0] += hidden_contents(pages, f":caption: {caption}")
    if page == FINDINGS:
        source[0] += hidden_contents(["*"], ":glob:")


def hidden_contents(pages: list[str], option: str) -> str:
    """Return a table of contents that only the sidebar shows."""
    return "\n".join(("\n\n```{toctree}", ":hidden:", option, "", *pages, "```\n"))


def add_first_page(app: Sphinx, error: Exception | None) -> None:
    """Lead from the output folder to the index, which lies in a folder of its own."""
    if error is None:
        (Path(app.outdir) / "index.html").write_text(REDIRECT, encoding="utf-8")


ACCESSIBLE = {
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper ': '<div tabindex="0" class="table-wrapper ',
    'role="heading">': 'role="heading" aria-level="2">',
}
"""What the theme leaves out: the keyboard reaches what scrolls sideways, and captions are headings of some level."""


def make_accessible(app: Sphinx, error: Exception | None) -> None:
    """Complete the pages for people who use the keyboard or a screen reader."""
    for page in Path(app.outdir).rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for old, new in ACCESSIBLE.items():
            text = text.replace(old, new)
        page.write_text(text, encoding="utf-8")


def without_types(
    app: Sphinx, what: str, name: str, described: object, options: object, signature: str | None, returned: str | None
) -> tuple[str, None] | None:
    """Return the signature of a class without types: they list every word of every choice, and its text says them."""
    if what != "class" or not callable(described) or not signature:
        return None
    parameters = inspect.signature(described).parameters.values()
    bare = str(inspect.Signature([each.replace(annotation=each.empty) for each in parameters]))
    return re.sub(r"frozenset\(\{.*?\}\)", "ALL_FEATURES", bare), None
