"""One call of a launcher over split caches: paged decode, context attention, or both for a mixed batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

FP8_OF_NAME = {
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
KV_CACHE_DTYPES = ("auto", *FP8_OF_NAME)


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
