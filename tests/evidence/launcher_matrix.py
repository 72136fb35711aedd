"""The matrix of docs/published.md, made from launchers.toml: what binds of the published launchers, and how.

``make launchers`` writes the matrix into the page. ``make launchers ARGS="--try vllm"`` first tries `fuzz-attn bind` on
the launchers whose specification has that text, and notes in the file whether each binds and what it computes. It needs
the network, and for projects that no index has a checkout: ``--checkout aiter=FOLDER``.

A launcher in the file has a ``spec``; ``binds`` is ``names``, ``known`` (with what ``bindings.toml`` knows of it) or
``no``; ``family`` is what it computes. ``lacks`` says in one line why it does not bind, and ``shows`` what a run of
120 s shows; both are written by hand.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from fuzz_attn.targets.published.place import WheelPlace, known_binding

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
DATA: Final = HERE / "launchers.toml"
PAGE: Final = ROOT / "docs" / "published.md"
HEADER: Final = (
    "# The launchers of docs/published.md. launcher_matrix.py says what the fields are, and writes the file.\n"
)
FIELDS: Final = ("spec", "binds", "family", "lacks", "shows")
WORDS: Final = {"names": "by names", "known": "by a known binding", "no": "no"}
HEAD: Final = "| launcher | binds | computes | a run of 120 s shows, or what it lacks |\n| --- | --- | --- | --- |\n"
MATRIX: Final = re.compile(re.escape(HEAD) + r"(\|.*\n)+")
FAMILY: Final = re.compile(r"\(family (\w+)\)")

Launcher: TypeAlias = dict[str, str]


def load(path: Path = DATA) -> list[Launcher]:
    """Return the launchers."""
    found: list[Launcher] = tomllib.loads(path.read_text(encoding="utf-8"))["launcher"]
    return found


def save(launchers: Iterable[Launcher], path: Path = DATA) -> None:
    """Write the launchers, one field a line."""
    tables = [
        "".join(f"{name} = {json.dumps(each[name])}\n" for name in FIELDS if each.get(name)) for each in launchers
    ]
    path.write_text(HEADER + "".join(f"\n[[launcher]]\n{table}" for table in tables), encoding="utf-8")


def parts_of(spec: str) -> tuple[str, str, str]:
    """Return the project with its version, the module and the function of a specification."""
    project, module, function = re.split(r"::?", spec, maxsplit=2)
    return project, module, function


def is_known(spec: str) -> bool:
    """Return whether bindings.toml knows something of a launcher."""
    return known_binding(WheelPlace("", "", *parts_of(spec)[1:])) is not None


def matrix_of(launchers: Sequence[Launcher]) -> str:
    """Return the matrix as Markdown, a row for each launcher."""
    rows = []
    short = [_place(each, 1) for each in launchers]
    for each in launchers:
        place = _place(each, 1 if short.count(_place(each, 1)) == 1 else 3)
        family = f"`{each['family']}`" if each.get("family") else ""
        rows.append(f"| {place} | {WORDS[each['binds']]} | {family} | {each.get('lacks') or each.get('shows', '')} |\n")
    return HEAD + "".join(rows)


def _place(launcher: Launcher, parts: int) -> str:
    """Return where a launcher is, with so many of the last parts of its module."""
    project, module, function = parts_of(launcher["spec"])
    return f"{project.partition('==')[0]} `{'.'.join(module.split('.')[-parts:])}:{function}`"


def summary_of(launchers: Sequence[Launcher]) -> str:
    """Return how many launchers bind, in words."""
    number = {how: sum(each["binds"] == how for each in launchers) for how in WORDS}
    bound = number["names"] + number["known"]
    return f"{bound} of {len(launchers)} bind: {number['names']} by names, {number['known']} by a known binding."


def with_matrix(page: str, launchers: Sequence[Launcher]) -> str:
    """Return the page with the matrix and the sentence that counts its rows."""
    counted = re.sub(r"\d+ of \d+ bind: .*", summary_of(launchers), page, count=1)
    return MATRIX.sub(lambda _: matrix_of(launchers), counted, count=1)


def tried(launcher: Launcher, checkouts: dict[str, str]) -> Launcher:
    """Return a launcher with what `fuzz-attn bind` says of it now."""
    project, _, rest = launcher["spec"].partition("::")
    spec = f"{checkouts[project]}::{rest}" if rest else launcher["spec"]
    command = [sys.executable, "-c", "from fuzz_attn.cli.start import start; start()", "bind", spec]
    done = subprocess.run([*command, "--backend", "simulator"], capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        print(f"{launcher['spec']}: {done.stderr.strip()}")
        return {**launcher, "binds": "no"}
    family = FAMILY.findall(" ".join(done.stdout.split()))[0]
    return {**launcher, "binds": "known" if is_known(launcher["spec"]) else "names", "family": family}


def main() -> None:
    """Try the launchers that the command line names, and write file and page."""
    parser = argparse.ArgumentParser(description="Make the matrix of docs/published.md.")
    parser.add_argument("--try", dest="text", metavar="TEXT", help="first try to bind those whose names contain TEXT")
    parser.add_argument("--checkout", action="append", default=[], metavar="PROJECT=FOLDER", help="where a checkout is")
    options = parser.parse_args()
    checkouts = dict(each.split("=", 1) for each in options.checkout)
    launchers = load()
    for index, launcher in enumerate(launchers):
        away = "::" in launcher["spec"] and parts_of(launcher["spec"])[0] not in checkouts
        if options.text is not None and options.text in launcher["spec"] and not away:
            launchers[index] = tried(launcher, checkouts)
    save(launchers)
    PAGE.write_text(with_matrix(PAGE.read_text(encoding="utf-8"), launchers), encoding="utf-8")
    print(summary_of(launchers))


if __name__ == "__main__":
    main()
