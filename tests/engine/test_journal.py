"""The journal: its file holds exactly the latest entry."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fuzz_attn.engine.run_folder import PAGE, Journal
from fuzz_attn.errors import OutputError


@pytest.mark.parametrize("lengths", [(200, 5, 6), (PAGE - 14, PAGE, 7, 8), (3, 3 * PAGE, 4, 5, 2 * PAGE)])
def test_each_entry_replaces_the_one_before(lengths: tuple[int, ...], tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json")
    for number, length in enumerate(lengths):
        entry = str(number) * length
        journal.write(msgspec.json.encode({"entry": entry}))
        assert msgspec.json.decode(journal.path.read_bytes()) == {"entry": entry}
    journal.close(keep=False)
    assert not list(tmp_path.iterdir())


def test_short_entries_are_written_in_place(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json")
    journal.write(b"{}")
    first = journal.path.stat().st_ino
    for length in (PAGE, 1, PAGE // 2):
        journal.write(b"1" * length)
        assert journal.path.stat().st_ino == first
    journal.close(keep=True)
    assert journal.path.read_bytes().strip() == b"1" * (PAGE // 2)


def test_a_journal_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "gone" / "journal.json")
    journal.path.parent.rmdir()
    with pytest.raises(OutputError, match=r"gone/journal\.json: cannot be written: No such file or directory$"):
        journal.write(b"{}")
    journal.close(keep=False)
