"""The parts of a case: sequences, heads, types, scales, pages, strides, launch hints."""

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from fuzz_attn.case.dtypes import DTypeName
from fuzz_attn.case.plain import Count, Plain, Positive

LaunchPath = Literal["auto", "2d", "3d"]
CacheArrangement = Literal["separate", "kv_first", "blocks_first", "heads_first"]
HeadSize: TypeAlias = Annotated[int, Meta(ge=1, le=1024)]
BlockSize: TypeAlias = Annotated[int, Meta(ge=1, le=4096)]
Gap: TypeAlias = Annotated[int, Meta(ge=0, lt=2**33)]


class Sequence(Plain, frozen=True):
    """One sequence of the batch. ``query_len == 0`` is legal: schedulers pad batches with empty sequences."""

    query_len: Count
    context_len: Count = 0

    @property
    def seq_len(self) -> int:
        """Keys of the sequence, its new tokens included."""
        return self.query_len + self.context_len


class HeadLayout(Plain, frozen=True):
    """Query head ``h`` reads KV head ``h // num_queries_per_kv``; 1 is MHA, one KV head is MQA, the rest GQA."""

    num_kv_heads: Positive = 1
    num_queries_per_kv: Positive = 1
    head_size: HeadSize = 16

    @property
    def num_query_heads(self) -> int:
        """Heads of ``q`` and ``out``."""
        return self.num_kv_heads * self.num_queries_per_kv


class DTypes(Plain, frozen=True):
    """Element types of the queries, of both caches, and of the output."""

    q: DTypeName = "float32"
    kv: DTypeName = "float32"
    out: DTypeName = "float32"


class Scales(Plain, frozen=True):
    """Per-tensor scales of one-byte types: real value = stored value * scale. 1 for every other type.

    Scales may be negative. Those of q, k and v may be 0; the output is divided by its own scale.
    """

    q: float = 1.0
    k: float = 1.0
    v: float = 1.0
    out: float = 1.0


class PageLayout(Plain, frozen=True):
    """How logical pages become physical ones, and what surrounds them.

    ``shared_prefix`` pages at the start are the same physical ones in every sequence that is long enough.
    ``repeated`` lets one sequence use the same physical page twice. ``spare_blocks`` belong to no sequence and hold
    poison. ``extra_columns`` widen the block table beyond the longest sequence. ``first_block`` is the lowest page
    number in use. The pages before it are addresses without memory: a case of kilobytes reaches beyond 2^31 elements.
    """

    block_size: BlockSize = 16
    permuted: bool = False
    shared_prefix: Count = 0
    repeated: bool = False
    spare_blocks: Count = 0
    extra_columns: Count = 0
    first_block: Annotated[int, Meta(ge=0, lt=2**31)] = 0


class Strides(Plain, frozen=True):
    """How the tensors lie in memory. Paddings are in elements and hold poison.

    ``cache`` is ``separate``, or a view of one allocation ``[2, num_blocks, ...]`` (``kv_first``) or
    ``[num_blocks, 2, ...]`` (``blocks_first``), or ``[num_blocks, num_kv_heads, block_size, head_size]`` seen through a
    transpose (``heads_first``). ``cache_slot`` pads each row of the caches, or each page of a split cache. In two
    allocations ``value_slot`` adds to it in the cache of V. ``new_token`` and ``new_head`` pad the packed new keys and
    values; ``new_value_token`` and ``new_value_head`` add to these paddings in the packed values.

    In a split cache ``page_head`` pads each head of a page. In two allocations ``key_chunk`` pads each chunk of
    the keys, ``key_slot`` each slot, and ``value_dim`` each dimension of the values. ``key_piece`` is the number of
    elements of a key that are contiguous; 0 means 16 bytes.

    A padding of at least ``FAR_GAP`` after rows of q, out, the new keys, the new values or the block table is addresses
    without memory: a case of kilobytes reaches beyond 2^31 elements.
    """

    q_token: Gap = 0
    q_head: Count = 0
    out_token: Gap = 0
    out_head: Count = 0
    cache: CacheArrangement = "separate"
    cache_slot: Count = 0
    block_table: Gap = 0
    new_token: Gap = 0
    new_head: Count = 0
    value_slot: Count = 0
    new_value_token: Gap = 0
    new_value_head: Count = 0
    page_head: Count = 0
    key_chunk: Count = 0
    key_slot: Count = 0
    value_dim: Count = 0
    key_piece: Annotated[int, Meta(ge=0, le=256)] = 0


INNER_STRIDES: Final = ("new_value_token", "new_value_head", "page_head", "key_chunk", "key_slot", "value_dim")
"""The paddings of :class:`Strides` inside pages, and of new values in addition to new keys."""

FAR_GAP: Final = 2**24
"""The least padding, in elements, that is addresses without memory; longer than any padding that has memory."""

FAR_STRIDES: Final = ("q_token", "out_token", "block_table", "new_token", "new_value_token")
"""The paddings of :class:`Strides` that may be as long as ``FAR_GAP``."""


def near_gap(gap: int) -> int:
    """Return the elements of a padding that have memory: all, or none if it is far."""
    return gap if gap < FAR_GAP else 0


def near_strides(strides: Strides) -> Strides:
    """Return the strides without paddings that are addresses without memory."""
    return msgspec.structs.replace(strides, **{name: near_gap(getattr(strides, name)) for name in FAR_STRIDES})


class CallForm(Plain, frozen=True):
    """How arguments are passed where the contract allows several forms with the same meaning.

    ``scales`` of q, k and v are vectors of one element, tensors without dimensions (``scalar``), expanded over
    sequences and heads with strides of 0 (``expanded``), or None where they are 1 (``omitted``). ``window`` selects a
    form of the family: the right side of a window size, or the value that means no window. ``cache_name`` selects a
    name of the cache's type. With ``query_starts`` False the starts are not passed where they are not needed. The block
    table has ``extra_table_rows`` more rows than sequences. The output has ``extra_output_rows`` more rows than q, and
    the packed new keys and values have ``extra_new_rows`` more.
    """

    scales: Literal["vector", "scalar", "expanded", "omitted"] = "vector"
    window: Annotated[int, Meta(ge=0, le=2)] = 0
    cache_name: Annotated[int, Meta(ge=0, le=2)] = 0
    query_starts: bool = True
    extra_table_rows: Count = 0
    extra_output_rows: Count = 0
    extra_new_rows: Count = 0


class LaunchHints(Plain, frozen=True):
    """How the launcher should run, as far as the target's signature takes hints.

    ``num_segments`` is for the path ``3d`` only. 0 leaves ``num_segments`` or ``tile_size`` to the launcher.
    """

    path: LaunchPath = "auto"
    num_segments: Annotated[int, Meta(ge=0, le=256)] = 0
    tile_size: Annotated[int, Meta(ge=0, le=256)] = 0
