"""Padded stores: what counts as the padding of a head, and what does not."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fuzz_attn.backends.backend import Observation
from fuzz_attn.forensics.padded_stores import padded_store
from fuzz_attn.inputs.output_tensors import OutputTensor
from fuzz_attn.inputs.storage import storage_bytes
from fuzz_attn.oracle.reference import Expected
from fuzz_attn.properties.experiment import Launch

SIZE, GAP = 24, 8


def launched(*, column: int | None = None, stored: int | None = None) -> Any:
    """Return an experiment whose out is right, with one element behind a head written, or seen to be stored to."""
    memory = torch.full((2, SIZE + GAP), 7.0)
    out = memory[:, :SIZE].view(2, 1, SIZE)
    before = storage_bytes(out).clone()
    out[...] = 1.0
    if column is not None:
        memory[0, column] = 0.0
    tensors: Any = SimpleNamespace(
        outputs={"out": OutputTensor(out, 0)},
        output_words=lambda name: "the output",
        query_lens=(2,),
        context_lens=(0,),
    )
    seen = []
    if stored is not None:
        message = "out-of-bounds store in kernel at kernel.py:3: stores"
        seen.append(Observation("out_of_bounds", message, "folder/kernel.py:3", out.data_ptr(), stored))
    launch = Launch(tensors, {"out": before}, observations=tuple(seen))
    known = Expected(torch.ones(2, 1, SIZE), torch.full((2, 1, SIZE), 1e-6), torch.ones(1, 1, 1, dtype=torch.bool))
    return SimpleNamespace(first=launch, reference={"out": known})


def test_a_store_behind_a_head_is_named_with_its_line() -> None:
    found = padded_store(launched(stored=SIZE + GAP + SIZE))
    words = "columns of the output from 24 on are written: the store at kernel.py:3 does not leave out the padding"
    assert found is not None
    assert found.words.startswith(words)


def test_written_padding_is_named_without_a_line() -> None:
    found = padded_store(launched(column=SIZE))
    assert found is not None
    assert "a store does not leave out the padding" in found.words


@pytest.mark.parametrize("place", [0, SIZE - 1, 2 * (SIZE + GAP), -1])
def test_a_store_elsewhere_is_no_padding(place: int) -> None:
    assert padded_store(launched(stored=place)) is None


def test_a_right_launch_stores_no_padding() -> None:
    assert padded_store(launched()) is None
