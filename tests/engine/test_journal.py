"""The journal: its file holds exactly the latest entry."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fuzz_attn.engine.journal import Journal


def test_short_entry_replaces_a_long_one(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json")
    for entry in ("long" * 50, "short", "longer"):
        journal.write(msgspec.json.encode({"entry": entry}))
        assert msgspec.json.decode(journal.path.read_bytes()) == {"entry": entry}
    journal.close(keep=False)
    assert not journal.path.exists()
