"""The launcher of the decode on a latent cache refuses what its kernels cannot do, and fits into shared memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import HeadLayout, LaunchHints, PageLayout, Sequence
from fuzz_attn.kernels.common.contract import ContractError
from fuzz_attn.kernels.mla_decode import mla_decode
from fuzz_attn.operations.registry import OPERATIONS
from fuzz_attn.targets.built_in import built_in


def call(**changes: Any) -> dict[str, Any]:
    return {
        "q": torch.ones(2, 4, 24),
        "latent_cache": torch.ones(3, 16, 24),
        "out": torch.empty(2, 4, 16),
        "block_table": torch.zeros(2, 2, dtype=torch.int32),
        "seq_lens": torch.tensor([5, 20], dtype=torch.int32),
    } | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": torch.ones(2, 129, 24)}, "num_query_heads=129 must be at most 128"),
        ({"q": torch.ones(2, 4, 577)}, "head_size=577 must be at most 576"),
        ({"q": torch.ones(4, 24)}, r"q has shape \(4, 24\), must be \(any, any, any\)"),
        ({"q": torch.ones(2, 4, 24).double()}, "q has dtype float64"),
        ({"q": torch.ones(1, 4, 24)}, r"q.shape\[0\]=1 must be at least 2"),
        ({"latent_cache": torch.ones(3, 16, 16)}, r"latent_cache has shape \(3, 16, 16\), must be \(any, any, 24\)"),
        ({"latent_cache": torch.ones(3, 16, 24).half()}, "latent_cache has dtype float16, must be one of float32"),
        ({"out": torch.empty(2, 4, 25)}, "head_size_v=25 must be at most head_size=24"),
        ({"out": torch.empty(1, 4, 16)}, r"out.shape\[0\]=1 must be at least 2"),
        ({"out": torch.empty(2, 16, 4).mT}, "out has stride 4 in its last dimension, must be 1"),
        ({"lse": torch.empty(2, 4).half()}, "lse has dtype float16, must be one of float32"),
        ({"lse": torch.empty(2, 3)}, r"lse has shape \(2, 3\), must be \(any, 4\)"),
        ({"softmax_scale": float("inf")}, "softmax_scale=inf must be a finite number"),
        ({"num_splits": 65}, "num_splits=65 must be at most 64"),
        ({"tile_size": 24}, "tile_size=24 must be"),
    ],
)
def test_a_call_outside_of_the_contract_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        mla_decode(**call(**changes))


@pytest.mark.parametrize("value_size", [1, 33, 512])
@pytest.mark.parametrize("tile_size", [0, 16, 64])
def test_tiles_of_the_largest_keys_fit_into_shared_memory(value_size: int, tile_size: int) -> None:
    """Keys of 576 float32 numbers in tiles of 64, most of them no value, would need 256 KiB."""
    target, attention = built_in("mla_decode"), OPERATIONS["attention"]
    assert target is not None
    case = AttentionCase(
        sequences=(Sequence(1, 40),),
        family="mla_decode",
        heads=HeadLayout(1, 2, 576, value_size),
        pages=PageLayout(block_size=16),
        softmax_scale=1 / 24,
        launch=LaunchHints(tile_size=tile_size),
    )
    verdicts = attention.failures(attention.experiment(case, target, SimulatorBackend()), None)
    assert [verdict.message for verdict in verdicts if not verdict.passed] == []
