"""Summaries: the ledger and its version matrix as text, Markdown and JSON, and a page for each confirmed defect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from rich.console import Group
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from fuzz_attn.case.description import describe
from fuzz_attn.errors import OutputError
from fuzz_attn.ledger.defects import Row, Table
from fuzz_attn.report.printing import count

if TYPE_CHECKING:
    from fuzz_attn.ledger.replaying import Cell

SCHEMA: Final = 1
"""The version of the JSON document."""
FINDINGS: Final = "reports/findings"
_HEADINGS: Final = ("launcher", "defects", "known upstream", "fixed in the newest", "unclear", "not a bug")
_COLOURS: Final = {"FAILED": "bold red", "FIXED": "bold green", "passes": "green", "OTHER": "bold yellow"}


def word_of(row: Row, version: str) -> str:
    """Return the stated outcome on a version: ``FIXED`` where the case passes and an older version failed."""
    older = list(row.versions)[: list(row.versions).index(version)]
    fixed = row.versions[version] == "passes" and any(row.versions[each] == "FAILED" for each in older)
    return "FIXED" if fixed else row.versions[version]


def origin(row: Row) -> str:
    """Return how the row was found."""
    return f"after {count(row.cases, 'case')} on {row.found_in}" if row.cases else "case written by hand"


def overview(table: Table) -> Group:
    """Return what ``fuzz-attn ledger`` prints: the stated outcomes, and below them each row in words."""
    words = {(row.name, version): word_of(row, version) for row in table.rows.values() for version in row.versions}
    return Group(_grid(table, words, "Stated outcomes"), *(_in_words(row) for row in table.rows.values()))


def _in_words(row: Row) -> Group:
    state = f"{row.state}, {row.reference}" if row.reference else row.state
    lines = (row.title, f"{row.line}, {row.kernel}; {origin(row)}")
    return Group("", f"{row.name}: {state}", *(Padding(Text(line), (0, 0, 0, 4)) for line in lines))


def matrix(table: Table, cells: Sequence[Cell]) -> Grid:
    """Return the outcomes of a replay, one row for each row of the ledger; ``!`` marks those not stated in it."""
    return _grid(table, {(cell.row.name, cell.version): _word(cell) for cell in cells}, "Outcomes")


def agreement(cells: Sequence[Cell]) -> str:
    """Return how many failures are explained in the words that the ledger states."""
    judged = [cell for cell in cells if cell.explanation is not None and cell.row.explained is not None]
    agreed = sum(not cell.misexplained for cell in judged)
    return f"{agreed} of {count(len(judged), 'failure')} explained as the ledger states."


def _grid(table: Table, words: dict[tuple[str, str], str], title: str) -> Grid:
    """Return a grid with a column for each version, where a launcher may lack some."""
    versions = table.all_versions()
    grid = Grid(box=None, padding=(0, 1), title=title, title_justify="left")
    for heading in ("row", *versions):
        grid.add_column(heading, no_wrap=True)
    for name in table.rows:
        grid.add_row(name, *(_coloured(words.get((name, version), "-")) for version in versions))
    return grid


def _word(cell: Cell) -> str:
    return word_of(cell.row, cell.version) if cell.outcome == cell.expected else f"{cell.word} !"


def _coloured(word: str) -> Text:
    return Text(word, _COLOURS.get(word, "bold yellow" if word.endswith("!") else ""))


def counts_in_markdown(table: Table) -> str:
    """Return the first table of the README: for each launcher how many rows of each kind, and the sum."""
    lines = [_markdown(_HEADINGS), _markdown(["---", *["---:"] * (len(_HEADINGS) - 1)])]
    sums = [0] * (len(_HEADINGS) - 1)
    for name, launcher in table.launchers.items():
        numbers = _numbers([row for row in table.rows.values() if row.launcher == name])
        sums = [total + number for total, number in zip(sums, numbers, strict=True)]
        lines.append(_markdown([f"{launcher.package} `{launcher.function}`", *map(str, numbers)]))
    return "\n".join([*lines, _markdown(["all", *map(str, sums)])]) + "\n"


def _numbers(rows: list[Row]) -> list[int]:
    """Return the numbers of one launcher, in the order of the headings."""
    confirmed = [row for row in rows if row.confirmed]
    return [
        len(confirmed),
        sum(row.state == "found again" for row in confirmed),
        sum(word_of(row, list(row.versions)[-1]) == "FIXED" for row in confirmed),
        sum(row.state == "unclear" for row in rows),
        sum(row.state == "not a bug" for row in rows),
    ]


def open_bugs_in_markdown(table: Table, pages: str) -> str:
    """Return the table of docs/index.md: the confirmed defects of the newest versions, with links below ``pages``."""
    confirmed = [row for row in table.rows.values() if row.confirmed]
    newest = [row for row in confirmed if word_of(row, list(row.versions)[-1]) == "FAILED"]
    versions = " and ".join(sorted({f"{table.launcher(row).package} {row.newest_failed}" for row in newest}))
    lines = [f"Of {len(confirmed)} confirmed bugs in published kernels, {versions} has {len(newest)}:", ""]
    lines += [_markdown(("bug", "launcher", "known upstream")), _markdown(["---"] * 3)]
    for row in newest:
        bug = f"[{row.title}]({pages}/{page_name(table, row)})"
        lines.append(_markdown((bug, f"`{table.launcher(row).function}`", row.reference or "no")))
    return "\n".join(lines) + "\n"


def words_in_markdown(table: Table) -> str:
    """Return the table of docs/explain.md: for each row what `explain` must say."""
    lines = [_markdown(("row", "reason", "words")), _markdown(["---"] * 3)]
    stated = [(name, row.explained) for name, row in table.rows.items() if row.explained is not None]
    lines += [_markdown((name, words.reason, words.part)) for name, words in stated]
    return "\n".join(lines) + "\n"


def _markdown(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def document(table: Table, cells: Sequence[Cell] = ()) -> str:
    """Return the ledger as JSON; ``outcomes`` are those of a replay."""
    rows = {name: {**msgspec.to_builtins(row), "spec": _specs(table, row)} for name, row in table.rows.items()}
    outcomes = [
        {
            "row": cell.row.name,
            "version": cell.version,
            "outcome": cell.word,
            "expected": cell.expected,
            "surprising": cell.surprising,
            "message": cell.message,
            "explanation": "" if cell.explanation is None else cell.explanation.sentence,
        }
        for cell in cells
    ]
    content = {"schema": SCHEMA, "rows": rows, "outcomes": outcomes}
    return msgspec.json.format(msgspec.json.encode(content), indent=1).decode()


def _specs(table: Table, row: Row) -> dict[str, str]:
    launcher = table.launcher(row)
    return {version: launcher.spec(version) for version in launcher.modules}


def write_pages(table: Table, folder: Path) -> Iterator[Path]:
    """Write the pages that a folder lacks and yield their paths; a page that exists was finished by hand and stays."""
    for row in table.rows.values():
        path = folder / page_name(table, row)
        if not row.confirmed or path.exists():
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(page(table, row), encoding="utf-8")
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {error.strerror}") from error
        yield path


def page_name(table: Table, row: Row) -> str:
    """Return the name of the file of a row's page."""
    return f"{table.launcher(row).package}-{row.name}.md"


