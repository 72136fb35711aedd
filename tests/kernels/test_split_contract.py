"""The contract of the launchers over split caches: what they refuse with which message, and what they must accept."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("these tests run kernels on a CPU: set TRITON_INTERPRET=1 before Triton is imported")

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.kernels.chunked_prefill import chunked_prefill_paged_decode
from fuzz_attn.kernels.common.contract import ContractError
from fuzz_attn.kernels.context_attention import NAMES, context_attention_fwd
from fuzz_attn.kernels.paged_attention import paged_attention_decode

Arguments = dict[str, Any]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ONE = torch.ones(1)


def valid() -> Arguments:
    """Arguments that pass: 3 tokens, 4 query heads on 2 KV heads of 16, x = 4, 5 pages of 8, 3 sequences."""
    return {
        "query": torch.zeros(3, 4, 16),
        "output": torch.zeros(3, 4, 16),
        "key_cache": torch.zeros(5, 2, 4, 8, 4),
        "value_cache": torch.zeros(5, 2, 16, 8),
        "block_table": torch.zeros(3, 2, dtype=torch.int32),
        "query_start_loc": torch.tensor([0, 1, 2, 3], dtype=torch.int32),
        "seq_lens": torch.tensor([4, 9, 1], dtype=torch.int32),
        "k_scale": None,
        "v_scale": None,
    }


def heads(num_query_heads: int, num_kv_heads: int, head_size: int = 16, x: int = 4) -> Arguments:
    query = torch.zeros(3, num_query_heads, head_size)
    key_cache = torch.zeros(5, num_kv_heads, head_size // x, 8, x)
    value_cache = torch.zeros(5, num_kv_heads, head_size, 8)
    return {"query": query, "output": query.clone(), "key_cache": key_cache, "value_cache": value_cache}


def dtypes(query: torch.dtype, cache: torch.dtype, output: torch.dtype | None = None) -> Arguments:
    good = valid()
    return {
        "query": good["query"].to(query),
        "output": good["output"].to(output or query),
        "key_cache": good["key_cache"].to(cache),
        "value_cache": good["value_cache"].to(cache),
    }


REFUSALS: list[tuple[Arguments, str]] = [
    ({"query": None}, "query must be a torch.Tensor, not NoneType"),
    ({"block_table": None}, "block_table must be a torch.Tensor, not NoneType"),
    (
        {"query_start_loc": None, "filter_by_query_len": True},
        "query_start_loc must be a torch.Tensor, not NoneType",
    ),
    ({"sinks": 1.0}, "sinks must be a torch.Tensor, not float"),
    ({"k_scale": 0.5}, "k_scale must be a torch.Tensor, not float"),
    ({"value_cache": torch.zeros(5, 2, 16, 8, device="meta")}, "value_cache is on meta, must be on cpu like query"),
    (dtypes(E4M3, E4M3), "query has dtype float8_e4m3fn, must be one of float32, float16, bfloat16"),
    ({"output": torch.zeros(3, 4, 16, dtype=torch.int8)}, "output has dtype int8, must be one of float32, "),
    ({"query": torch.zeros(3, 64)}, "query has shape (3, 64), must be (any, any, any)"),
    ({"output": torch.zeros(2, 4, 16)}, "output.shape[0]=2 must be at least 3"),
    (heads(4, 2, head_size=260), "head_size=260 must be at most 256"),
    ({"query": torch.zeros(3, 4, 32)[..., ::2]}, "query has stride 2 in its last dimension, must be 1"),
    (
        {"key_cache": torch.zeros(5, 2, 4, 8, 4).half()},
        "key_cache has dtype float16, must be one of float32, float8_e4m3fn, float8_e5m2",
    ),
    (dtypes(torch.float16, torch.uint8), "key_cache has dtype uint8, must be one of float16, float8_e4m3fn, "),
    (
        dtypes(torch.float16, E5M2) | {"kv_cache_dtype": "fp8"},
        "key_cache has dtype float8_e5m2, must be one of float8_e4m3fn, uint8",
    ),
    (
        dtypes(torch.float16, torch.float16) | {"kv_cache_dtype": "fp8_e5m2"},
        "key_cache has dtype float16, must be one of float8_e5m2, uint8",
    ),
    ({"kv_cache_dtype": "int8"}, "kv_cache_dtype='int8' must be one of auto, fp8, fp8_e4m3, fp8_e5m2"),
    ({"value_cache": torch.zeros(5, 2, 16, 8).to(E5M2)}, "value_cache has dtype float8_e5m2, must be one of float32"),
    ({"key_cache": torch.zeros(5, 8, 2, 16)}, "key_cache has shape (5, 8, 2, 16), must be (any, any, any, any, any)"),
    ({"key_cache": torch.zeros(5, 2, 3, 8, 4)}, "key_cache has 3 chunks of 4 elements, must have head_size=16"),
    ({"key_cache": torch.zeros(5, 2, 4, 0, 4)}, "block_size=0 must be at least 1"),
    ({"value_cache": torch.zeros(5, 2, 16, 4)}, "value_cache has shape (5, 2, 16, 4), must be (5, 2, 16, 8)"),
    ({"value_cache": torch.zeros(5, 2, 8, 16).mT}, "value_cache has stride 16 in its last dimension, must be 1"),
    (
        {"key_cache": torch.zeros(5, 2, 4, 8, 8)[..., ::2]},
        "key_cache has stride 2 in its last dimension, must be 1",
    ),
    (heads(4, 0), "num_kv_heads=0 must be at least 1"),
    (heads(5, 2), "num_query_heads=5 must be a multiple of num_kv_heads=2"),
    (heads(65, 1), "num_queries_per_kv=65 must be at most 64"),
    ({"query_start_loc": torch.tensor([0, 1, 2, 3])}, "query_start_loc has dtype int64, must be one of int32"),
    ({"query_start_loc": torch.zeros(3, dtype=torch.int32)}, "query_start_loc has shape (3,), must be (4)"),
    ({"seq_lens": torch.tensor([4, 9, 1])}, "seq_lens has dtype int64, must be one of int32"),
    ({"block_table": torch.zeros(2, 2, dtype=torch.int32)}, "block_table.shape[0]=2 must be at least 3"),
    ({"query": torch.zeros(2, 4, 16)}, "query.shape[0]=2 must be at least 3"),
    ({"sliding_window": -2}, "sliding_window=-2 must be at least -1"),
    ({"sm_scale": math.inf}, "sm_scale=inf must be a finite number"),
    ({"alibi_slopes": torch.zeros(2)}, "alibi_slopes has shape (2,), must be (4)"),
    ({"sinks": torch.zeros(4, dtype=torch.int32)}, "sinks has dtype int32, must be one of float32, "),
    ({"k_scale": torch.ones(1, 2)}, "k_scale has shape (1, 2), must hold one element"),
    ({"v_scale": ONE.half()}, "v_scale has dtype float16, must be one of float32"),
    ({"output_scale": ONE}, "output_scale must be None for output of dtype float32"),
    (dtypes(torch.float16, E4M3, E4M3), "output_scale must be given for output of dtype float8_e4m3fn"),
    ({"tile_size": 8}, "tile_size=8 must be at least 16"),
    ({"tile_size": 256}, "tile_size=256 must be at most 128"),
    ({"tile_size": 48}, "tile_size=48 must be a power of two"),
]

ACCEPTED: dict[str, Arguments] = {
    "unchanged": {},
    "no_starts": {"query_start_loc": None},
    "filtered": {"filter_by_query_len": True},
    "fewer_tokens_than_sequences": {
        "query": torch.zeros(2, 4, 16),
        "query_start_loc": torch.tensor([0, 1, 1, 2], dtype=torch.int32),
        "filter_by_query_len": True,
    },
    "more_tokens_than_sequences": {"query": torch.zeros(7, 4, 16), "output": torch.zeros(9, 4, 16)},
    "smallest_head": heads(1, 1, head_size=1, x=1),
    "largest_head": heads(64, 1, head_size=256, x=16),
    "x_of_the_whole_head": heads(4, 2, x=16),
    "fp8_other_name": dtypes(torch.bfloat16, E4M3) | {"kv_cache_dtype": "fp8_e4m3"},
    "bytes": dtypes(torch.bfloat16, torch.uint8) | {"kv_cache_dtype": "fp8_e5m2", "k_scale": ONE.expand(2, 2)},
    "fp8_output": dtypes(torch.float16, torch.float16, E5M2) | {"output_scale": ONE[0]},
    "scales_of_an_unquantised_cache": {"k_scale": ONE, "v_scale": ONE},
    "no_window": {"sliding_window": 0},
    "no_window_minus_1": {"sliding_window": -1},
    "own_tile": {"tile_size": 128},
}


@pytest.mark.parametrize(("changes", "message"), REFUSALS, ids=[message[:60] for _, message in REFUSALS])
def test_message_names_argument_value_and_bound(changes: Arguments, message: str) -> None:
    arguments = valid() | changes
    if isinstance(arguments["output"], torch.Tensor):
        arguments["output"].fill_(7.0)
    with pytest.raises(ContractError) as refusal:
        paged_attention_decode(**arguments)
    assert str(refusal.value).startswith(message)
    assert (arguments["output"].float() == 7.0).all(), "something was written before the refusal"


NEW = {"new_keys": torch.zeros(3, 2, 16), "new_values": torch.zeros(3, 2, 16), "kv_cache_dtype": "auto"}
LENGTHS = {"max_seq_len": 9, "max_query_len": 2}


def for_context(changes: Arguments) -> Arguments:
    """Valid arguments of context attention with some changes, which use the names of SplitCall."""
    return {NAMES.get(name, name): value for name, value in (valid() | NEW | LENGTHS | changes).items()}


def for_chunked(changes: Arguments) -> Arguments:
    """Valid arguments of the mixed launcher with some changes."""
    words = {"new_keys": "key", "new_values": "value"}
    return {words.get(name, name): value for name, value in (valid() | NEW | LENGTHS | changes).items()}


CONTEXT_REFUSALS: list[tuple[Arguments, str]] = [
    ({"query": None}, "q must be a torch.Tensor, not NoneType"),
    ({"new_keys": None}, "k must be a torch.Tensor, not NoneType"),
    ({"new_values": None}, "v must be a torch.Tensor, not NoneType"),
    ({"query_start_loc": None}, "b_start_loc must be a torch.Tensor, not NoneType"),
    ({"new_values": torch.zeros(3, 2, 16, device="meta")}, "v is on meta, must be on cpu like q"),
    ({"output": torch.zeros(2, 4, 16)}, "o.shape[0]=2 must be at least 3"),
    ({"new_keys": torch.zeros(3, 2, 16).half()}, "k has dtype float16, must be one of float32"),
    ({"new_keys": torch.zeros(3, 4, 16)}, "k has shape (3, 4, 16), must be (any, 2, 16)"),
    ({"new_values": torch.zeros(3, 2, 8)}, "v has shape (3, 2, 8), must be (any, 2, 16)"),
    ({"new_values": torch.zeros(3, 16, 2).mT}, "v has stride 2 in its last dimension, must be 1"),
    ({"key_cache": torch.zeros(5, 2, 3, 8, 4)}, "k_cache has 3 chunks of 4 elements, must have head_size=16"),
    ({"value_cache": torch.zeros(5, 2, 16, 4)}, "v_cache has shape (5, 2, 16, 4), must be (5, 2, 16, 8)"),
    ({"block_table": torch.zeros(2, 2, dtype=torch.int32)}, "b_loc.shape[0]=2 must be at least 3"),
    ({"query_start_loc": torch.zeros(3, dtype=torch.int32)}, "b_start_loc has shape (3,), must be (4)"),
    ({"seq_lens": torch.tensor([4, 9, 1])}, "b_seq_len has dtype int64, must be one of int32"),
    ({"max_query_len": -1}, "max_input_len=-1 must be at least 0"),
    ({"max_seq_len": -3}, "max_seq_len=-3 must be at least 0"),
    ({"output_scale": ONE}, "fp8_out_scale must be None for o of dtype float32"),
    ({"sliding_window": -2}, "sliding_window=-2 must be at least -1"),
]

CHUNKED_REFUSALS: list[tuple[Arguments, str]] = [
    ({"new_keys": None}, "key must be a torch.Tensor, not NoneType"),
    ({"new_values": torch.zeros(3, 2, 8)}, "value has shape (3, 2, 8), must be (any, 2, 16)"),
    ({"query_start_loc": None}, "query_start_loc must be a torch.Tensor, not NoneType"),
    ({"max_query_len": -1}, "max_query_len=-1 must be at least 0"),
    ({"output_scale": ONE}, "output_scale must be None for output of dtype float32"),
]


@pytest.mark.parametrize(("changes", "message"), CONTEXT_REFUSALS, ids=[message for _, message in CONTEXT_REFUSALS])
def test_context_attention_names_its_own_arguments(changes: Arguments, message: str) -> None:
    with pytest.raises(ContractError) as refusal:
        context_attention_fwd(**for_context(changes))
    assert str(refusal.value).startswith(message)


@pytest.mark.parametrize(("changes", "message"), CHUNKED_REFUSALS, ids=[message for _, message in CHUNKED_REFUSALS])
def test_mixed_launcher_names_its_own_arguments(changes: Arguments, message: str) -> None:
    with pytest.raises(ContractError) as refusal:
        chunked_prefill_paged_decode(**for_chunked(changes))
    assert str(refusal.value).startswith(message)


def test_every_form_of_no_window_gives_the_same_bits() -> None:
    outputs = []
    for sliding_window in (None, 0, -1, 9):
        arguments = for_context({"query": torch.randn(3, 4, 16, generator=torch.Generator().manual_seed(0))})
        arguments["sliding_window"] = sliding_window
        arguments["v"] = torch.arange(96.0).view(3, 2, 16)
        with SimulatorBackend().running() as watch:
            context_attention_fwd(**arguments)
        assert not watch.observations
        outputs.append(arguments["o"])
    assert all(torch.equal(outputs[0], output) for output in outputs[1:])
    assert (outputs[0] != 0).any()


def test_context_attention_writes_no_token_past_max_input_len() -> None:
    arguments = for_context({"query_start_loc": torch.tensor([0, 0, 0, 3], dtype=torch.int32), "max_query_len": 0})
    arguments["o"].fill_(7.0)
    context_attention_fwd(**arguments)
    assert (arguments["o"] == 7.0).all()


@pytest.mark.parametrize("name", ACCEPTED)
def test_legal_arguments_are_accepted(name: str) -> None:
    with SimulatorBackend().running() as watch:
        paged_attention_decode(**(valid() | ACCEPTED[name]))
    assert not watch.observations


def test_nothing_is_written_without_sequences_or_tokens() -> None:
    no_sequences: Arguments = {
        "query_start_loc": torch.zeros(1, dtype=torch.int32),
        "seq_lens": torch.zeros(0, dtype=torch.int32),
        "block_table": torch.zeros(0, 0, dtype=torch.int32),
    }
    no_tokens: Arguments = {
        "query": torch.zeros(0, 4, 16),
        "query_start_loc": torch.zeros(4, dtype=torch.int32),
        "filter_by_query_len": True,
    }
    for changes in (no_sequences, no_tokens):
        arguments = valid() | changes
        arguments["output"].fill_(7.0)
        paged_attention_decode(**arguments)
        assert (arguments["output"] == 7.0).all()
