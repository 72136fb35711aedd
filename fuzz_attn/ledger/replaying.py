"""Replaying: each row's case on every pinned version, and whether the outcome is the one that the table states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain, missing_feature
from fuzz_attn.engine.failures.saved import NOT_PROMISED
from fuzz_attn.engine.failures.triage import class_of
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.orders import Answer, Order, Setup
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.forensics.explanation import Explanation
from fuzz_attn.ledger.defects import Launcher, Outcome, Row, Table
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.targets.wheel import Wheel


@dataclass(frozen=True)
class Cell:
    """The outcome of one row on one version.

    Without an ``outcome`` the case fails in another way than the saved one, no backend can run it, or the version is
    not ``available``; ``message`` says which. The newest version that fails as stated has an ``explanation``.
    """

    row: Row
    version: str
    outcome: Outcome | None
    message: str = ""
    available: bool = True
    explanation: Explanation | None = None

    @property
    def expected(self) -> Outcome:
        """The outcome that the table states."""
        return self.row.versions[self.version]

    @property
    def surprising(self) -> bool:
        """Whether the version was judged, with another outcome than the table states."""
        return self.available and self.outcome != self.expected

    @property
    def misexplained(self) -> bool:
        """Whether the failure is explained in other words than the row states."""
        stated, found = self.row.explained, self.explanation
        if stated is None or found is None:
            return False
        return found.reason != stated.reason or stated.part not in found.words

    @property
    def word(self) -> str:
        """The outcome in one word."""
        return self.outcome or ("OTHER" if self.available else "missing")


def replay(table: Table, backend: str = "auto", memory: int = 0) -> Iterator[Cell]:
    """Yield the outcome of every row on every pinned version of its launcher; a version has one worker process."""
    for name, launcher in table.launchers.items():
        rows = tuple(row for row in table.rows.values() if row.launcher == name)
        for version in launcher.modules if rows else ():
            setup = Setup(launcher.spec(version), launcher.family, backend, memory=memory)
            try:
                yield from _on_version(table, launcher, version, rows, setup)
            except FuzzAttnError as error:
                yield from (Cell(row, version, None, str(error), available=False) for row in rows)


def _on_version(table: Table, launcher: Launcher, version: str, rows: tuple[Row, ...], setup: Setup) -> Iterator[Cell]:
    """Yield the outcome of some rows, ``absent`` where the version lacks the launcher or a parameter of the case.

    Raises :class:`FuzzAttnError` where the version cannot be downloaded.
    """
    if f"{launcher.modules[version].replace('.', '/')}.py" not in Wheel(launcher.package, version).names:
        yield from (Cell(row, version, "absent") for row in rows)
        return
    cells = []
    with IsolatedWorker(setup) as worker:
        for row in rows:
            found = table.case(row)
            lacking = _lacking(found.case, worker.ready.domain)
            if lacking:
                cells.append(Cell(row, version, "absent", NOT_PROMISED.format(lacking)))
                continue
            worker.renew()
            answer = worker.judge(Order(found.case, found.relation))
            cell = _cell(row, version, found.verdict, answer)
            if cell.outcome == "FAILED" and version == row.newest_failed:
                again = worker.judge(Order(found.case, found.relation, forensics=True))
                cell = replace(cell, explanation=again.explanation)
            cells.append(cell)
    yield from cells


def _lacking(case: AttentionCase, domain: Domain) -> str:
    """Return the first feature or optional argument of a case that a version lacks, in words."""
    known = dict(domain.arguments)
    unknown = (f"the argument {name}" for name, _ in case.launch.arguments if name not in known)
    return missing_feature(case, domain) or next(unknown, "")


def _cell(row: Row, version: str, saved: Verdict, answer: Answer) -> Cell:
    if answer.refusal is not None:
        return Cell(row, version, "REFUSED", answer.refusal.message)
    if not answer.judged:
        return Cell(row, version, None, f"no backend can run it: {answer.unsupported}")
    failed = [verdict for verdict in (answer.verdict, *answer.others) if not verdict.passed]
    alike = next((verdict for verdict in failed if _sort(verdict) == _sort(saved)), None)
    if alike is not None:
        return Cell(row, version, "FAILED", alike.message)
    if failed:
        return Cell(row, version, None, f"fails in another way: {failed[0].message}")
    return Cell(row, version, "passes")


def _sort(verdict: Verdict) -> str:
    """Return what went wrong, without the line, which differs between versions."""
    return class_of(msgspec.structs.replace(verdict, site=""))
