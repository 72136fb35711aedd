"""What the theme of the pages leaves out, in headless Chromium: axe finds it, and nothing once it is completed."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

CHROMIUM: Final = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE: Final = 600_000
"""Milliseconds; longer than any step takes on a busy machine."""
SETTINGS: Final = Path(__file__).parents[2] / "docs" / "conf.py"
PAGE: Final = """<!doctype html><html lang="en"><title>Page</title><main><h1>Page</h1>
<p class="caption" role="heading">Start here</p>
<pre>{line}</pre>
<div class="table-wrapper colwidths-auto"><table><tr><td>{line}</td></tr></table></div>
<style>pre, div {{ overflow: auto; width: 100px }}</style></main></html>""".format(line="long_word" * 40)
"""What the theme makes of a caption, of code and of a table."""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_axe_finds_nothing_serious_in_what_the_theme_makes(tmp_path: Path) -> None:
    before, after = tmp_path / "before.html", tmp_path / "after" / "page.html"
    after.parent.mkdir()
    for path in (before, after):
        path.write_text(PAGE, encoding="utf-8")
    for _ in range(2):  # the second run of Sphinx finds pages that are complete
        runpy.run_path(str(SETTINGS))["make_accessible"](SimpleNamespace(outdir=after.parent), None)
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=PATIENCE)
        page = browser.new_page()
        found = []
        for path in (before, after):
            page.goto(path.as_uri(), timeout=PATIENCE)
            serious = [each["id"] for each in Axe().run(page).response["violations"] if each["impact"] != "moderate"]
            found.append(serious)
        browser.close()
    assert found == [["aria-required-attr", "scrollable-region-focusable"], []]
