"""The page docs/history.md: which bugs of attention kernels in the trackers this project expresses, draws and finds.

``make history`` writes the page from ``history.toml`` and prints it. ``make history ARGS=--shares`` first measures
which share of the drawn cases has what a bug needs.

An entry of the table has the issue (``ref``), what was wrong (``what``), its ``language`` (``?`` where nobody looked),
its ``kind``, the family or operation whose cases express it (``case``) with the ``features`` that it needs, what a case
lacks (``missing``), and the seeded bugs that plant it (``planted``). One with a case and something missing is expressed
in part.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, Final

from fuzz_attn.engine.schedule import play_round
from fuzz_attn.operations.registry import operation_of_family

ROOT: Final = Path(__file__).parents[2]
DATA: Final = Path(__file__).with_name("history.toml")
PAGE: Final = ROOT / "docs" / "history.md"
HERE_TOO: Final = ("attention", "merge", "cache write")
"""The kinds of bugs that this project is about."""
LANGUAGES: Final = {"T": "Triton", "C": "CUDA or the like", "L": "launcher", "?": "not looked at"}
UNKNOWN: Final = "not looked at"
DRAWN: Final = 480
ROUNDS: Final = 12
INTRODUCTION: Final = """\
# History

Bugs that people hit in attention kernels and their neighbours, from 2023 to November 2026, as public trackers and logs
have them. For each: does a case express it, how many drawn cases have what it needs, and is it planted in this
project's kernels, or in a target of `tests/sample_targets` where it is about several calls or configurations. What is
planted is found: `fuzz-attn audit --seeded` and the tests of the operations and of those targets check that.
Where a class of bugs is named, such as "a tail", only a note of the issue was read. "Not looked at" means that nobody
has. `make history` writes this page from `tests/history/history.toml`.
"""

Bug = dict[str, Any]


def load(path: Path = DATA) -> tuple[list[Bug], dict[str, int]]:
    """Return all bugs, and the share of drawn cases in percent for each need."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    return found["bug"], found["shares"]


def expressed(bug: Bug) -> str:
    """Return whether a case expresses a bug: yes, partly, no or not looked at."""
    if bug["missing"] == UNKNOWN:
        return UNKNOWN
    if not bug["case"]:
        return "no"
    return "partly" if bug["missing"] else "yes"


def need_of(bug: Bug) -> str:
    """Return the key of a bug in the shares."""
    return " ".join((bug["case"], *bug["features"]))


def drawn(bug: Bug, shares: dict[str, int]) -> str:
    """Return how often a case has what a bug needs, in words."""
    if not bug["case"]:
        return ""
    if bug["features"]:
        return f"{shares[need_of(bug)]} %"
    return "found" if bug["planted"] else UNKNOWN


def counts(bugs: list[Bug]) -> list[tuple[str, int]]:
    """Return the counts of the table, in words."""
    here = [bug for bug in bugs if bug["kind"] in HERE_TOO]
    by_answer = Counter(expressed(bug) for bug in here)
    planted = [bug for bug in here if bug["planted"]]
    return [
        ("bugs", len(bugs)),
        ("of attention, of merges and of cache writes, forward", len(here)),
        ("of these expressed", by_answer["yes"]),
        ("of these expressed in part", by_answer["partly"]),
        ("of these not expressed", by_answer["no"]),
        ("of these not looked at", by_answer[UNKNOWN]),
        ("of these planted, so found", len(planted)),
        ("expressed and not planted", sum(expressed(bug) == "yes" and not bug["planted"] for bug in here)),
    ]


def page(bugs: list[Bug], shares: dict[str, int]) -> str:
    """Return the page."""
    lines = [INTRODUCTION, "| what | count |", "| --- | ---: |"]
    lines += [f"| {words} | {count} |" for words, count in counts(bugs)]
    kinds = Counter(bug["kind"] for bug in bugs)
    for kind in sorted(kinds, key=lambda kind: (kind not in HERE_TOO, -kinds[kind], kind)):
        lines += ["", f"## {kind[0].upper()}{kind[1:]}: {kinds[kind]}", ""]
        lines += ["| bug | language | what | expressed | drawn | planted |", "| --- | --- | --- | --- | --- | --- |"]
        lines += [row_of(bug, shares) for bug in bugs if bug["kind"] == kind]
    return "\n".join(lines) + "\n"


def row_of(bug: Bug, shares: dict[str, int]) -> str:
    """Return a bug's row of its table."""
    case = f": {need_of(bug)}" if bug["case"] else ""
    lacks = f" (missing: {bug['missing']})" if bug["missing"] not in ("", UNKNOWN) else ""
    planted = ", ".join(f"`{name}`" for name in bug["planted"]) or "no"
    answer = f"{expressed(bug)}{case}{lacks}"
    cells = bug["ref"], LANGUAGES[bug["language"]], bug["what"], answer, drawn(bug, shares), planted
    return f"| {' | '.join(cells)} |"


def measured(bugs: list[Bug]) -> dict[str, int]:
    """Return the share of drawn cases, in percent, for the needs of all bugs."""
    needs = sorted({(bug["case"], *bug["features"]) for bug in bugs if bug["case"] and bug["features"]})
    features = {family: features_drawn(family) for family in sorted({need[0] for need in needs})}
    return {
        " ".join(need): round(100 * sum(set(need[1:]) <= each for each in features[need[0]]) / len(features[need[0]]))
        for need in needs
    }


def features_drawn(family: str) -> list[set[str]]:
    """Return the features of cases as a campaign draws them for the built-in target of a family."""
    operation, found = operation_of_family(family), list[set[str]]()
    domain = operation.load_target(family, None, None).domain
    for number in range(ROUNDS):
        play_round(domain, number, DRAWN // ROUNDS, lambda case, _: found.append(set(operation.all_features_of(case))))
    return found


def main() -> None:
    """Write and print the page."""
    parser = argparse.ArgumentParser(description="Write docs/history.md and print it.")
    parser.add_argument("--shares", action="store_true", help="measure the shares of drawn cases first")
    bugs, shares = load()
    if parser.parse_args().shares:
        lines = "".join(f'"{need}" = {share}\n' for need, share in measured(bugs).items())
        text = DATA.read_text(encoding="utf-8")
        DATA.write_text(re.sub(r"(?s)\[shares\]\n.*?\n(?=\n)", lambda _: f"[shares]\n{lines}", text), encoding="utf-8")
        bugs, shares = load()
    PAGE.write_text(page(bugs, shares), encoding="utf-8")
    print(page(bugs, shares))


if __name__ == "__main__":
    main()
