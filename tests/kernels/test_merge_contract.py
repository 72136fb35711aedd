"""The launcher of merging refuses what its kernel cannot do, and runs on hand-made calls."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fuzz_attn.kernels.common.contract import ContractError
from fuzz_attn.kernels.merge_states import merge_states


def call(**changes: Any) -> dict[str, Any]:
    return {
        "partial_outputs": torch.ones(2, 3, 4, 8),
        "partial_lses": torch.zeros(2, 3, 4),
        "out": torch.empty(3, 4, 8),
        "lse": torch.empty(3, 4),
    } | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partial_outputs": torch.ones(0, 3, 4, 8)}, "num_states=0 must be at least 1"),
        ({"partial_outputs": torch.ones(2, 3, 4, 257)}, "head_size=257 must be at most 256"),
        ({"partial_outputs": torch.ones(3, 4, 8)}, r"partial_outputs has shape \(3, 4, 8\), must be \(any, any"),
        ({"partial_outputs": torch.ones(2, 3, 4, 8).double()}, "partial_outputs has dtype float64"),
        ({"partial_lses": torch.zeros(2, 3, 5)}, r"partial_lses has shape \(2, 3, 5\), must be \(2, 3, 4\)"),
        ({"partial_lses": torch.zeros(2, 3, 4).half()}, "partial_lses has dtype float16"),
        ({"out": torch.empty(3, 4, 8).half()}, "out has dtype float16, must be one of float32"),
        ({"out": torch.empty(2, 4, 8)}, "out has 2 rows, must have at least num_tokens=3"),
        ({"lse": torch.empty(2, 4)}, "lse has 2 rows, must have at least num_tokens=3"),
        ({"out": torch.empty(3, 8, 4).mT}, "out has stride 4 in its last dimension, must be 1"),
        ({"lse": None}, "lse must be a torch.Tensor"),
    ],
)
def test_a_call_outside_of_the_contract_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        merge_states(**call(**changes))


def test_two_states_are_weighed_by_their_sums() -> None:
    states = torch.stack([torch.zeros(3, 4, 8), torch.full((3, 4, 8), 4.0)])
    lses = torch.tensor([0.0, math.log(3.0)])[:, None, None].expand(2, 3, 4)
    given = call(partial_outputs=states, partial_lses=lses)
    merge_states(**given)
    assert torch.allclose(given["out"], torch.tensor(3.0))
    assert torch.allclose(given["lse"], torch.tensor(math.log(4.0)))


def test_no_token_launches_nothing() -> None:
    merge_states(torch.ones(2, 0, 4, 8), torch.zeros(2, 0, 4), torch.empty(0, 4, 8), torch.empty(0, 4))
