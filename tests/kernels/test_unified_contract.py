"""The contract of `unified_attention`: what it refuses with which message, and what it must accept."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fuzz_attn.kernels.common.contract import ContractError
from fuzz_attn.kernels.unified.call import UnifiedCall, check_unified
from fuzz_attn.kernels.unified_attention import unified_attention

Arguments = dict[str, Any]
Change = Callable[[Arguments], Arguments]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def valid() -> Arguments:
    """Arguments that pass: 3 tokens, 4 query heads on 2 KV heads of 16, 5 pages of 8, 2 sequences."""
    return {
        "q": torch.zeros(3, 4, 16),
        "k": torch.zeros(5, 8, 2, 16),
        "v": torch.zeros(5, 8, 2, 16),
        "out": torch.zeros(3, 4, 16),
        "cu_seqlens_q": torch.tensor([0, 1, 3], dtype=torch.int32),
        "max_seqlen_q": 2,
        "seqused_k": torch.tensor([4, 9], dtype=torch.int32),
        "max_seqlen_k": 9,
        "softmax_scale": 0.25,
        "causal": True,
        "window_size": (-1, -1),
        "block_table": torch.zeros(2, 2, dtype=torch.int32),
        "softcap": 0,
        "q_descale": None,
        "k_descale": None,
        "v_descale": None,
        "alibi_slopes": None,
        "qq_bias": None,
        "sinks": None,
        "output_scale": None,
        "num_segments": None,
        "tile_size": None,
    }


def heads(num_query_heads: int, num_kv_heads: int, head_size: int = 16) -> Arguments:
    q = torch.zeros(3, num_query_heads, head_size)
    k = torch.zeros(5, 8, num_kv_heads, head_size)
    return {"q": q, "out": q.clone(), "k": k, "v": k.clone()}


def dtypes(q: torch.dtype, kv: torch.dtype, out: torch.dtype) -> Arguments:
    good = valid()
    return {"q": good["q"].to(q), "k": good["k"].to(kv), "v": good["v"].to(kv), "out": good["out"].to(out)}


ONE = torch.ones(1)

REFUSALS: list[tuple[Arguments, str]] = [
    ({"q": None}, "q must be a torch.Tensor, not NoneType"),
    ({"sinks": 1.0}, "sinks must be a torch.Tensor, not float"),
    ({"k": torch.zeros(5, 8, 2, 16, device="meta")}, "k is on meta, must be on cpu like q"),
    ({"q": torch.zeros(3, 4, 16, dtype=torch.int8)}, "q has dtype int8, must be one of float32, float16, bfloat16, "),
    ({"out": torch.zeros(3, 4, 16, dtype=torch.float64)}, "out has dtype float64, must be one of float32, "),
    ({"q": torch.zeros(3, 64)}, "q has shape (3, 64), must be (any, any, any)"),
    ({"out": torch.zeros(3, 4, 17)}, "out has shape (3, 4, 17), must be (any, 4, 16)"),
    ({"out": torch.zeros(2, 4, 16)}, "out.shape[0]=2 must be at least 3"),
    (heads(4, 2, head_size=257), "head_size=257 must be at most 256"),
    (heads(4, 2, head_size=0), "head_size=0 must be at least 1"),
    ({"q": torch.zeros(3, 4, 32)[..., ::2]}, "q has stride 2 in its last dimension, must be 1"),
    ({"out": torch.zeros(3, 16, 4).transpose(1, 2)}, "out has stride 4 in its last dimension, must be 1"),
    ({"k": torch.zeros(5, 8, 2, 16).half()}, "k has dtype float16, must be one of float32, float8_e4m3fn, float8_e5m2"),
    (dtypes(E4M3, torch.float16, torch.float16), "k has dtype float16, must be one of float8_e4m3fn, float8_e5m2"),
    ({"v": torch.zeros(5, 8, 2, 16).to(E5M2)}, "v has dtype float8_e5m2, must be one of float32"),
    ({"k": torch.zeros(5, 8, 2, 24)}, "k has shape (5, 8, 2, 24), must be (any, any, any, 16)"),
    ({"k": torch.zeros(5, 2, 16)}, "k has shape (5, 2, 16), must be (any, any, any, 16)"),
    ({"v": torch.zeros(5, 4, 2, 16)}, "v has shape (5, 4, 2, 16), must be (5, 8, 2, 16)"),
    ({"k": torch.zeros(5, 0, 2, 16), "v": torch.zeros(5, 0, 2, 16)}, "block_size=0 must be at least 1"),
    ({"v": torch.zeros(5, 8, 16, 2).transpose(2, 3)}, "v has stride 2 in its last dimension, must be 1"),
    (heads(4, 0), "num_kv_heads=0 must be at least 1"),
    (heads(0, 2), "num_query_heads=0 must be at least 1"),
    (heads(5, 2), "num_query_heads=5 must be a multiple of num_kv_heads=2"),
    (heads(2, 4), "num_query_heads=2 must be a multiple of num_kv_heads=4"),
    (heads(65, 1), "num_queries_per_kv=65 must be at most 64"),
    ({"cu_seqlens_q": torch.tensor([0, 1, 3])}, "cu_seqlens_q has dtype int64, must be one of int32"),
    ({"seqused_k": torch.tensor([4, 9])}, "seqused_k has dtype int64, must be one of int32"),
    ({"block_table": torch.zeros(2, 2)}, "block_table has dtype float32, must be one of int32"),
    ({"cu_seqlens_q": torch.zeros(2, dtype=torch.int32)}, "cu_seqlens_q has shape (2,), must be (3)"),
    ({"seqused_k": torch.zeros(2, 1, dtype=torch.int32)}, "seqused_k has shape (2, 1), must be (any)"),
    ({"block_table": torch.zeros(4, dtype=torch.int32)}, "block_table has shape (4,), must be (any, any)"),
    ({"block_table": torch.zeros(1, 2, dtype=torch.int32)}, "block_table.shape[0]=1 must be at least 2"),
    ({"seqused_k": torch.zeros(4, dtype=torch.int32)[::2]}, "seqused_k has stride 2 in its last dimension, must be 1"),
    ({"cu_seqlens_q": torch.zeros(6, dtype=torch.int32)[::2]}, "cu_seqlens_q has stride 2 in its last dimension, must"),
    (
        {"block_table": torch.zeros(2, 2, dtype=torch.int32).t()},
        "block_table has stride 2 in its last dimension, must ",
    ),
    ({"max_seqlen_q": -1}, "max_seqlen_q=-1 must be at least 0"),
    ({"max_seqlen_k": -2}, "max_seqlen_k=-2 must be at least 0"),
    ({"causal": False}, "causal=False must be True"),
    ({"window_size": (-2, 0)}, "window_size=(-2, 0) must have left >= -1"),
    ({"window_size": (4, 1)}, "window_size=(4, 1) must have right 0 or -1"),
    ({"window_size": (4,)}, "window_size=(4,) must be a pair (left, right)"),
    ({"softmax_scale": math.nan}, "softmax_scale=nan must be a finite number"),
    ({"softmax_scale": None}, "softmax_scale=None must be a finite number"),
    ({"softcap": math.inf}, "softcap=inf must be a finite number"),
    ({"softcap": -1.5}, "softcap=-1.5 must be at least 0"),
    ({"alibi_slopes": torch.zeros(2)}, "alibi_slopes has shape (2,), must be (4)"),
    ({"alibi_slopes": torch.zeros(8)[::2]}, "alibi_slopes has stride 2 in its last dimension, must be 1"),
    (
        {"sinks": torch.zeros(4, dtype=torch.int32)},
        "sinks has dtype int32, must be one of float32, float16, bfloat16, ",
    ),
    ({"sinks": torch.zeros(4, 1)}, "sinks has shape (4, 1), must be (4)"),
    ({"qq_bias": torch.zeros(1, 5)}, "max_seqlen_q=2 must not exceed qq_bias.shape[0]=1"),
    ({"qq_bias": torch.zeros(3)}, "qq_bias has shape (3,), must be (any, any)"),
    ({"qq_bias": torch.zeros(2, 2, dtype=torch.bool)}, "qq_bias has dtype bool, must be one of float32"),
    ({"q_descale": ONE}, "q_descale must be None for q of dtype float32: it belongs to an fp8 q"),
    ({"k_descale": torch.ones(1, 2)}, "k_descale has shape (1, 2), must hold one element"),
    ({"v_descale": torch.ones(0)}, "v_descale has shape (0,), must hold one element"),
    ({"v_descale": ONE.half()}, "v_descale has dtype float16, must be one of float32"),
    ({"k_descale": 0.5}, "k_descale must be a torch.Tensor, not float"),
    ({"output_scale": ONE}, "output_scale must be None for out of dtype float32"),
    (dtypes(torch.float32, torch.float32, E4M3), "output_scale must be given for out of dtype float8_e4m3fn"),
    ({"num_segments": -1}, "num_segments=-1 must be at least 0"),
    ({"num_segments": 4097}, "num_segments=4097 must be at most 4096"),
    ({"tile_size": 8}, "tile_size=8 must be at least 16"),
    (dtypes(E4M3, E4M3, torch.float16) | {"tile_size": 16}, "tile_size=16 must be at least 32"),
    ({"tile_size": 256}, "tile_size=256 must be at most 128"),
    ({"tile_size": 48}, "tile_size=48 must be a power of two"),
]

ACCEPTED: dict[str, Arguments] = {
    "unchanged": {},
    "no_tokens": {"q": torch.zeros(0, 4, 16), "out": torch.zeros(0, 4, 16)},
    "more_output_rows": {"out": torch.zeros(9, 4, 16)},
    "no_sequences": {
        "cu_seqlens_q": torch.zeros(1, dtype=torch.int32),
        "seqused_k": torch.zeros(0, dtype=torch.int32),
        "block_table": torch.zeros(0, 0, dtype=torch.int32),
    },
    "smallest_head": heads(1, 1, head_size=1),
    "largest_head": heads(64, 1, head_size=256),
    "any_last_stride_of_one_element": {
        "q": torch.zeros(3, 4, 2)[..., ::2],
        "out": torch.zeros(3, 4, 1),
        "k": torch.zeros(5, 8, 2, 1),
        "v": torch.zeros(5, 8, 2, 1),
    },
    "fp8_cache_without_scales": dtypes(torch.bfloat16, E4M3, torch.float32),
    "fp8_q_other_fp8_cache": dtypes(E4M3, E5M2, torch.bfloat16) | {"q_descale": ONE, "tile_size": 32},
    "fp8_output": dtypes(torch.float16, torch.float16, E5M2) | {"output_scale": ONE},
    "scales_expanded": dtypes(torch.float16, E4M3, torch.float16)
    | {"k_descale": ONE.expand(2, 2), "v_descale": ONE[0]},
    "scales_of_an_unquantised_cache": {"k_descale": ONE, "v_descale": ONE},
    "window_of_one": {"window_size": (0, 0)},
    "window_with_open_right": {"window_size": (5, -1)},
    "wider_qq_bias": {"qq_bias": torch.zeros(9, 30)[3:, ::2].t()},
    "sinks_of_another_dtype": {"sinks": torch.zeros(4, dtype=torch.bfloat16)},
    "sliced_block_table": {"block_table": torch.zeros(7, 9, dtype=torch.int32)[2:4, 3:]},
    "one_segment": {"num_segments": 1, "tile_size": 128},
    "forced_2d": {"num_segments": 0, "tile_size": 16},
}


@pytest.mark.parametrize(("changes", "message"), REFUSALS, ids=[message[:60] for _, message in REFUSALS])
def test_message_names_argument_value_and_bound(changes: Arguments, message: str) -> None:
    with pytest.raises(ContractError) as refusal:
        check_unified(UnifiedCall(**(valid() | changes)))
    assert str(refusal.value).startswith(message)


@pytest.mark.parametrize("name", ACCEPTED)
def test_legal_arguments_are_accepted(name: str) -> None:
    check_unified(UnifiedCall(**(valid() | ACCEPTED[name])))


def test_launcher_refuses_before_it_writes() -> None:
    arguments = valid() | {"causal": False}
    arguments["out"].fill_(7.0)
    with pytest.raises(ContractError, match="causal=False must be True"):
        unified_attention(**arguments)
    assert (arguments["out"] == 7.0).all()


def test_refusals_are_value_errors() -> None:
    assert issubclass(ContractError, ValueError)
