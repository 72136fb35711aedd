"""Snapshots: every byte of a tensor's memory is compared."""

from __future__ import annotations

import pytest

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.inputs.output_tensors import snapshot_of, still_holds
from fuzz_attn.inputs.storage import storage_bytes
from fuzz_attn.inputs.tensors import materialise


@pytest.mark.parametrize("place", [0, 4096, -1])
def test_snapshot_covers_each_byte_and_the_guards(place: int, case: AttentionCase) -> None:
    tensors = materialise(case)
    query, before = tensors.query, snapshot_of(tensors, tensors.query)
    assert still_holds(tensors, query, before)
    storage_bytes(query)[place] ^= 1
    assert not still_holds(tensors, query, before)
    storage_bytes(query)[place] ^= 1
    assert still_holds(tensors, query, before)
