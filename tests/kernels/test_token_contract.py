"""The launcher of the decode over indexed slots: what it refuses, and forms of a call that no case has."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.kernels.common.contract import ContractError
from fuzz_attn.kernels.token_decode import token_decode

LENGTHS = (5, 0, 20)
SLOTS = 64


def call(**changes: Any) -> dict[str, Any]:
    order = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(1))
    return {
        "q": torch.ones(3, 4, 24),
        "k_buffer": torch.ones(SLOTS, 2, 24),
        "v_buffer": torch.ones(SLOTS, 2, 16),
        "out": torch.empty(3, 4, 16),
        "kv_indptr": torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)], dtype=torch.int32),
        "kv_indices": order[: sum(LENGTHS)].int(),
    } | changes


def scratch(splits: int, rows: int = 3) -> dict[str, Any]:
    return {
        "att_out": torch.full((rows, 4, splits, 16), torch.nan),
        "att_lse": torch.full((rows, 4, splits), torch.nan),
        "max_kv_splits": splits,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": torch.ones(3, 4, 257)}, "head_size=257 must be at most 256"),
        ({"q": torch.ones(4, 24)}, r"q has shape \(4, 24\), must be \(any, any, any\)"),
        ({"q": torch.ones(3, 4, 24).double()}, "q has dtype float64"),
        ({"q": torch.ones(2, 4, 24)}, r"q.shape\[0\]=2 must be at least 3"),
        ({"q": torch.ones(3, 3, 24)}, "num_query_heads=3 must be a multiple of num_kv_heads=2"),
        ({"k_buffer": torch.ones(SLOTS, 2, 16)}, r"k_buffer has shape \(64, 2, 16\), must be \(any, any, 24\)"),
        ({"v_buffer": torch.ones(SLOTS, 1, 16)}, r"v_buffer has shape \(64, 1, 16\), must be \(64, 2, any\)"),
        ({"v_buffer": torch.ones(SLOTS, 2, 16).half()}, "v_buffer has dtype float16, must be one of float32"),
        ({"v_buffer": torch.ones(SLOTS, 2, 257)}, "head_size_v=257 must be at most 256"),
        ({"v_buffer": torch.ones(SLOTS, 16, 2).mT}, "v_buffer has stride 2 in its last dimension, must be 1"),
        ({"out": torch.empty(3, 4, 24)}, r"out has shape \(3, 4, 24\), must be \(any, 4, 16\)"),
        ({"out": torch.empty(2, 4, 16)}, r"out.shape\[0\]=2 must be at least 3"),
        ({"kv_indptr": torch.zeros(4)}, "kv_indptr has dtype float32, must be one of int32, int64"),
        ({"kv_indptr": torch.zeros(0, dtype=torch.int32)}, r"kv_indptr.shape\[0\]=0 must be at least 1"),
        ({"kv_indices": torch.zeros(2, 9, dtype=torch.int32)}, r"kv_indices has shape \(2, 9\), must be \(any\)"),
        ({"kv_indices": torch.zeros(50, dtype=torch.int32)[::2]}, "kv_indices has stride 2 in its last dimension"),
        (scratch(65), "max_kv_splits=65 must be at most 64"),
        (scratch(0), "max_kv_splits=0 must be at least 1"),
        (scratch(4) | {"max_kv_splits": 3}, r"att_out has shape \(3, 4, 4, 16\), must be \(any, 4, 3, 16\)"),
        (scratch(4, rows=2), r"att_out.shape\[0\]=2 must be at least 3"),
        (scratch(4) | {"att_out": None}, "att_out and att_lse must both be given or both be None"),
        (scratch(4) | {"max_kv_splits": None}, "max_kv_splits must be given with num_kv_splits, att_out or att_lse"),
        (scratch(4) | {"att_lse": torch.empty(3, 4, 4).half()}, "att_lse has dtype float16, must be one of float32"),
        (scratch(4) | {"att_lse": torch.empty(3, 4, 5)[..., :4]}, r"att_lse has strides \(20, 5, 1\), must be contig"),
        ({"num_kv_splits": torch.ones(3, dtype=torch.int32)}, "max_kv_splits must be given with num_kv_splits"),
        (scratch(4) | {"num_kv_splits": torch.ones(3)}, "num_kv_splits has dtype float32, must be one of int32"),
        (
            scratch(4) | {"num_kv_splits": torch.ones(2, dtype=torch.int32)},
            r"num_kv_splits.shape\[0\]=2 must be at least 3",
        ),
        ({"sm_scale": float("inf")}, "sm_scale=inf must be a finite number"),
        ({"logit_cap": -1.0}, "logit_cap=-1.0 must be at least 0"),
        ({"sliding_window": -2}, "sliding_window=-2 must be at least -1"),
        ({"sinks": torch.ones(3)}, r"sinks has shape \(3,\), must be \(4\)"),
        ({"k_scale": torch.ones(2)}, r"k_scale has shape \(2,\), must hold one element"),
        ({"output_scale": torch.ones(1)}, "output_scale must be None for out of dtype float32"),
        ({"lse": torch.empty(3, 4).half()}, "lse has dtype float16, must be one of float32"),
        ({"lse": torch.empty(3, 3)}, r"lse has shape \(3, 3\), must be \(any, 4\)"),
        ({"tile_size": 24}, "tile_size=24 must be a power of two"),
    ],
)
def test_a_call_outside_of_the_contract_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        token_decode(**call(**changes))


def numbers(**changes: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return output and log-sum-exp of random numbers."""
    random = torch.Generator().manual_seed(2)
    drawn = {
        name: torch.randn(each.shape, generator=random) for name, each in call().items() if each.is_floating_point()
    }
    lse = torch.empty(3, 4)
    given = call(**drawn) | {"lse": lse} | changes
    with SimulatorBackend().running() as watch:
        token_decode(**given)
    assert not watch.observations
    return given["out"], lse


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    "splits",
    [
        {},
        {"max_kv_splits": 1},
        {"max_kv_splits": 8},
        scratch(8, rows=4),
        {"max_kv_splits": 8, "num_kv_splits": torch.tensor([1, 8, 2, 99])},
        scratch(2) | {"num_kv_splits": torch.tensor([2, 1, 2], dtype=torch.int32)},
    ],
)
def test_types_of_indices_and_splits_change_nothing(dtype: torch.dtype, splits: dict[str, Any]) -> None:
    indices = {name: call()[name].to(dtype) for name in ("kv_indptr", "kv_indices")}
    expected, actual = numbers(max_kv_splits=1, tile_size=16), numbers(**indices, **splits, tile_size=16)
    for one, other in zip(expected, actual, strict=True):
        torch.testing.assert_close(one, other)
    assert actual[0][1].eq(0).all()
    assert actual[1][1].isneginf().all()


def test_without_sequences_nothing_is_written() -> None:
    out = torch.full((3, 4, 16), 7.0)
    token_decode(**call(out=out, kv_indptr=torch.zeros(1, dtype=torch.int32)))
    assert out.eq(7.0).all()