def page(table: Table, row: Row) -> str:
    """Return the page of a row."""
    return (
        "\n\n".join(
            (
                f"# {row.title}",
                f"Kernel `{row.kernel}`, line `{row.line}`. State: {row.state}, {origin(row)}."
                + f" Upstream: {row.reference}." * bool(row.reference),
                row.cause,
                "## The smallest case",
                *_case(table, row),
                "## Why the contract does not exclude it",
                row.why,
                "## Versions",
                "\n".join(("| version | outcome |", "| --- | --- |", *_versions(row))),
                "## See it without fuzz_attn",
                _reproduction(table, row),
            )
        )
        + "\n"
    )


def _case(table: Table, row: Row) -> Iterator[str]:
    found = table.case(row)
    yield "\n".join(f"- {what}: {words}" for what, words in describe(found.case))
    yield f"Found there: {found.verdict.what}: {found.verdict.message}."


def _versions(row: Row) -> Iterator[str]:
    yield from (f"| {version} | {word_of(row, version)} |" for version in row.versions)


def _reproduction(table: Table, row: Row) -> str:
    launcher = table.launcher(row)
    version = row.newest_failed
    case = f"fuzz_attn/ledger/cases/{row.name}.json"
    return (
        f"    fuzz-attn export {case} --script repro.py --trust\n"
        f"    pip install {launcher.package}=={version}\n"
        "    python repro.py --device cuda    # on a CPU: TRITON_INTERPRET=1 python repro.py"
    )
