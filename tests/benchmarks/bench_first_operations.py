"""Benchmark: how often `explain --healthy` names the line of a seeded bug, in every family that the bug is in.

Each bug runs its saved failing case (tests/forensics/seeded_bug_cases.json), changed to the family where it fails there
too, beside this project's own kernel. Right is an operation on a line that the bug's edit changed, or one whose value
comes from such a line; the argument of the launch that the edit changed, beside the operation that uses it; or the line
that uses the edit first. The last are stated in tests/forensics/first_operations.toml. Bugs count whose effect is in
masks, addresses, heads or scales. Prints a row for each bug and family that is not right, or each with ``--all``, and
the score.

``python tests/benchmarks/bench_first_operations.py [--all] [--workers N] [--families F] [BUG ...]``
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import tempfile
import tomllib
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Final

from bench_explanations import (  # type: ignore[import-not-found] # beside this script
    FORENSICS,
    TABLES,
    TRUTH,
    failing,
    in_processes,
    judge,
)

from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.forensics.explanation import FirstOperation
from fuzz_attn.mutation.seeded_bugs import SeededBug, load_seeded_bugs, seeded_bug

USES: Final = FORENSICS / "first_operations.toml"
_ARGUMENT: Final = re.compile(r"`(\w+)`")


def changed_lines(bug: SeededBug, edited: Path) -> set[tuple[str, str]]:
    """Return file and text of each line in a statement that a bug's edits changed, before and after."""
    from fuzz_attn.mutation.edited_kernels import kernels_folder  # noqa: PLC0415 - after the backend is prepared

    found: set[tuple[str, str]] = set()
    for file in {edit.file for edit in bug.edits}:
        texts = [(folder / file).read_text(encoding="utf-8") for folder in (kernels_folder(), edited)]
        lines = [text.splitlines() for text in texts]
        for tag, *ranges in SequenceMatcher(None, lines[0], lines[1], autojunk=False).get_opcodes():
            if tag != "equal":
                for side, (first, last) in enumerate((ranges[:2], ranges[2:])):
                    found |= {(file, lines[side][n].strip()) for n in whole_statements(texts[side], first, last)}
    return found


def whole_statements(text: str, first: int, last: int) -> set[int]:
    """Return the numbers of the lines of all statements that contain lines of a range, and what an ``if`` decides."""
    numbers = set(range(first, last))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if isinstance(body, list) else node.end_lineno or node.lineno
            own = set(range(node.lineno - 1, max(end, node.lineno)))
            if own & set(range(first, last)):
                whole = range(node.lineno - 1, node.end_lineno or node.lineno)
                numbers |= set(whole) if isinstance(node, ast.If) else own
    return numbers


def named(found: FirstOperation, edited: Path) -> list[tuple[str, str]]:
    """Return file and text of each line that an answer names, the operation's first; notes name no line."""
    lines = [f"{found.site}: {found.source}", *found.own_lines, *found.healthy_lines] if found.site else []
    return [_place(line, edited) for line in lines]


def _place(line: str, edited: Path) -> tuple[str, str]:
    place, _, text = line.partition(": ")
    file = place.rpartition(":")[0]
    return file.rpartition("/kernels/")[2] or str(edited), text


def grade(found: FirstOperation, bug: SeededBug, edited: Path, uses: list[str]) -> str:
    """Return how an answer names the edit: its ``line``, a line that the value ``comes from``, its ``argument``.

    An argument is named beside the operation that uses it first. ``use`` is the stated line that uses the edit first.
    """
    lines, changed = named(found, edited), changed_lines(bug, edited)
    if lines and lines[0] in changed:
        return "line"
    if any(line in changed for line in lines[1:]):
        return "comes from"
    arguments = {name for note in found.notes for name in _ARGUMENT.findall(note)}
    if any(re.search(rf"\b{name}\b", text) for name in arguments for _, text in changed):
        return "argument"
    texts = [text for _, text in lines] or list(found.notes)
    return "use" if any(use in text for use in uses for text in texts) else "WRONG"


def compared(name: str, family: str) -> dict[str, Any]:
    """Return the row of one bug in one family."""
    from fuzz_attn.forensics.first_operation import first_operation  # noqa: PLC0415 - after the backend is prepared
    from fuzz_attn.mutation.edited_kernels import target_with  # noqa: PLC0415 - as above
    from fuzz_attn.properties.experiment import Experiment  # noqa: PLC0415 - as above
    from fuzz_attn.targets.loading import load_target  # noqa: PLC0415 - as above

    backend, bug = judge().backend, seeded_bug(TABLES, name)
    row: dict[str, Any] = {"bug": name, "family": family, "grade": "", "answer": ""}
    with tempfile.TemporaryDirectory() as scratch:
        target = target_with(bug, family, Path(scratch))
        try:
            order = failing(name, family, target, draws=False, saved=True)
            if order is None:
                return row
            experiment = Experiment(order.case, target, backend)
            found = first_operation(experiment, order.relation, load_target(family))
        except FuzzAttnError as error:
            return row | {"grade": "WRONG", "answer": f"{type(error).__name__}: {error}"}
        uses = tomllib.loads(USES.read_text(encoding="utf-8")).get(name, {}).get("uses", [])
        edited = next(Path(scratch).glob("*/kernels"))
        shown = (
            found.site.rpartition("/kernels/")[2],
            found.source,
            found.words,
            *found.own_lines,
            "H:",
            *found.healthy_lines,
            *found.notes,
        )
        return row | {"grade": grade(found, bug, edited, uses), "answer": " | ".join(shown)}


def main() -> None:
    """Compare the bugs and print the score."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--families", default="unified,paged,context,chunked")
    given = parser.parse_intermixed_args()
    truth = tomllib.loads(TRUTH.read_text(encoding="utf-8"))
    bugs = [bug for bug in load_seeded_bugs(TABLES) if truth[bug.name].get("in_scope", True)]
    families = given.families.split(",")
    chosen = [bug for bug in bugs if not given.names or bug.name in given.names]
    pairs = [(bug.name, family) for bug in chosen for family in bug.families if family in families]
    os.environ["OMP_NUM_THREADS"] = "1"
    grades: dict[str, int] = {}
    for row in in_processes(compared, pairs, given.workers):
        grades[row["grade"]] = grades.get(row["grade"], 0) + 1
        if given.all or row["grade"] == "WRONG":
            print(f"{row['grade'] or 'no case':10} {row['bug']} [{row['family']}] {row['answer']}", flush=True)
    cases = sum(grades.values()) - grades.get("", 0)
    right = cases - grades.get("WRONG", 0)
    words = ", ".join(f"{grades.get(kind, 0)} {kind}" for kind in ("line", "comes from", "argument", "use"))
    print(f"{right} of {cases} name the edit or its first use ({words}); {grades.get('', 0)} do not fail as moved")


if __name__ == "__main__":
    main()
