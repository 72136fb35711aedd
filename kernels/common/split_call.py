"""One call of a launcher over split caches: its arguments by name, their contract, and what the kernels take.

Paged decode, context attention, or both for a mixed batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from .arguments import Arguments, Tiling, Variant, kernel_window, output_arguments
from .contract import (
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
from .launch import compiler_options, head_size_padded_for, tile_size_for
from .paged_cache import Scales, SplitKeys, SplitValues
from .rows import Batch, Tokens
from .scores import Scores

FP8_OF_NAME = {
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
KV_CACHE_DTYPES = ("auto", *FP8_OF_NAME)
_REQUIRED = ("query", "output", "key_cache", "value_cache", "block_table", "seq_lens")
_SOMETIMES = ("query_start_loc", "new_keys", "new_values")
_OPTIONAL = ("k_scale", "v_scale", "alibi_slopes", "output_scale", "sinks")


@dataclass(frozen=True)
class SplitCall:
    """The arguments of one call; `names` maps them to the launcher's own argument names where those differ.

    Shapes: num_seqs B, num_query_heads Hq, num_kv_heads Hkv, head_size D; x divides D.
    """

    query: torch.Tensor
    """`[T, Hq, D]`"""
    output: torch.Tensor
    """`[T or more, Hq, D]`"""
    key_cache: torch.Tensor
    """`[num_blocks, Hkv, D // x, block_size, x]`"""
    value_cache: torch.Tensor
    """`[num_blocks, Hkv, D, block_size]`"""
    block_table: torch.Tensor
    """`[B or more, max_blocks]` int32"""
    query_start_loc: torch.Tensor | None
    """`[B + 1]` int32; None where token i is sequence i"""
    seq_lens: torch.Tensor
    """`[B]` int32"""
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None
    kv_cache_dtype: str = "auto"
    alibi_slopes: torch.Tensor | None = None
    sliding_window: int | None = None
    sm_scale: float | None = None
    output_scale: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    new_keys: torch.Tensor | None = None
    """`[T or more, Hkv, D]`, None for a launcher that reads new tokens from the cache"""
    new_values: torch.Tensor | None = None
    max_query_len: int = 1
    max_seq_len: int = 0
    tile_size: int | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    def name(self, argument: str) -> str:
        """Return the launcher's own name of an argument."""
        return self.names.get(argument, argument)

    @property
    def num_seqs(self) -> int:
        """How many sequences the batch has."""
        return self.seq_lens.shape[0]

    @property
    def head_size(self) -> int:
        """The length of one query, key or value."""
        return self.query.shape[2]

    @property
    def num_kv_heads(self) -> int:
        """How many heads the caches have."""
        return self.key_cache.shape[1]

    @property
    def num_queries_per_kv(self) -> int:
        """How many query heads share a KV head."""
        return self.query.shape[1] // self.num_kv_heads

    @property
    def window(self) -> int:
        """The sliding window W, 0 for none."""
        return max(self.sliding_window or 0, 0)

    @property
    def softmax_scale(self) -> float:
        """The factor on the dot products."""
        return self.head_size**-0.5 if self.sm_scale is None else float(self.sm_scale)

    @property
    def has_work(self) -> bool:
        """Whether there is a token that may need an answer."""
        return self.query.shape[0] > 0 and self.num_seqs > 0 and self.max_query_len > 0

    @cached_property
    def stored_caches(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The two caches in the dtype of their elements: bytes become the fp8 type that `kv_cache_dtype` names."""
        if self.key_cache.dtype is not torch.uint8:
            return self.key_cache, self.value_cache
        dtype = FP8_OF_NAME[self.kv_cache_dtype]
        return self.key_cache.view(dtype), self.value_cache.view(dtype)


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


def split_arguments(call: SplitCall, *, block_m: int, block_q: int, is_decode: bool) -> Arguments:
    """Return what both kernels take, compiler options included, for blocks of `block_m` rows and `block_q` tokens."""
    head_size_padded = head_size_padded_for(call.head_size, call.query.dtype)
    tile_size = call.tile_size or tile_size_for(call.head_size, call.query.dtype, is_decode)
    return (
        output_arguments(call.output, call.output_scale)
        | split_cache_arguments(call)
        | {
            "queries": Tokens(
                ptr=call.query,
                stride_token=call.query.stride(0),
                stride_head=call.query.stride(1),
            ),
            "batch": Batch(
                query_start_loc_ptr=call.query_start_loc,
                seq_lens_ptr=call.seq_lens,
                block_table_ptr=call.block_table,
            ),
            "scores": Scores(softcap=None, alibi_slopes_ptr=call.alibi_slopes, qq_bias_ptr=None, sinks_ptr=call.sinks),
            "scales": Scales(
                softmax_scale=call.softmax_scale, q_scale_ptr=None, k_scale_ptr=call.k_scale, v_scale_ptr=call.v_scale
            ),
            "block_table_stride": call.block_table.stride(0),
            "window": kernel_window(call.window),
            "tiling": Tiling(
                BLOCK_Q=block_q, TILE_SIZE=tile_size, HEAD_SIZE=call.head_size, HEAD_SIZE_PADDED=head_size_padded
            ),
            "variant": variant_of(call, block_m),
        }
        | compiler_options(block_m, head_size_padded, tile_size, call.query.dtype)
    )


def split_cache_arguments(call: SplitCall) -> Arguments:
    """Return the arguments about the caches."""
    keys, values = call.stored_caches
    return {
        "keys": SplitKeys(
            ptr=keys,
            stride_block=keys.stride(0),
            stride_head=keys.stride(1),
            stride_chunk=keys.stride(2),
            stride_slot=keys.stride(3),
        ),
        "values": SplitValues(
            ptr=values,
            stride_block=values.stride(0),
            stride_head=values.stride(1),
            stride_dim=values.stride(2),
        ),
        "X": keys.shape[4],
    }


def variant_of(call: SplitCall, block_m: int) -> Variant:
    """Return what the kernels are compiled for beside the tiling."""
    keys, _ = call.stored_caches
    return Variant(
        BLOCK_M=block_m,
        NUM_QUERIES_PER_KV=call.num_queries_per_kv,
        BLOCK_SIZE=keys.shape[3],
        USE_WINDOW=call.window > 0,
        USE_SOFTCAP=False,
        USE_ALIBI=call.alibi_slopes is not None,
        USE_QQ_BIAS=False,
        USE_SINKS=call.sinks is not None,
        USE_FP8_Q=False,
        USE_FP8_KV=keys.dtype in FP8_DTYPES,
    )
