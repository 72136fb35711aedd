"""What an access means that a sanitizer reports: which row, slot or entry of which tensor."""

import pytest
import torch

from fuzz_attn.backends.backend import Observation
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import HeadLayout, PageLayout, Sequence
from fuzz_attn.case.recipes import QQBiasRecipe
from fuzz_attn.forensics.accesses import element_words, reason_of_access
from fuzz_attn.inputs.tensors import AttentionTensors, materialise

CASE = AttentionCase(
    (Sequence(2, 3), Sequence(1, 20)), heads=HeadLayout(2, 2, 16), pages=PageLayout(8), qq_bias=QQBiasRecipe()
)
HEAD, SLOT = 16, 2 * 16
TABLE = "'s row of the block table"


@pytest.fixture(scope="module")
def tensors() -> AttentionTensors:
    """Return the tensors of a case with two sequences and pages of 8."""
    return materialise(CASE)


def seen(tensor: torch.Tensor, offset: int) -> Observation:
    return Observation("out_of_bounds", "loads an element", "file.py:1", tensor.data_ptr(), offset)


@pytest.mark.parametrize(
    ("name", "offset", "words"),
    [
        (
            "block_table",
            2,
            "entry 2 of sequence 0's row of the block table, for keys 16 to 23; the sequence has 1 page",
        ),
        (
            "block_table",
            6,
            "entry 3 of sequence 1's row of the block table, for keys 24 to 31; the sequence has 3 pages",
        ),
        ("qq_bias", 3, "row 1, column 1 of the query-query bias, which has 2 x 2 elements"),
        ("query", 4 * HEAD + HEAD, "the row of query 1 of sequence 0, head 1, of q"),
        ("output", 3 * 4 * HEAD, "row 3 of the output, which belongs to no token"),
        ("value_cache", 8 * SLOT + 3 * SLOT + HEAD, "slot 3 of page 1, head 1, of the value cache"),
        ("seq_lens", -1, "element -1 of the sequence lengths, which has 2"),
    ],
)
def test_an_element_in_words(name: str, offset: int, words: str, tensors: AttentionTensors) -> None:
    assert element_words(seen(getattr(tensors, name), offset), tensors, CASE) == words


def test_a_slot_behind_the_last_page(tensors: AttentionTensors) -> None:
    pages = tensors.value_cache.shape[0]
    words = element_words(seen(tensors.value_cache, pages * 8 * SLOT), tensors, CASE)
    where = f"slot 0 of page {pages}, head 0, of the value cache, behind the last page"
    assert words == f"{where}, a number that dead entries of the block table hold"


def test_a_view_of_a_tensor_is_that_tensor(tensors: AttentionTensors) -> None:
    assert (
        element_words(seen(tensors.query[1], HEAD), tensors, CASE) == "the row of query 1 of sequence 0, head 1, of q"
    )


def test_memory_of_the_target_has_no_words(tensors: AttentionTensors) -> None:
    scratch = seen(torch.zeros(4), 4)
    assert element_words(scratch, tensors, CASE) == ""
    assert reason_of_access(scratch, tensors, CASE) == "address"
    assert reason_of_access(scratch._replace(kind="race"), tensors, CASE) == "race"
    assert reason_of_access(scratch._replace(kind="uninitialised"), tensors, CASE) == "unwritten"


@pytest.mark.parametrize(("name", "reason"), [("block_table", "page"), ("qq_bias", "bias"), ("query", "address")])
def test_the_reason_follows_from_the_tensor(name: str, reason: str, tensors: AttentionTensors) -> None:
    assert reason_of_access(seen(getattr(tensors, name), 0), tensors, CASE) == reason


def test_packed_keys_behind_the_last_token_are_behind_the_end() -> None:
    packed = AttentionCase((Sequence(2, 3),), family="context")
    tensors = materialise(packed)
    assert tensors.new_values is not None
    behind = seen(tensors.new_values, tensors.new_values.shape[0] * tensors.new_values.stride(0))
    assert reason_of_access(behind, tensors, CASE) == "tail"
    assert element_words(behind, tensors, packed) == "row 2 of the new values, which belongs to no token"
