"""The launcher of attention over packed keys: what it refuses, and small calls worked out by hand."""

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
from fuzz_attn.kernels.varlen_attention import varlen_attention

Arguments = dict[str, Any]


def indices(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def valid() -> Arguments:
    """Arguments that pass: 6 tokens of 3 sequences with 4, 2 and 0 keys, 4 query heads on 2 KV heads of 16."""
    return {
        "q": torch.zeros(6, 4, 16),
        "k": torch.zeros(7, 2, 16),
        "v": torch.zeros(7, 2, 8),
        "out": torch.full((6, 4, 8), math.nan),
        "cu_seqlens_q": indices(0, 2, 5, 6),
        "cu_seqlens_k": indices(0, 4, 6, 6),
        "max_seqlen_q": 3,
        "max_seqlen_k": 4,
    }


REFUSALS: list[tuple[Arguments, str]] = [
    ({"q": None}, "q must be a torch.Tensor, not NoneType"),
    ({"q": torch.zeros(6, 4, 16, dtype=torch.float8_e5m2)}, "q has dtype float8_e5m2, must be one of float32"),
    ({"q": torch.zeros(6, 4, 257)}, "head_size=257 must be at most 256"),
    ({"k": torch.zeros(7, 2, 16).half()}, "k has dtype float16, must be one of float32"),
    ({"k": torch.zeros(7, 2, 15)}, r"k has shape \(7, 2, 15\), must be \(any, any, 16\)"),
    ({"k": torch.zeros(7, 16, 2).mT}, "k has stride 2 in its last dimension, must be 1"),
    ({"v": torch.zeros(6, 2, 8)}, r"v has shape \(6, 2, 8\), must be \(7, 2, 8\)"),
    ({"v": torch.zeros(7, 2, 0)}, "head_size_v=0 must be at least 1"),
    ({"out": torch.zeros(6, 4, 16)}, r"out has shape \(6, 4, 16\), must be \(any, 4, 8\)"),
    ({"out": torch.zeros(5, 4, 8)}, r"out.shape\[0\]=5 must be at least 6"),
    (
        {"q": torch.zeros(6, 3, 16), "out": torch.zeros(6, 3, 8)},
        "num_query_heads=3 must be a multiple of num_kv_heads=2",
    ),
    ({"cu_seqlens_q": indices(0, 2, 5, 6).float()}, "cu_seqlens_q has dtype float32, must be one of int32, int64"),
    ({"cu_seqlens_q": indices()}, r"cu_seqlens_q.shape\[0\]=0 must be at least 1"),
    ({"cu_seqlens_k": indices(0, 4)}, r"cu_seqlens_k has shape \(2,\), must be \(4\)"),
    ({"seqused_k": indices(4, 2)}, r"seqused_k has shape \(2,\), must be \(3\)"),
    ({"max_seqlen_q": -1}, "max_seqlen_q=-1 must be at least 0"),
    ({"max_seqlen_k": -1}, "max_seqlen_k=-1 must be at least 0"),
    ({"softmax_scale": math.inf}, "softmax_scale=inf must be a finite number"),
    ({"softcap": -1.0}, "softcap=-1.0 must be at least 0"),
    ({"alibi_slopes": torch.zeros(3)}, r"alibi_slopes has shape \(3,\), must be \(4\)"),
    ({"sinks": torch.zeros(3)}, r"sinks has shape \(3,\), must be \(4\)"),
    ({"softmax_lse": torch.zeros(6, 4)}, r"softmax_lse has shape \(6, 4\), must be \(4, any\)"),
    ({"softmax_lse": torch.zeros(4, 5)}, r"softmax_lse.shape\[1\]=5 must be at least 6"),
    ({"softmax_lse": torch.zeros(4, 6).double()}, "softmax_lse has dtype float64, must be one of float32"),
    ({"tile_size": 24}, "tile_size=24 must be a power of two"),
    ({"window_size": 4}, r"window_size=4 must be a pair \(left, right\)"),
    ({"window_size": (-2, 0)}, r"window_size\[0\]=-2 must be at least -1"),
    ({"window_size": (3, -2)}, r"window_size\[1\]=-2 must be at least -1"),
    ({"window_size": (3, 1), "causal": True}, r"window_size\[1\]=1 must be at most 0"),
    ({"top_left": True}, "causal=False must be True with top_left=True"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_it_refuses(changes: Arguments, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        varlen_attention(**{**valid(), **changes})


# Key t has the value t. The first sequence has 2 query tokens and keys 0 to 3, the second 3 and keys 4 and 5, the last
# one token and no key. With queries of 0 the output is the mean of what a token sees, and its log-sum-exp the logarithm
# of how many keys that are.
ALL, OTHER = [0, 1, 2, 3], [4, 5]
CAUSAL = {"causal": True}
LARGEST = 2**31 - 1
SEEN: list[tuple[Arguments, list[list[int]]]] = [
    ({}, [ALL, ALL, OTHER, OTHER, OTHER, []]),
    ({"cu_seqlens_k": torch.tensor([0, 4, 6, 6])}, [ALL, ALL, OTHER, OTHER, OTHER, []]),
    ({"seqused_k": indices(2, 1, 0)}, [[0, 1], [0, 1], [4], [4], [4], []]),
    (CAUSAL, [[0, 1, 2], ALL, [], [4], OTHER, []]),
    ({**CAUSAL, "seqused_k": indices(2, 1, 0)}, [[0], [0, 1], [], [], [4], []]),
    ({**CAUSAL, "top_left": True}, [[0], [0, 1], [4], OTHER, OTHER, []]),
    ({**CAUSAL, "top_left": True, "window_size": (0, 0)}, [[0], [1], [4], [5], [], []]),
    ({**CAUSAL, "window_size": (1, -1)}, [[1, 2], [2, 3], [], [4], OTHER, []]),
    ({"window_size": (1, -1)}, [[1, 2, 3], [2, 3], OTHER, OTHER, OTHER, []]),
    ({"window_size": [0, 1]}, [[2, 3], [3], [4], OTHER, [5], []]),
    ({"window_size": (-1, 0)}, [[0, 1, 2], ALL, [], [4], OTHER, []]),
    ({"window_size": (LARGEST, LARGEST)}, [ALL, ALL, OTHER, OTHER, OTHER, []]),
]


def called(changes: Arguments) -> Arguments:
    """Return the arguments after a call on values that count the keys, and NaN in the row of no sequence."""
    arguments = {**valid(), "softmax_lse": torch.full((4, 6), math.nan), **changes}
    arguments["v"] = torch.arange(7.0)[:, None, None].expand(7, 2, 8).contiguous()
    used = arguments.get("seqused_k")
    dead = [6] if used is None else [2, 3, 5, 6]
    for row in dead:
        arguments["k"][row] = arguments["v"][row] = math.nan
    with SimulatorBackend().running() as watch:
        varlen_attention(**arguments)
    assert not watch.observations
    return arguments


@pytest.mark.parametrize(("changes", "seen"), SEEN, ids=str)
@pytest.mark.parametrize("tile_size", [16, None])
def test_queries_of_zero_give_the_mean_of_what_they_see(
    changes: Arguments, seen: list[list[int]], tile_size: int | None
) -> None:
    arguments = called({**changes, "tile_size": tile_size})
    means = torch.tensor([sum(keys) / len(keys) if keys else 0.0 for keys in seen])
    torch.testing.assert_close(arguments["out"], means[:, None, None].expand(6, 4, 8))
    sizes = torch.tensor([math.log(len(keys)) if keys else -math.inf for keys in seen])
    torch.testing.assert_close(arguments["softmax_lse"], sizes.expand(4, 6))


@pytest.mark.parametrize(("changes", "seen"), [SEEN[0], SEEN[3]], ids=["all", "causal"])
def test_slopes_count_from_the_first_query_token(changes: Arguments, seen: list[list[int]]) -> None:
    slopes = torch.tensor([0.0, 0.5, -1.0, 2.0])
    arguments = called({**changes, "alibi_slopes": slopes})
    origins = (2, 2, 3, 3, 3, 0)  # key 2 of the batch is the third of 4 keys beside 2 tokens; 2 keys beside 3 tokens
    for row, (keys, origin) in enumerate(zip(seen, origins, strict=True)):
        where = torch.tensor(keys, dtype=torch.float32)
        scores = slopes[:, None] * (where - origin)
        out = (scores.softmax(-1) * where).sum(-1)
        torch.testing.assert_close(arguments["out"][row], out[:, None].expand(4, 8))
        torch.testing.assert_close(arguments["softmax_lse"][:, row], scores.logsumexp(-1))


def test_a_sink_joins_the_rows_that_see_a_key() -> None:
    arguments = called({"causal": True, "sinks": torch.zeros(4)})
    means = torch.tensor([3 / 4, 6 / 5, 0.0, 4 / 2, 9 / 3, 0.0])
    torch.testing.assert_close(arguments["out"], means[:, None, None].expand(6, 4, 8))
    sizes = torch.tensor([math.log(4), math.log(5), -math.inf, math.log(2), math.log(3), -math.inf])
    torch.testing.assert_close(arguments["softmax_lse"], sizes.expand(4, 6))


def test_later_tokens_than_the_longest_query_and_padding_stay() -> None:
    arguments = called({"max_seqlen_q": 0})
    assert arguments["out"].isnan().all()
    arguments = called({"q": torch.zeros(7, 4, 16), "out": torch.full((8, 4, 8), math.nan),
                        "softmax_lse": torch.full((4, 9), math.nan)})  # fmt: skip
    assert arguments["out"].isnan().any((1, 2)).tolist() == [False] * 6 + [True] * 2
    assert arguments["softmax_lse"].isnan().any(0).tolist() == [False] * 6 + [True] * 3
