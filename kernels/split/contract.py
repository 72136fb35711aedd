"""The contract of the launchers over split caches: what is checked before a kernel is launched."""

import torch

from ..common.contract import (
    FLOAT_DTYPES,
    FP8_DTYPES,
    ContractError,
    check_batch,
    check_head_vector,
    check_heads,
    check_output_scale,
    check_queries,
    check_tensors,
    check_tile_size,
    require_dtype,
    require_finite,
    require_one_element,
    require_range,
    require_shape,
    require_unit_stride,
)
from .call import FP8_OF_NAME, KV_CACHE_DTYPES, SplitCall

_REQUIRED = ("query", "output", "key_cache", "value_cache", "block_table", "seq_lens")
_SOMETIMES = ("query_start_loc", "new_keys", "new_values")
_OPTIONAL = ("k_scale", "v_scale", "alibi_slopes", "output_scale", "sinks")


def check_split_call(call: SplitCall, *, needs_starts: bool, needs_new_tokens: bool) -> None:
    """Raise ContractError for the first argument that is outside of the contract.

    `needs_starts` requires `query_start_loc`; without it token i belongs to sequence i. `needs_new_tokens` requires
    dense keys and values of the new tokens.
    """
    needed = {"query_start_loc": needs_starts, "new_keys": needs_new_tokens, "new_values": needs_new_tokens}
    required = [*_REQUIRED, *(name for name in _SOMETIMES if needed[name])]
    optional = [*_OPTIONAL, *(name for name in _SOMETIMES if not needed[name])]
    check_tensors(
        {call.name(name): getattr(call, name) for name in required},
        {call.name(name): getattr(call, name) for name in optional},
    )
    check_queries((call.name("query"), call.name("output")), call.query, call.output, FLOAT_DTYPES)
    check_split_caches(call)
    names = (call.name("query_start_loc"), call.name("seq_lens"), call.name("block_table"))
    check_batch(names, call.query_start_loc, call.seq_lens, call.block_table)
    if not needs_starts:
        require_range(f"{call.name('query')}.shape[0]", call.query.shape[0], call.num_seqs)
    for name in ("new_keys", "new_values"):
        check_new_tokens(call, name)
    check_numbers(call)
    for name in ("alibi_slopes", "sinks"):
        check_head_vector(call.name(name), getattr(call, name), call.query.shape[1])
    for name in ("k_scale", "v_scale"):
        if getattr(call, name) is not None:
            require_one_element(call.name(name), getattr(call, name))
    check_output_scale((call.name("output_scale"), call.name("output")), call.output_scale, call.output)
    check_tile_size(call.tile_size, call.query.dtype)


def check_split_caches(call: SplitCall) -> None:
    """Check caches of shapes `[num_blocks, Hkv, D // x, block_size, x]` and `[num_blocks, Hkv, D, block_size]`."""
    key_name, value_name = call.name("key_cache"), call.name("value_cache")
    require_dtype(key_name, call.key_cache, stored_dtypes(call.kv_cache_dtype, call.query.dtype))
    require_dtype(value_name, call.value_cache, (call.key_cache.dtype,))
    require_shape(key_name, call.key_cache, (None, None, None, None, None))
    num_blocks, num_kv_heads, chunks, block_size, x = call.key_cache.shape
    if chunks * x != call.head_size:
        raise ContractError(f"{key_name} has {chunks} chunks of {x} elements, must have head_size={call.head_size}")
    require_range("block_size", block_size, 1)
    require_shape(value_name, call.value_cache, (num_blocks, num_kv_heads, call.head_size, block_size))
    require_unit_stride(key_name, call.key_cache)
    require_unit_stride(value_name, call.value_cache)
    check_heads(num_query_heads=call.query.shape[1], num_kv_heads=num_kv_heads)


def stored_dtypes(kv_cache_dtype: str, q_dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    """Return the dtypes that caches may have. Raises ContractError for an unknown `kv_cache_dtype`."""
    if kv_cache_dtype not in KV_CACHE_DTYPES:
        raise ContractError(f"{kv_cache_dtype=} must be one of {', '.join(KV_CACHE_DTYPES)}")
    if kv_cache_dtype == "auto":
        return (q_dtype, *FP8_DTYPES)
    return (FP8_OF_NAME[kv_cache_dtype], torch.uint8)


def check_new_tokens(call: SplitCall, argument: str) -> None:
    """Check that dense keys or values of the new tokens are `[any, Hkv, D]` of the queries' dtype."""
    tensor = getattr(call, argument)
    if tensor is not None:
        name = call.name(argument)
        require_dtype(name, tensor, (call.query.dtype,))
        require_shape(name, tensor, (None, call.num_kv_heads, call.head_size))
        require_unit_stride(name, tensor)


def check_numbers(call: SplitCall) -> None:
    """Check the ranges of the host numbers."""
    require_range(call.name("max_query_len"), call.max_query_len, 0)
    require_range(call.name("max_seq_len"), call.max_seq_len, 0)
    if call.sliding_window is not None:
        require_range("sliding_window", call.sliding_window, -1)
    if call.sm_scale is not None:
        require_finite("sm_scale", call.sm_scale)
