"""The page docs/evidence.md, made from the tables in evidence.json, and fresh runs of these tables.

``make evidence`` writes the page. ``make evidence ARGS="--run NAME"`` first measures the runs of a table that have a
command for it, and ``--run all`` those of every table: the fresh rows replace the old ones, with the commit, date and
machine of the run. All other figures stay as they are, and are named. Runs that need a GPU wait for a machine with one.

A table in the file has a name, a title, a sentence that says what it shows (``shows``), columns, what it does not tell
(``gaps``), and runs. A run has the command that prints its rows, commit, date, machine, rows, and what it did not find
(``not_found``). ``fresh`` is a command that takes ``--json FILE`` and writes the rows there, as objects with the
columns, with an optional ``not_found``; it is empty where no script measures the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeAlias

from fuzz_attn.backends.gpus import visible_gpus
from fuzz_attn.engine.run_plan import available_cores

ROOT: Final = Path(__file__).parents[2]
DATA: Final = Path(__file__).with_name("evidence.json")
PAGE: Final = ROOT / "docs" / "evidence.md"
CHANGED: Final = "-changed"
"""Behind a commit whose files were changed when it was measured. A test refuses it on the committed page."""
STRINGS: Final = re.compile(r'\[\s+("(?:[^"\\]|\\.)*"(?:,\s+"(?:[^"\\]|\\.)*")*)\s+\]')
"""A list of strings only, as JSON in several lines."""
INTRODUCTION: Final = """\
# Evidence

How far the results can be trusted, and how fast they come. No tolerance is tuned. Each figure is of the commit and
machine below its table, not of today's code. Dates up to 2026-11-25 are those of the commits. `make evidence` writes
this page from `tests/evidence/evidence.json`.
"""

Table: TypeAlias = dict[str, Any]
Run: TypeAlias = dict[str, Any]


def load(path: Path = DATA) -> list[Table]:
    """Return the tables."""
    tables: list[Table] = json.loads(path.read_text(encoding="utf-8"))["tables"]
    return tables


def save(tables: Sequence[Table], path: Path = DATA) -> None:
    """Write the tables, each row in one line."""
    text = json.dumps({"tables": tables}, ensure_ascii=False, indent=1)
    path.write_text(STRINGS.sub(_in_one_line, text) + "\n", encoding="utf-8")


def _in_one_line(found: re.Match[str]) -> str:
    return "[" + re.sub(r'",\s+"', '", "', found[1]) + "]"


def page(tables: Sequence[Table]) -> str:
    """Return the page."""
    return "\n".join([INTRODUCTION, *map(_section, tables)])


def _section(table: Table) -> str:
    """Return the section of a table: what it shows, its rows, how they were measured, and what is missing."""
    runs = table["runs"]
    several = len(runs) > 1
    columns = ["run"] * several + table["columns"]
    rows = [[str(number)] * several + row for number, run in enumerate(runs, 1) for row in run["rows"]]
    origins = [[str(number)] * several + _origin(run) for number, run in enumerate(runs, 1)]
    heads = ["run"] * several + ["command", "commit", "date", "machine"]
    parts = [f"## {table['title']}", table["shows"], markdown(columns, rows), *_gaps(table), markdown(heads, origins)]
    return "\n\n".join(parts) + "\n"


def _origin(run: Run) -> list[str]:
    """Return command, commit, date and machine; a run that was made by hand has words in place of a command."""
    command = run["command"]
    return [command if command.startswith("by hand") else f"`{command}`", run["commit"], run["date"], run["machine"]]


def _gaps(table: Table) -> Iterator[str]:
    """Yield what the runs did not find, and what the table does not tell."""
    several = len(table["runs"]) > 1
    missed = [
        f"run {number}: " * several + run["not_found"]
        for number, run in enumerate(table["runs"], 1)
        if run["not_found"]
    ]
    if missed:
        yield f"Missing: {'; '.join(missed)}."
    if table["gaps"]:
        yield f"Gaps: {table['gaps']}"


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def measured(table: Table, run: Run) -> Run:
    """Return a run with the rows that its command gives now; raises SystemExit where the command fails."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        command = ["bash", "-c", f"{run['fresh']} --json {result}"]
        began, commit = machine(), commit_of()
        if subprocess.run(command, cwd=ROOT, env={**os.environ, "PATH": paths}, check=False).returncode:
            raise SystemExit(f"evidence: {table['name']}: the command failed: {run['fresh']}")
        found = json.loads(result.read_text(encoding="utf-8"))
    rows = [[str(row[column]) for column in table["columns"]] for row in found["rows"]]
    fresh = {"command": run["fresh"], "commit": commit, "date": time.strftime("%Y-%m-%d"), "machine": began}
    return run | fresh | {"rows": rows, "not_found": found.get("not_found", "")}


def commit_of(root: Path = ROOT) -> str:
    """Return the short name of the commit, with CHANGED where files other than these figures differ from it."""
    own = [f":!{path.relative_to(ROOT)}" for path in (DATA, PAGE)]
    changed = _git(root, "status", "--porcelain", "--", ".", *own)
    return _git(root, "rev-parse", "--short=7", "HEAD") + CHANGED * bool(changed)


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def machine() -> str:
    """Return what the figures were measured on, in words."""
    gpus = f" and {len(found)} GPU" if (found := visible_gpus(os.environ)) else ""
    return f"{available_cores()} cores{gpus}, load average {os.getloadavg()[0]:.0f}, Triton {version('triton')}"


def chosen(tables: Sequence[Table], names: Sequence[str]) -> list[tuple[Table, int]]:
    """Return the runs to measure, as tables with a number; those that cannot be measured here are named."""
    known = {table["name"] for table in tables}
    if unknown := set(names) - known - {"all"}:
        raise SystemExit(f"evidence: no table {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    runs: list[tuple[Table, int]] = []
    for table in (table for table in tables if "all" in names or table["name"] in names):
        for number, run in enumerate(table["runs"]):
            if reason := _obstacle(run):
                print(f"{table['name']}, run {number + 1} stays as it is: {reason}", file=sys.stderr)
            else:
                runs.append((table, number))
    return runs


def _obstacle(run: Run) -> str:
    """Return why a run cannot be measured here; empty where it can."""
    if not run["fresh"]:
        return "no script measures it"
    return "it needs a GPU" if run.get("needs_gpu") and not visible_gpus(os.environ) else ""


def main(arguments: Sequence[str]) -> None:
    """Measure the chosen tables, and write the file after each run and the page at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs="+", default=(), metavar="NAME", help="tables to measure again, or all")
    tables = load()
    for table, number in chosen(tables, parser.parse_args(arguments).run):
        print(f"{table['name']}, run {number + 1}: {table['runs'][number]['fresh']}", file=sys.stderr, flush=True)
        table["runs"][number] = measured(table, table["runs"][number])
        save(tables)
    PAGE.write_text(page(tables), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
