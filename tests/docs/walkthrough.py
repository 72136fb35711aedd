"""A walk through the pages that show what commands print: each command runs, and its output goes into the page.

``make walk`` writes the texts and pictures of ``PAGES``, with ``ARGS=--screenshots`` also those of docs/report.md. A
test walks again and compares. Of a page, in its order, the walk takes

- Python behind "save this as `NAME`": a file of the reader's folder,
- a ``diff`` of one line: the change of that file,
- indented lines, the first with ``fuzz-attn`` or ``pytest``: commands, which run in that folder,
- a ``text`` block: what the last command printed, as far as ``excerpt`` shows it,
- a picture ``tutorial-NAME.svg`` or ``window-NAME.svg``: the file ``NAME.svg`` that some command wrote.

The files of examples/ are in that folder too.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import sync_playwright

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ROOT / "examples"
PAGES: Final = ("docs/tutorial.md", "examples/README.md")
PARTS: Final = re.compile(
    r"save (?:this|it) as `(?P<name>[^`]+)`[^`]*```python\n(?P<code>.*?)^```"
    r"|^```diff\n-(?P<old>.*?)\n\+(?P<new>.*?)\n```"
    r"|(?<=\n\n)(?P<commands>    (?:fuzz-attn|pytest) [^\n]*\n(?:    [^\n]*\n)*)"
    r"|^```text\n(?P<text>.*?)^```",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
PICTURE: Final = re.compile(r"\]\((?:\.\./docs/)?((?:tutorial|window)-([\w-]+\.svg))\)")
VARYING: Final = re.compile(r" *\b\d+\.\d s\b|\b\d+ cases?(?=, the first after)")
"""Seconds, and how many cases showed a failure: a slow machine has less time to shrink it, and avoids others then."""
FIGURES: Final = re.compile(r"^All commands of this page .*?\.\n", re.MULTILINE | re.DOTALL)
ROWS: Final = re.compile(r"^ +\d+\.\d s  (?:found|shrunk|same) .*\n", re.MULTILINE)
VERDICT: Final = re.compile(r"^(?:No failure|\d+ failures?) in .*?(?=^Written)", re.MULTILINE | re.DOTALL)
"""Of what a run prints, the parts that a page shows."""
PHOTOGRAPHS: Final[tuple[tuple[str, int, int, Literal["light", "dark"], str], ...]] = (
    ("report-desktop.png", 1180, 900, "light", ""),
    ("report-dark.png", 1180, 720, "dark", "#failure-1"),
    ("report-phone.png", 390, 1200, "light", ""),
)


def walk(page: str, folder: Path) -> Iterator[tuple[re.Match[str], str]]:
    """Yield each text block of a page with what the command before it prints in a folder, which fills with files."""
    for path in (*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.toml")):
        shutil.copy(path, folder)
    saved, output = folder, ""
    for part in PARTS.finditer(page):
        if part["name"]:
            saved = folder / part["name"]
            saved.write_text(part["code"], encoding="utf-8")
        elif part["old"]:
            source = saved.read_text(encoding="utf-8")
            assert source.count(part["old"]) == 1, part["old"]
            saved.write_text(source.replace(part["old"], part["new"]), encoding="utf-8")
        elif part["commands"]:
            for command in re.sub(r" *\\\n +", " ", part["commands"]).splitlines():
                output = excerpt(command, printed(command, folder))
        else:
            yield part, output


def printed(command: str, folder: Path) -> str:
    """Return what a command prints on a machine without a GPU, in a terminal of 80 columns."""
    environment = {**os.environ, "COLUMNS": "80", "CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "0"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command.strip()],
        cwd=folder,
        env=environment,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode in ((0, 1) if "fuzz-attn run" in command else (0,)), f"{command}\n{done.stdout}"
    return done.stdout


def excerpt(command: str, output: str) -> str:
    """Return the part of an output that a page shows, with ``...`` where something is left out."""
    kind = command.split()[1]
    if kind == "bind":
        return output.partition("\nCases are drawn")[0] + "...\n"
    if kind == "run":
        rows = "".join(ROWS.findall(output))
        return rows + "...\n" * bool(rows) + "".join(VERDICT.findall(output))
    return output


def renewed(page: str, folder: Path) -> str:
    """Return a page with what its commands print; a text that differs in seconds only stays."""
    made, end = [], 0
    for block, output in walk(page, folder):
        same = VARYING.sub("", block["text"]) == VARYING.sub("", output)
        made += [page[end : block.start("text")], block["text"] if same else output]
        end = block.end("text")
    return "".join((*made, page[end:]))


def words_of(picture: str) -> list[str]:
    """Return the words of a picture of a terminal without what machines do not share.

    These are fractions, versions, and the launches that a search makes until its time is up.
    """
    text = html.unescape(re.sub(r"<[^>]*>", " ", picture.partition("</style>")[2])).replace("\xa0", " ")
    text = re.sub(r"with \d+ more\s+launches", "with more launches", text)
    return [word for word in text.partition("Status open.")[0].split() if not re.fullmatch(r"-?\d+\.\d+", word)]


def figures(took: float, spent: float) -> str:
    """Return the sentence of the tutorial that says how many seconds its commands took, and where."""
    commit = subprocess.check_output(("git", "rev-parse", "--short=7", "HEAD"), cwd=ROOT, text=True).strip()
    cores, load = os.cpu_count(), os.getloadavg()[1]
    return (
        f"All commands of this page took {took:.0f} seconds, of these {spent:.0f} of processor time: "
        f"{datetime.now(UTC):%Y-%m-%d}, commit {commit},\n{cores} cores at a load of {load:.0f}, "
        f"Triton {version('triton')}, torch {version('torch')}.\n"
    )


def write_page(name: str, folder: Path) -> None:
    """Walk through a page in an empty folder, and write the page and its pictures."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    page = renewed((ROOT / name).read_text(encoding="utf-8"), folder)
    after, took = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - begin
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    (ROOT / name).write_text(FIGURES.sub(lambda _: figures(took, spent), page), encoding="utf-8")
    for shown, made in set(PICTURE.findall(page)):
        shutil.copy(folder / made, ROOT / "docs" / shown)


def photograph(folder: Path) -> None:
    """Make the pictures of docs/report.md from a run on a target with five bugs."""
    for name in ("five_bugs.py", "torch_attention.py"):
        shutil.copy(ROOT / "tests" / "sample_targets" / name, folder)
    printed("fuzz-attn run --target five_bugs.py:five_bugs --max-cases 400 --seed 3 --workers 1", folder)
    printed("fuzz-attn report reports/runs/*", folder)
    (report,) = folder.glob("reports/runs/*/report.html")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        for name, width, height, colours, part in PHOTOGRAPHS:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=colours)
            page.goto(f"{report.as_uri()}{part}")
            page.screenshot(path=ROOT / "docs" / name)
        browser.close()


def main() -> None:
    """Write all pages and their pictures, each from a folder and caches that are empty at first."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--screenshots", action="store_true", help="make the pictures of docs/report.md too")
    screenshots: bool = arguments.parse_args().screenshots
    for name in PAGES:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["FUZZ_ATTN_CACHE"] = f"{folder}/.cache"
            write_page(name, Path(folder))
    if screenshots:
        with tempfile.TemporaryDirectory() as folder:
            photograph(Path(folder))


if __name__ == "__main__":
    main()
