"""Decode over slots: the lists of indices, rows of requests and splits that a binding passes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.binding.binding import signature_of
from fuzz_attn.binding.call import Call, call_of
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import HeadLayout, LaunchHints, PageLayout, Sequence
from fuzz_attn.case.recipes import PoisonRecipe, TablePoison
from fuzz_attn.engine.case_judge import CaseJudge
from fuzz_attn.engine.orders import Order
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.kernels.token_decode import token_decode
from fuzz_attn.targets.loading import load_target

TARGETS = Path(__file__).parents[1] / "sample_targets" / "token_decode_in_torch.py"
CASE = AttentionCase(
    sequences=(Sequence(1, 4), Sequence(1, -1), Sequence(1, 20), Sequence(1, 0)),
    family="token_decode",
    heads=HeadLayout(2, 2, 16, 8),
    pages=PageLayout(block_size=1, permuted=True, shared_prefix=2),
    softmax_scale=0.25,
)
IN_THREE = replace(CASE, launch=LaunchHints(path="3d", num_segments=3))


def call(case: AttentionCase) -> Call:
    binding = load_target("token_decode").match.binding
    return call_of(binding, signature_of(token_decode), materialise(case))


def test_slots_are_those_of_the_pages() -> None:
    found = call(CASE)
    table = found.problem.tensors.block_table
    assert found.arguments["kv_indptr"].tolist() == [0, 5, 5, 26, 27]
    expected = [*table[0, :5].tolist(), *table[2, :21].tolist(), *table[3, :1].tolist()]
    assert found.arguments["kv_indices"].tolist() == expected
    assert len(set(expected)) == len(expected) - 3  # two sequences share two slots, and the third one of these


@pytest.mark.parametrize(("kind", "entry"), [("zero", 0), ("negative", -1), ("huge", 2**31 - 1)])
def test_a_list_ends_in_the_poison_of_the_table(kind: TablePoison, entry: int) -> None:
    indices = call(replace(CASE, poison=PoisonRecipe(table=kind))).arguments["kv_indices"]
    around = indices.as_strided((29,), (1,), indices.storage_offset() - 1)
    assert around[[0, -1]].tolist() == [entry, entry]


@pytest.mark.parametrize(
    ("case", "splits"),
    [
        (CASE, None),
        (replace(CASE, launch=LaunchHints(path="2d")), [1, 1, 1, 1]),
        (IN_THREE, [3, 3, 3, 3]),
        (replace(IN_THREE, ragged_splits=True), [3, 2, 1, 3]),
    ],
)
def test_splits_and_scratch_go_together(case: AttentionCase, splits: list[int] | None) -> None:
    given = call(case).arguments
    names = ("num_kv_splits", "max_kv_splits", "att_out", "att_lse")
    if splits is None:
        assert [given[name] for name in names] == [None] * 4
        return
    assert (given["num_kv_splits"].tolist(), given["max_kv_splits"]) == (splits, max(splits))
    assert given["num_kv_splits"].dtype == torch.int32
    assert given["att_out"].shape == (4, 4, max(splits), 8)
    assert given["att_lse"].shape == (4, 4, max(splits))


def test_rows_of_requests_name_the_same_slots() -> None:
    case = replace(CASE, sequences=CASE.sequences[:1] + CASE.sequences[2:], heads=HeadLayout(2, 2, 16))
    right, wrong = (
        CaseJudge(load_target(f"{TARGETS}:{name}", family="token_decode"), SimulatorBackend())
        for name in ("by_request_rows", "wrong_by_request_rows")
    )
    for relation in (None, "page_permutation", "own_slots"):
        assert right.judge(Order(case, relation)).verdict.passed
    assert not wrong.judge(Order(case)).verdict.passed
