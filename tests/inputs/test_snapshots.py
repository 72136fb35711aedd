"""Snapshots and the journal."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.engine.journal import Journal
from fuzz_attn.inputs.snapshots import snapshot_of, still_holds
from fuzz_attn.inputs.tensors import materialise, storage_bytes


@pytest.mark.parametrize("place", [0, 4096, -1])
def test_snapshot_covers_each_byte_and_the_guards(place: int, case: AttentionCase) -> None:
    query = materialise(case).query
    before = snapshot_of(query)
    assert still_holds(query, before)
    storage_bytes(query)[place] ^= 1
    assert not still_holds(query, before)
    storage_bytes(query)[place] ^= 1
    assert still_holds(query, before)


def test_a_short_entry_of_the_journal_hides_a_long_one(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json")
    for entry in ("long" * 50, "short", "longer"):
        journal.write(msgspec.json.encode({"entry": entry}))
        assert msgspec.json.decode(journal.path.read_bytes()) == {"entry": entry}
    journal.close(keep=False)
    assert not journal.path.exists()
