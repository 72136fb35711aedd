"""Pages: a Markdown page for each confirmed row, to be finished by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fuzz_attn.case.description import describe
from fuzz_attn.errors import OutputError
from fuzz_attn.ledger.rows import Row, Table
from fuzz_attn.ledger.summaries import origin, word_of


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
