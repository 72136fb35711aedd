"""The matrix of docs/published.md, made from launchers.toml: what binds of the published launchers, and how.

``make launchers`` writes the matrix into the page. ``make launchers ARGS="--try vllm"`` first tries `fuzz-attn bind` on
the launchers whose specification has that text, and notes in the file whether each binds and what it computes. It needs
the network, and for projects that no index has a checkout: ``--checkout aiter=FOLDER``.

A launcher in the file has a ``spec``; ``binds`` is ``names``, ``known`` (with what ``bindings.toml`` knows of it) or
``no``; ``family`` is what it computes. ``lacks`` says in one line why it does not bind, and ``shows`` what a run of
120 s shows; both are written by hand. ``contracts`` are the arguments that it accepts and reads wrongly, which
``--contracts TEXT`` finds (``unusual_arguments.py``), and ``argued`` is what that is, by hand: ``defect``, ``outside``
of what it promises or ``unclear``, a colon and why.
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

from fuzz_attn.targets.loading import WheelPlace, known_binding

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
DATA: Final = HERE / "launchers.toml"
PAGE: Final = ROOT / "docs" / "published.md"
HEADER: Final = (
    "# The launchers of docs/published.md. launcher_matrix.py says what the fields are, and writes the file.\n"
)
FIELDS: Final = ("spec", "binds", "family", "lacks", "shows", "contracts", "argued")
WORDS: Final = {"names": "by names", "known": "by a known binding", "no": "no"}
HEAD: Final = "| launcher | binds | computes | a run of 120 s shows, or what it lacks |\n| --- | --- | --- | --- |\n"
MATRIX: Final = re.compile(re.escape(HEAD) + r"(\|.*\n)+")
CONTRACTS_HEAD: Final = "| launcher | accepts and reads wrongly | what that is |\n| --- | --- | --- |\n"
CONTRACTS: Final = re.compile(re.escape(CONTRACTS_HEAD) + r"(\|.*\n)*")
COUNTED: Final = re.compile(r"\d+ of \d+ launchers have \d+ rows of contracts.*\n")
VERDICTS: Final = ("defect", "outside", "unclear")
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
    rows, names = [], names_of(launchers)
    for each in launchers:
        family = f"`{each['family']}`" if each.get("family") else ""
        says = each.get("lacks") or each.get("shows", "")
        rows.append(f"| {names[each['spec']]} | {WORDS[each['binds']]} | {family} | {says} |\n")
    return HEAD + "".join(rows)


def names_of(launchers: Sequence[Launcher]) -> dict[str, str]:
    """Return for each specification where the launcher is, with as few parts of its module as tell it from others."""
    short = [_place(each, 1) for each in launchers]
    return {each["spec"]: _place(each, 1 if short.count(_place(each, 1)) == 1 else 3) for each in launchers}


def _place(launcher: Launcher, parts: int) -> str:
    """Return where a launcher is, with so many of the last parts of its module."""
    project, module, function = parts_of(launcher["spec"])
    return f"{project.partition('==')[0]} `{'.'.join(module.split('.')[-parts:])}:{function}`"


def summary_of(launchers: Sequence[Launcher]) -> str:
    """Return how many launchers bind, in words."""
    number = {how: sum(each["binds"] == how for each in launchers) for how in WORDS}
    bound = number["names"] + number["known"]
    return f"{bound} of {len(launchers)} bind: {number['names']} by names, {number['known']} by a known binding."


def contracts_of(launchers: Sequence[Launcher]) -> str:
    """Return the table of contracts as Markdown."""
    names, broken = names_of(launchers), with_contracts(launchers)
    rows = (f"| {names[each['spec']]} | {each['contracts']} | {each['argued']} |\n" for each in broken)
    return CONTRACTS_HEAD + "".join(rows)


def with_contracts(launchers: Sequence[Launcher]) -> list[Launcher]:
    """Return the launchers that take an argument wrongly."""
    return [each for each in launchers if each.get("contracts")]


def contracts_in_words(launchers: Sequence[Launcher]) -> str:
    """Return how many rows of contracts the launchers have, and what they are."""
    broken, bound = with_contracts(launchers), sum(each["binds"] != "no" for each in launchers)
    rows = sum(each["contracts"].count(";") + 1 for each in broken)
    arguments = sum(each["contracts"].count("`") // 2 for each in broken)
    verdicts = {verdict: sum(each["argued"].startswith(verdict) for each in broken) for verdict in VERDICTS}
    listed = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
    return f"{len(broken)} of {bound} launchers have {rows} rows of contracts with {arguments} arguments: {listed}.\n"


def with_matrix(page: str, launchers: Sequence[Launcher]) -> str:
    """Return the page with both tables and the sentences that count their rows."""
    counted = re.sub(r"\d+ of \d+ bind: .*", summary_of(launchers), page, count=1)
    counted = COUNTED.sub(lambda _: contracts_in_words(launchers), counted, count=1)
    filled = MATRIX.sub(lambda _: matrix_of(launchers), counted, count=1)
    return CONTRACTS.sub(lambda _: contracts_of(launchers), filled, count=1)


def found_at(launcher: Launcher, checkouts: dict[str, str]) -> str:
    """Return the specification of a launcher on this machine."""
    project, _, rest = launcher["spec"].partition("::")
    return f"{checkouts[project]}::{rest}" if rest else launcher["spec"]


def with_trials(launcher: Launcher, checkouts: dict[str, str]) -> Launcher:
    """Return a launcher with the arguments that it takes wrongly now."""
    command = [sys.executable, str(HERE / "unusual_arguments.py"), found_at(launcher, checkouts)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return {**launcher, "contracts": done.stdout.strip()}


def tried(launcher: Launcher, checkouts: dict[str, str]) -> Launcher:
    """Return a launcher with what `fuzz-attn bind` says of it now."""
    spec = found_at(launcher, checkouts)
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
    parser.add_argument("--contracts", metavar="TEXT", help="first try unusual arguments of those that bind, likewise")
    options = parser.parse_args()
    checkouts = dict(each.split("=", 1) for each in options.checkout)
    launchers = load()
    for index, launcher in enumerate(launchers):
        if "::" in launcher["spec"] and parts_of(launcher["spec"])[0] not in checkouts:
            continue
        if options.text is not None and options.text in launcher["spec"]:
            launchers[index] = tried(launcher, checkouts)
        if options.contracts is not None and options.contracts in launcher["spec"] and launcher["binds"] != "no":
            launchers[index] = with_trials(launchers[index], checkouts)
    save(launchers)
    PAGE.write_text(with_matrix(PAGE.read_text(encoding="utf-8"), launchers), encoding="utf-8")
    print(summary_of(launchers))


if __name__ == "__main__":
    main()
