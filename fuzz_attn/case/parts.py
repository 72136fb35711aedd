"""The parts of a case: sequences, heads, types, scales, pages, strides, launch hints. Imports neither torch nor numpy.

One table has what the package needs to know about each element type.
"""

from typing import Annotated, Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec
from msgspec import Meta

from fuzz_attn.case.plain import Count, Finite, Plain, Positive, Whole

DTypeName = Literal["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


class DType(NamedTuple):
    """One element type.

    torch calls it ``name``, and so does numpy or ml_dtypes; ``triton`` is its name in Triton's language. ``largest`` is
    the largest finite number. One-byte types come with a scale: as cache they are dequantised, as queries the dot
    products run on the stored values.
    """

    name: DTypeName
    bytes: int
    triton: str
    largest: float
    smallest_normal: float


DTYPES: Final[dict[DTypeName, DType]] = {
    dtype.name: dtype
    for dtype in (
        DType("float32", 4, "fp32", (2.0 - 2.0**-23) * 2.0**127, 2.0**-126),
        DType("float16", 2, "fp16", 65504.0, 2.0**-14),
        DType("bfloat16", 2, "bf16", (2.0 - 2.0**-7) * 2.0**127, 2.0**-126),
        DType("float8_e4m3fn", 1, "fp8e4nv", 448.0, 2.0**-6),
        DType("float8_e5m2", 1, "fp8e5", 57344.0, 2.0**-14),
    )
}
"""Every element type by its name, the simplest first."""

FP8_DTYPES: Final = tuple(name for name, dtype in DTYPES.items() if dtype.bytes == 1)
WIDE_DTYPES: Final = tuple(name for name in DTYPES if name not in FP8_DTYPES)
"""The types that have no scale."""


def is_fp8(dtype: DTypeName) -> bool:
    """Return whether the type is one byte wide and therefore comes with a scale."""
    return dtype in FP8_DTYPES


LaunchPath = Literal["auto", "2d", "3d"]
CacheArrangement = Literal["separate", "kv_first", "blocks_first", "heads_first"]
HeadSize: TypeAlias = Annotated[int, Meta(ge=1, le=1024)]
ValueSize: TypeAlias = Annotated[int, Meta(ge=0, le=1024)]
BlockSize: TypeAlias = Annotated[int, Meta(ge=1, le=4096)]
NumWarps: TypeAlias = Literal[1, 2, 4, 8, 16, 32]
NUM_WARPS: Final[tuple[NumWarps, ...]] = get_args(NumWarps)
MOST_STAGES: Final = 8
FarAxis = Literal[
    "q_token",
    "q_head",
    "out_token",
    "out_head",
    "new_token",
    "new_head",
    "block_table",
    "cache_slot",
    "cache_head",
    "cache_dim",
    "bias_row",
    "bias_column",
    "lse_token",
    "lse_head",
]
"""An axis along which the last index of a tensor lies at least 2^31 elements from the first one.

``new_token`` and ``new_head`` are axes of the packed new keys and values, those of ``cache_`` of both caches, and
``block_table`` is a row of it. ``cache_dim`` is only in split caches: a chunk of the keys, a dimension of the values;
there ``cache_slot`` is an axis of the keys only.
"""


class Sequence(Plain, frozen=True):
    """One sequence of the batch. ``query_len == 0`` is legal: schedulers pad batches with empty sequences.

    A decode of length 0 has ``query_len`` 1 and ``context_len`` -1: a row of q and of the output, and no key, not even
    its own. Graphs of a fixed size pad a batch with such rows. Where a family allows any lengths, a negative
    ``context_len`` means fewer keys than query tokens.
    """

    query_len: Count
    context_len: Annotated[int, Meta(ge=-(2**20), le=2**20)] = 0

    @property
    def seq_len(self) -> int:
        """Keys of the sequence, its new tokens included."""
        return self.query_len + self.context_len

    @property
    def has_no_key(self) -> bool:
        """Whether it has query tokens and no key, such as a decode of length 0."""
        return self.seq_len == 0 < self.query_len


class HeadLayout(Plain, frozen=True):
    """Query head ``h`` reads KV head ``h // num_queries_per_kv``; 1 is MHA, one KV head is MQA, the rest GQA.

    ``value_size`` 0 means that values are as large as keys.
    """

    num_kv_heads: Positive = 1
    num_queries_per_kv: Positive = 1
    head_size: HeadSize = 16
    value_size: ValueSize = 0

    @property
    def head_size_v(self) -> int:
        """Elements of a value, and of the output of one head."""
        return self.value_size or self.head_size

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

    Where keys are packed, the pages of all sequences follow each other in order: a ``block_size`` above 1 leaves rows
    without a key between sequences, and ``spare_blocks`` are rows behind the last one.
    """

    block_size: BlockSize = 16
    permuted: bool = False
    shared_prefix: Count = 0
    repeated: bool = False
    spare_blocks: Count = 0
    extra_columns: Count = 0
    first_block: Annotated[int, Meta(ge=0, lt=2**31)] = 0

    @property
    def are_moved(self) -> bool:
        """Whether the pages are anything but one after the other, in a table as wide as the longest sequence."""
        return bool(self.permuted or self.shared_prefix or self.repeated or self.extra_columns or self.first_block)


LARGEST_FIRST_BLOCK: Final = 2**31 - 2**22
"""Page numbers are 32-bit integers: pages of a few elements cannot lie 2^31 elements into a cache."""


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

    Along the axes ``far``, at most one of each tensor, only the elements and what is around them have memory: a case of
    kilobytes reaches beyond 2^31 elements. An axis of one index is not far.
    """

    q_token: Count = 0
    q_head: Count = 0
    out_token: Count = 0
    out_head: Count = 0
    cache: CacheArrangement = "separate"
    cache_slot: Count = 0
    block_table: Count = 0
    new_token: Count = 0
    new_head: Count = 0
    value_slot: Count = 0
    new_value_token: Count = 0
    new_value_head: Count = 0
    page_head: Count = 0
    key_chunk: Count = 0
    key_slot: Count = 0
    value_dim: Count = 0
    key_piece: Annotated[int, Meta(ge=0, le=256)] = 0
    far: tuple[FarAxis, ...] = ()


INNER_STRIDES: Final = ("new_value_token", "new_value_head", "page_head", "key_chunk", "key_slot", "value_dim")
"""The paddings of :class:`Strides` inside pages, and of new values in addition to new keys."""

FEWEST_FAR: Final = 3
"""Indices of a far axis at least: with two the stride itself would need 64 bits."""
FAR_AXES: Final[dict[FarAxis, str]] = {
    "q_token": "tokens of q",
    "q_head": "heads of q",
    "out_token": "tokens of the output",
    "out_head": "heads of the output",
    "new_token": "tokens of the new keys and values",
    "new_head": "heads of the new keys and values",
    "block_table": "rows of the block table",
    "cache_slot": "slots of the caches",
    "cache_head": "heads of the caches",
    "cache_dim": "dimensions of the caches",
    "bias_row": "rows of the bias",
    "bias_column": "columns of the bias",
    "lse_token": "tokens of the log-sum-exp",
    "lse_head": "heads of the log-sum-exp",
}
"""The axes of :class:`Strides` that may be far, in words."""


def without_far(strides: Strides, *names: FarAxis) -> Strides:
    """Return the strides with these axes near."""
    return msgspec.structs.replace(strides, far=tuple(name for name in strides.far if name not in names))


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


PlainValue: TypeAlias = bool | Whole | Finite | Annotated[str, Meta(max_length=200)] | None
"""A value of an optional argument of a target."""
Argument: TypeAlias = tuple[Annotated[str, Meta(pattern=r"^\w+\Z", max_length=200)], PlainValue]
"""The name of an optional argument of a target, which no role has, and its value."""
MOST_ARGUMENTS: Final = 8
MOST_CONFIGURATIONS: Final = 1024


class LaunchHints(Plain, frozen=True):
    """How the launcher should run, as far as the target's signature takes hints.

    ``num_segments`` is for the path ``3d`` only. ``num_warps`` and ``num_stages`` are options of Triton's compiler that
    each launch of the target gets in place of its own; they matter on a GPU only. 0 leaves a number to the launcher.

    ``configuration`` numbers those that the pruning of an autotuner leaves, counted round and round, for each
    autotuned kernel of the target. ``arguments`` are optional ones that have another value than their defaults.
    """

    path: LaunchPath = "auto"
    num_segments: Annotated[int, Meta(ge=0, le=256)] = 0
    tile_size: Annotated[int, Meta(ge=0, le=256)] = 0
    num_warps: Literal[0] | NumWarps = 0
    num_stages: Annotated[int, Meta(ge=0, le=MOST_STAGES)] = 0
    configuration: Annotated[int, Meta(ge=0, lt=MOST_CONFIGURATIONS)] = 0
    arguments: Annotated[tuple[Argument, ...], Meta(max_length=MOST_ARGUMENTS)] = ()
