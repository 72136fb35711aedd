"""Rows: the table of the ledger and its cases."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from fuzz_attn import counterexamples
from fuzz_attn.case.families import Family
from fuzz_attn.case.plain import Count, Plain
from fuzz_attn.counterexamples import Counterexample
from fuzz_attn.errors import CounterexampleError, LedgerError
from fuzz_attn.foreign_files import content_of
from fuzz_attn.forensics.explanation import Reason

OWN: Final = Path(__file__).parent
"""The folder of the ledger of this package."""
TABLE: Final = "ledger.toml"

State: TypeAlias = Literal["found", "found again", "unclear", "not a bug"]
Outcome: TypeAlias = Literal["FAILED", "passes", "REFUSED", "absent"]
CONFIRMED: Final[tuple[State, ...]] = ("found", "found again")
"""The states of a confirmed defect."""


class Launcher(Plain, frozen=True):
    """A launcher of a published package; ``modules`` has the module that defines it in each pinned version."""

    package: str
    function: str
    family: Family
    modules: dict[str, str]

    def spec(self, version: str) -> str:
        """Return the launcher in one version, as ``--target`` takes it."""
        return f"{self.package}=={version}:{self.modules[version]}:{self.function}"


class Words(Plain, frozen=True):
    """The reason that `explain` gives for a row, and a part of its words that names the key, row, head or factor."""

    reason: Reason
    part: str


class Row(Plain, frozen=True):
    """One entry of the ledger.

    - ``launcher`` is the name of a launcher of the table.
    - ``state``: ``found``; ``found again`` where ``reference`` names the issue or pull request that knows the defect;
      ``unclear`` where the contract does not say; ``not a bug``.
    - ``kernel`` and ``line`` are the place in the newest version that fails.
    - ``cases`` is the number of cases of a run, on the version ``found_in``, until it showed the defect; 0 if the case
      was written by hand.
    - ``why`` says why the contract does not exclude the case, or why the row is not a defect.
    - ``versions`` has the outcome of the case in each pinned version.
    - ``explained`` is what `explain` says of the case on the newest version that fails, as far as it fits the cause.
    """

    launcher: str
    state: State
    title: str
    kernel: str
    line: str
    cause: str
    why: str
    versions: dict[str, Outcome]
    reference: str = ""
    cases: Count = 0
    found_in: str = ""
    explained: Words | None = None
    name: str = ""

    @property
    def confirmed(self) -> bool:
        """Whether the row is a defect of the kernel."""
        return self.state in CONFIRMED

    @property
    def newest_failed(self) -> str:
        """The newest pinned version that fails as the row says; empty if none does."""
        return next((version for version in reversed(self.versions) if self.versions[version] == "FAILED"), "")


class Table(Plain, frozen=True):
    """The ledger: its launchers and its rows by name, and the folder that they come from."""

    launchers: dict[str, Launcher]
    rows: dict[str, Row]
    folder: str = ""

    def launcher(self, row: Row) -> Launcher:
        """Return the launcher of a row."""
        return self.launchers[row.launcher]

    def case(self, row: Row) -> Counterexample:
        """Return the case of a row. Raises :class:`LedgerError` where it is of another family than the launcher."""
        path = Path(self.folder) / "cases" / f"{row.name}.json"
        try:
            found = counterexamples.load(path)
        except CounterexampleError as error:
            raise LedgerError(f"row {row.name!r}: {error}") from error
        family = self.launcher(row).family
        if found.family != family or found.case.family != family:
            raise LedgerError(f"row {row.name!r}: the case has family={found.case.family!r}, must have {family!r}")
        return found

    def all_versions(self) -> tuple[str, ...]:
        """Return every pinned version of any launcher, in the order of the table."""
        return tuple(dict.fromkeys(version for each in self.launchers.values() for version in each.modules))


def load_table(folder: Path = OWN) -> Table:
    """Return the ledger of a folder.

    Raises :class:`LedgerError`, in one line, where the table cannot be read, a row names a launcher that the table
    lacks, has not one outcome for each pinned version of it, or contradicts its state.
    """
    path = folder / TABLE
    try:
        table = msgspec.toml.decode(content_of(path), type=Table)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LedgerError(f"{path}: {error}") from error
    rows = {name: msgspec.structs.replace(row, name=name) for name, row in table.rows.items()}
    for row in rows.values():
        _check(row, table)
    return msgspec.structs.replace(table, rows=rows, folder=str(folder))


def _check(row: Row, table: Table) -> None:
    """Raise :class:`LedgerError` for a row that contradicts itself or the launchers."""
    if row.launcher not in table.launchers:
        raise LedgerError(f"row {row.name!r}: launcher={row.launcher!r} must be one of {', '.join(table.launchers)}")
    pinned = table.launcher(row).modules
    if set(row.versions) != set(pinned):
        raise LedgerError(f"row {row.name!r}: versions={sorted(row.versions)} must be {sorted(pinned)}")
    if (row.state == "found again") != (bool(row.reference) and row.confirmed):
        raise LedgerError(f"row {row.name!r}: state={row.state!r} contradicts reference={row.reference!r}")
    if row.confirmed and "FAILED" not in row.versions.values():
        raise LedgerError(f"row {row.name!r}: state={row.state!r} needs a version that FAILED")
    if bool(row.cases) != bool(row.found_in):
        raise LedgerError(f"row {row.name!r}: cases={row.cases} needs found_in, and found_in needs cases")


def chosen(table: Table, names: tuple[str, ...]) -> Table:
    """Return the ledger with the named rows, with all of them without names; raises :class:`LedgerError` for others."""
    unknown = [name for name in names if name not in table.rows]
    if unknown:
        raise LedgerError(f"row {unknown[0]!r} must be one of {', '.join(table.rows)}")
    rows = {name: row for name, row in table.rows.items() if name in names or not names}
    return msgspec.structs.replace(table, rows=rows)
