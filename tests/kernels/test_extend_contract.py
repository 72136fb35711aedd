"""The launcher of extend attention: what it refuses with which message, and small calls worked out by hand."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("these tests run kernels on a CPU: set TRITON_INTERPRET=1 before Triton is imported")

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.kernels.common.contract import ContractError
from fuzz_attn.kernels.extend_attention import extend_attention

Arguments = dict[str, Any]
ONE = torch.ones(1)


def indices(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def valid() -> Arguments:
    """Arguments that pass: 3 tokens of 2 sequences, 4 query heads on 2 KV heads of 16, 7 slots, 5 keys in contexts."""
    return {
        "q": torch.zeros(3, 4, 16),
        "k": torch.zeros(3, 2, 16),
        "v": torch.zeros(3, 2, 16),
        "out": torch.zeros(3, 4, 16),
        "k_buffer": torch.zeros(7, 2, 16),
        "v_buffer": torch.zeros(7, 2, 16),
        "qo_indptr": indices(0, 2, 3),
        "kv_indptr": indices(0, 1, 5),
        "kv_indices": indices(6, 0, 2, 4, 6),
        "max_len_extend": 2,
    }


def masked(*bits: int, dtype: torch.dtype = torch.bool) -> Arguments:
    return {"custom_mask": torch.tensor(bits).to(dtype), "mask_indptr": indices(0, 6, 11)}


MASK = masked(*[1] * 11)
REFUSALS: list[tuple[Arguments, str]] = [
    ({"q": None}, "q must be a torch.Tensor, not NoneType"),
    ({"q": torch.zeros(3, 4, 16, dtype=torch.float8_e5m2)}, "q has dtype float8_e5m2, must be one of float32"),
    ({"q": torch.zeros(3, 4, 257)}, r"must be \(any, 4, 257\)"),
    ({"k": torch.zeros(3, 2, 16).half()}, "k has dtype float16, must be one of float32"),
    ({"k": torch.zeros(3, 2, 15)}, r"k has shape \(3, 2, 15\), must be \(any, 2, 16\)"),
    ({"v": torch.zeros(2, 2, 16)}, r"v.shape\[0\]=2 must be at least 3"),
    ({"k_buffer": torch.zeros(7, 1, 16)}, r"k_buffer has shape \(7, 1, 16\), must be \(any, 2, 16\)"),
    (
        {"v_buffer": torch.zeros(7, 2, 16).to(torch.float8_e5m2)},
        "v_buffer has dtype float8_e5m2, must be one of float32",
    ),
    (
        {"q": torch.zeros(3, 3, 16), "out": torch.zeros(3, 3, 16)},
        "num_query_heads=3 must be a multiple of num_kv_heads=2",
    ),
    ({"qo_indptr": indices(0, 2, 3).float()}, "qo_indptr has dtype float32, must be one of int32, int64"),
    ({"kv_indptr": indices(0, 1)}, r"kv_indptr has shape \(2,\), must be \(3\)"),
    ({"kv_indices": torch.zeros(10, dtype=torch.int32)[::2]}, "kv_indices has stride 2 in its last dimension"),
    ({"max_len_extend": -1}, "max_len_extend=-1 must be at least 0"),
    ({"sm_scale": math.inf}, "sm_scale=inf must be a finite number"),
    ({"logit_cap": -1.0}, "logit_cap=-1.0 must be at least 0"),
    ({"sinks": torch.zeros(3)}, r"sinks has shape \(3,\), must be \(4\)"),
    ({"k_scale": torch.ones(2)}, r"k_scale has shape \(2,\), must hold one element"),
    ({"output_scale": ONE}, "output_scale must be None for out of dtype float32"),
    ({"tile_size": 24}, "tile_size=24 must be a power of two"),
    ({"window_size": 4}, r"window_size=4 must be a pair \(left, right\)"),
    ({"window_size": (-2, 0)}, r"window_size\[0\]=-2 must be at least -1"),
    ({"window_size": (3, 1)}, r"window_size\[1\]=1 must be at most 0"),
    ({"is_causal": False, "window_size": (3, -2)}, r"window_size\[1\]=-2 must be at least -1"),
    ({"chunk_size": -1}, "chunk_size=-1 must be at least 0"),
    ({"is_causal": False, "chunk_size": 4}, "is_causal=False must be True with top_left=False and chunk_size=4"),
    ({"is_causal": False, "top_left": True}, "is_causal=False must be True with top_left=True and chunk_size=0"),
    ({"custom_mask": MASK["custom_mask"]}, "custom_mask and mask_indptr must both be given or both be None"),
    ({"mask_indptr": MASK["mask_indptr"]}, "custom_mask and mask_indptr must both be given or both be None"),
    ({**MASK, "custom_mask": torch.ones(11)}, "custom_mask has dtype float32, must be one of bool, uint8"),
    ({**MASK, "custom_mask": torch.ones(1, 11).bool()}, r"custom_mask has shape \(1, 11\), must be \(any\)"),
    ({**MASK, "mask_indptr": indices(0, 6)}, r"mask_indptr has shape \(2,\), must be \(3\)"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_it_refuses(changes: Arguments, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        extend_attention(**{**valid(), **changes})


# Two sequences: 2 new tokens after the key in slot 6, and 1 new token after the keys in slots 0, 2, 4 and 6. A key in
# slot s has the value s, new token t the value 10 + t. With queries of 0 the output is the mean of what a token sees.
FIRST, SECOND = [6, 10, 11], [0, 2, 4, 6, 12]
MEANS: list[tuple[Arguments, tuple[list[int], ...]]] = [
    ({}, ([6, 10], FIRST, SECOND)),
    ({"kv_indices": torch.tensor([6, 0, 2, 4, 6])}, ([6, 10], FIRST, SECOND)),
    ({"is_causal": False}, (FIRST, FIRST, SECOND)),
    ({"top_left": True}, ([6], [6, 10], [0])),
    ({"window_size": (0, 0)}, ([10], [11], [12])),
    ({"window_size": (1, -1)}, ([6, 10], [10, 11], [6, 12])),
    ({"window_size": [0, 1], "is_causal": False}, ([10, 11], [11], [12])),
    ({"window_size": (-1, 0), "is_causal": False}, ([6, 10], FIRST, SECOND)),
    ({"window_size": (2**31, 2**31), "is_causal": False}, (FIRST, FIRST, SECOND)),
    ({"window_size": (2**40, 0)}, ([6, 10], FIRST, SECOND)),
    ({"chunk_size": 2}, ([6, 10], [11], [12])),
    ({"chunk_size": 3}, ([6, 10], FIRST, [6, 12])),
    (MASK, ([6, 10], FIRST, SECOND)),
    ({**MASK, "is_causal": False}, (FIRST, FIRST, SECOND)),
    (masked(0, 0, 1, 1, 0, 1, 0, 1, 0, 0, 1, dtype=torch.uint8), ([], [6, 11], [2, 12])),
    ({**masked(0, 0, 1, 1, 0, 1, 0, 0, 0, 0, 0), "is_causal": False}, ([11], [6, 11], [])),
    ({**masked(1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 0), "window_size": (1, 0)},
     ([6, 10], [10, 11], [6])),
    ({"sinks": torch.zeros(4)}, ([6, 10, 0], [*FIRST, 0], [*SECOND, 0])),
    ({"max_len_extend": 0}, ([], [], [])),
]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("changes", "seen"), MEANS, ids=str)
@pytest.mark.parametrize("tile_size", [16, None])
def test_queries_of_zero_give_the_mean_of_what_they_see(
    changes: Arguments, seen: tuple[list[int], ...], tile_size: int | None
) -> None:
    arguments = {**valid(), "tile_size": tile_size, **changes}
    arguments["v"] = torch.arange(10.0, 13.0)[:, None, None].expand(3, 2, 16).contiguous()
    arguments["v_buffer"] = torch.arange(7.0)[:, None, None].expand(7, 2, 16).contiguous()
    for unused in (1, 3, 5):  # slots of no sequence
        arguments["k_buffer"][unused] = arguments["v_buffer"][unused] = math.nan
    with SimulatorBackend().running() as watch:
        extend_attention(**arguments)
    assert not watch.observations
    expected = torch.tensor([sum(values) / len(values) if values else 0.0 for values in seen])
    torch.testing.assert_close(arguments["out"], expected[:, None, None].expand(3, 4, 16))
