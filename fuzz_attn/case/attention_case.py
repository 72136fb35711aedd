"""AttentionCase: the whole input of one attention call as small, frozen, plain data.

A case never holds a tensor. It holds recipes and a seed, from which :mod:`fuzz_attn.inputs.tensors` makes the same
tensors bit for bit on every machine. Cases compare by value, hash, and travel as JSON
(:mod:`fuzz_attn.counterexamples.counterexample`).

Vocabulary: a *row* is one (token, query head); ``context_len`` tokens of a sequence are in the cache before this step,
``query_len`` tokens are new, ``seq_len`` is their sum; the query token ``i`` sits at position ``context_len + i``.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from fuzz_attn.case.families import (
    DENSE_NEW_KEYS,
    FEATURES,
    PIECE_BYTES,
    SPLIT_CACHES,
    Family,
    Feature,
    answers,
    reads_dense,
)
from fuzz_attn.case.recipes import (
    AlibiRecipe,
    Count,
    NormalScores,
    NormalValues,
    Override,
    Plain,
    PoisonRecipe,
    QQBiasRecipe,
    ScoreRecipe,
    SinkRecipe,
    ValueRecipe,
)
from fuzz_attn.errors import CaseError

DTypeName = Literal["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
LaunchPath = Literal["auto", "2d", "3d"]

ITEM_BYTES: dict[DTypeName, int] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
"""Bytes of an element."""

FP8_DTYPES: tuple[DTypeName, ...] = ("float8_e4m3fn", "float8_e5m2")
"""One-byte types: as cache, they are dequantised; as queries, the dots run on the stored values."""

MAX_TOTAL_ELEMENTS = 2**26
"""No tensor of a case may hold more elements; keeps a mistyped file from filling the memory."""

MAX_OFFSET_ELEMENTS = 2**33
"""A cache may stretch so far, where most of it is addresses without memory."""

LARGEST_FIRST_BLOCK = 2**31 - 2**22
"""Page numbers are 32-bit integers, also where a page is so small that so many of them do not reach far."""

SMALLEST_NUMBER, LARGEST_NUMBER = 2.0**-126, 2.0**126
"""Bounds of scales and soft caps: in float32, which is what kernels get, they and their reciprocals are normal."""

Positive: TypeAlias = Annotated[int, Meta(ge=1, le=2**20)]
Seed: TypeAlias = Annotated[int, Meta(ge=0, lt=2**53)]


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
    head_size: Annotated[int, Meta(ge=1, le=1024)] = 16

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
    """Per-tensor scales of one-byte types: real value = stored value * scale. 1 wherever the type is not fp8."""

    q: float = 1.0
    k: float = 1.0
    v: float = 1.0
    out: float = 1.0


class PageLayout(Plain, frozen=True):
    """Where the keys lie: how logical pages become physical ones, and what surrounds them.

    ``shared_prefix`` pages at the start are the same physical ones in every sequence that is long enough.
    ``repeated`` lets one sequence use the same physical page twice. ``spare_blocks`` belong to nobody and hold poison.
    ``extra_columns`` widen the block table beyond the longest sequence. ``first_block`` is the lowest page number in
    use: the pages before it are addresses without memory, so that a case of kilobytes reaches beyond 2^31 elements.
    """

    block_size: Annotated[int, Meta(ge=1, le=4096)] = 16
    permuted: bool = False
    shared_prefix: Count = 0
    repeated: bool = False
    spare_blocks: Count = 0
    extra_columns: Count = 0
    first_block: Annotated[int, Meta(ge=0, lt=2**31)] = 0


class Strides(Plain, frozen=True):
    """How the tensors lie in memory. Paddings are in elements; the padding itself is poisoned.

    ``cache`` is ``separate``, or a view of one allocation ``[2, num_blocks, ...]`` (``kv_first``) or
    ``[num_blocks, 2, ...]`` (``blocks_first``), or ``[num_blocks, num_kv_heads, block_size, head_size]`` seen through a
    transpose (``heads_first``). In a split cache the rows of a page lie together, and ``cache_slot`` pads the page.
    ``new_token`` and ``new_head`` are paddings of the densely packed new keys and values. ``value_slot`` adds to the
    ``cache_slot`` of V alone, where its cache lies apart from that of K.
    """

    q_token: Count = 0
    q_head: Count = 0
    out_token: Count = 0
    out_head: Count = 0
    cache: Literal["separate", "kv_first", "blocks_first", "heads_first"] = "separate"
    cache_slot: Count = 0
    block_table: Count = 0
    new_token: Count = 0
    new_head: Count = 0
    value_slot: Count = 0


class LaunchHints(Plain, frozen=True):
    """How the launcher is asked to run, where the target's signature lets it be asked.

    ``num_segments`` counts for ``3d`` alone (0: the launcher's choice); ``tile_size`` 0 is the launcher's choice.
    """

    path: LaunchPath = "auto"
    num_segments: Annotated[int, Meta(ge=0, le=256)] = 0
    tile_size: Annotated[int, Meta(ge=0, le=256)] = 0


class CompileKey(Plain, frozen=True):
    """What makes Triton compile anew: everything that a kernel of this family takes as a constexpr or a dtype.

    It leaves out what Triton sees in the arguments themselves, such as strides of 1, and the type of the sinks, which
    is not float32 in one case of twenty.

    Drawn before the rest of a case, from a bounded set, because compiling is what a campaign spends its time on.
    """

    family: Family = "unified"
    dtypes: DTypes = DTypes()
    num_queries_per_kv: Positive = 1
    head_size: Annotated[int, Meta(ge=1, le=1024)] = 16
    block_size: Annotated[int, Meta(ge=1, le=4096)] = 16
    window: bool = False
    softcap: bool = False
    alibi: bool = False
    qq_bias: bool = False
    sinks: bool = False
    filter_by_query_len: bool = False
    launch: LaunchHints = LaunchHints()


class AttentionCase(Plain, frozen=True):
    """The whole input of one attention call. Raises :class:`CaseError` where its parts contradict each other.

    ``filter_by_query_len``, ``uint8_cache`` and ``stale_cache`` are features that only some families have
    (:mod:`fuzz_attn.case.families`). ``calm`` makes most rows weigh their keys nearly alike, whatever the recipes;
    ``marks`` puts a mark of each key into every other column of V. So keys count that the recipes alone would hide
    (:mod:`fuzz_attn.inputs.numbers`).
    """

    sequences: tuple[Sequence, ...]
    family: Family = "unified"
    heads: HeadLayout = HeadLayout()
    dtypes: DTypes = DTypes()
    pages: PageLayout = PageLayout()
    softmax_scale: float = 1.0
    window: Count = 0
    softcap: float = 0.0
    alibi: AlibiRecipe | None = None
    qq_bias: QQBiasRecipe | None = None
    sinks: SinkRecipe | None = None
    scales: Scales = Scales()
    scores: ScoreRecipe = NormalScores()
    values: ValueRecipe = NormalValues()
    calm: bool = False
    marks: bool = False
    overrides: tuple[Override, ...] = ()
    strides: Strides = Strides()
    padded_tokens: Count = 0
    poison: PoisonRecipe = PoisonRecipe()
    launch: LaunchHints = LaunchHints()
    filter_by_query_len: bool = False
    uint8_cache: bool = False
    stale_cache: bool = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        """Check what no single field can know; msgspec turns the error into one that names the file's path."""
        super().__post_init__()
        _check_dtypes(self.dtypes, self.scales)
        _check_family(self)
        _check_numbers(self)
        _check_size(self)

    @property
    def num_tokens(self) -> int:
        """Query tokens of all sequences, the padded rows not counted."""
        return sum(sequence.query_len for sequence in self.sequences)

    @property
    def max_query_len(self) -> int:
        """The longest query of the batch; 0 for an empty one."""
        return max((sequence.query_len for sequence in self.sequences), default=0)

    @property
    def max_seq_len(self) -> int:
        """The longest sequence of the batch; 0 for an empty one."""
        return max((sequence.seq_len for sequence in self.sequences), default=0)

    @property
    def total_keys(self) -> int:
        """Keys of all sequences, shared ones counted each time."""
        return sum(sequence.seq_len for sequence in self.sequences)

    @property
    def answers(self) -> tuple[bool, ...]:
        """For each sequence, whether the target writes its rows; the others stay as they are."""
        return tuple(
            answers(self.family, s.query_len, filter_by_query_len=self.filter_by_query_len) for s in self.sequences
        )

    @property
    def reads_dense(self) -> tuple[bool, ...]:
        """For each sequence, whether its new tokens' keys are read densely packed instead of from the cache."""
        return tuple(reads_dense(self.family, s.query_len) for s in self.sequences)

    @property
    def compile_key(self) -> CompileKey:
        """The part of the case that decides whether a kernel must be compiled anew."""
        return CompileKey(
            family=self.family,
            dtypes=self.dtypes,
            num_queries_per_kv=self.heads.num_queries_per_kv,
            head_size=self.heads.head_size,
            block_size=self.pages.block_size,
            window=self.window > 0,
            softcap=self.softcap > 0,
            alibi=self.alibi is not None,
            qq_bias=self.qq_bias is not None,
            sinks=self.sinks is not None,
            filter_by_query_len=self.filter_by_query_len,
            launch=self.launch,
        )


def page_elements(family: Family, heads: HeadLayout, block_size: int, strides: Strides) -> tuple[int, int]:
    """Return the elements from one page to the next, of K's cache and of V's, whose pages are never smaller.

    For all caches of which ``first_block`` may be above 0.
    """
    rows, gap = block_size * heads.num_kv_heads, strides.cache_slot
    if family in SPLIT_CACHES:
        keys, more = rows * heads.head_size + gap, strides.value_slot
    else:
        keys, more = rows * (heads.head_size + gap), rows * strides.value_slot
    return (2 * keys, 2 * keys) if strides.cache == "blocks_first" else (keys, keys + more)


def is_fp8(dtype: DTypeName) -> bool:
    """Return whether the type is one byte wide and therefore comes with a scale."""
    return dtype in FP8_DTYPES


def piece_size(dtype: DTypeName) -> int:
    """Return ``x``, the elements of a key that lie together in a split cache of the type."""
    return PIECE_BYTES // ITEM_BYTES[dtype]


def inexpressible(case: AttentionCase, family: Family) -> str:
    """Return why a case is beyond a family's interface, or an empty string where the family can express it."""
    beyond = [name for name in _features(case) if name not in FEATURES[family]]
    if beyond:
        return f"family={family!r} has no {beyond[0]}"
    if family in SPLIT_CACHES:
        piece = piece_size(case.dtypes.kv)
        if case.heads.head_size % piece:
            return f"heads.head_size={case.heads.head_size} must be a multiple of {piece} for family={family!r}"
        if case.strides.cache == "heads_first":
            return f"strides.cache={case.strides.cache!r} must be another one for family={family!r}"
        if case.launch.path != "auto":
            return f"launch.path={case.launch.path!r} must be 'auto' for family={family!r}"
    if family == "paged" and not case.filter_by_query_len:
        longest = max((abs(s.query_len - 1) for s in case.sequences), default=0)
        if longest:
            return "every sequence must have query_len=1 for family='paged' without filter_by_query_len"
    return ""


def _features(case: AttentionCase) -> Iterator[Feature]:
    """Yield the features of a case that some family cannot express."""
    on: dict[Feature, bool] = {
        "softcap": case.softcap > 0,
        "qq_bias": case.qq_bias is not None,
        "fp8_q": is_fp8(case.dtypes.q),
        "filter_by_query_len": case.filter_by_query_len,
        "uint8_cache": case.uint8_cache,
        "stale_cache": case.stale_cache,
        "large_offsets": case.pages.first_block > 0,
    }
    yield from (name for name, present in on.items() if present)


def _check_family(case: AttentionCase) -> None:
    reason = inexpressible(case, case.family)
    if reason:
        raise CaseError(reason)
    if case.uint8_cache and not is_fp8(case.dtypes.kv):
        raise CaseError(f"uint8_cache=True must be False for a cache of {case.dtypes.kv!r}, which is not fp8")


def _check_dtypes(dtypes: DTypes, scales: Scales) -> None:
    if not is_fp8(dtypes.kv) and dtypes.kv != dtypes.q:
        raise CaseError(f"dtypes.kv={dtypes.kv!r} must be an fp8 type or equal to dtypes.q={dtypes.q!r}")
    for name, dtype in (("q", dtypes.q), ("k", dtypes.kv), ("v", dtypes.kv), ("out", dtypes.out)):
        scale = getattr(scales, name)
        if not SMALLEST_NUMBER <= scale <= LARGEST_NUMBER:
            raise CaseError(f"scales.{name}={scale} must be positive and finite, from 2**-126 to 2**126")
        if scale != 1.0 and not is_fp8(dtype):
            raise CaseError(f"scales.{name}={scale} must be 1 for the type {dtype!r}, which is not fp8")


def _check_numbers(case: AttentionCase) -> None:
    if case.softmax_scale and not SMALLEST_NUMBER <= abs(case.softmax_scale) <= LARGEST_NUMBER:
        raise CaseError(f"softmax_scale={case.softmax_scale} must be 0 or finite, of a size from 2**-126 to 2**126")
    if case.softcap and not SMALLEST_NUMBER <= case.softcap <= LARGEST_NUMBER:
        raise CaseError(f"softcap={case.softcap} must be 0 or positive and finite, from 2**-126 to 2**126")
    if case.launch.num_segments and case.launch.path != "3d":
        raise CaseError(f"launch.num_segments={case.launch.num_segments} must be 0 for the path {case.launch.path!r}")


def _check_size(case: AttentionCase) -> None:
    for name, size in (*_query_sizes(case), *_cache_sizes(case)):
        if size > MAX_TOTAL_ELEMENTS:
            raise CaseError(f"{name} of the case would hold {size} elements, more than {MAX_TOTAL_ELEMENTS}")
    if case.pages.first_block:
        _check_large_offsets(case)


def _check_large_offsets(case: AttentionCase) -> None:
    first, size = case.pages.first_block, case.pages.block_size
    if case.strides.cache == "kv_first":
        raise CaseError(f"pages.first_block={first} must be 0 for strides.cache='kv_first', where V follows all of K")
    end = first + case.total_keys // size + len(case.sequences) + case.pages.spare_blocks + 1
    if end >= 2**31:
        raise CaseError(f"pages.first_block={first} must leave page numbers below 2**31")
    elements = end * page_elements(case.family, case.heads, size, case.strides)[1]
    if elements > MAX_OFFSET_ELEMENTS:
        raise CaseError(f"pages.first_block={first} would stretch a cache over {elements} elements, more than 2**33")


def _query_sizes(case: AttentionCase) -> Iterator[tuple[str, int]]:
    """Yield the elements of everything that grows with tokens and query heads, memory between rows included."""
    heads, strides, launch = case.heads, case.strides, case.launch
    tokens, query_heads = max(1, case.num_tokens + case.padded_tokens), heads.num_query_heads
    if case.family in DENSE_NEW_KEYS:
        yield "new_keys", tokens * (heads.num_kv_heads * (heads.head_size + strides.new_head) + strides.new_token)
    yield "query", tokens * (query_heads * (heads.head_size + strides.q_head) + strides.q_token)
    yield "output", tokens * (query_heads * (heads.head_size + strides.out_head) + strides.out_token)
    if launch.path == "3d":
        padded_head = 1 << (heads.head_size - 1).bit_length()
        yield "the segments' partial output", tokens * query_heads * launch.num_segments * padded_head
    if case.qq_bias is not None:
        live = max(1, case.max_query_len)
        columns = live + max(0, case.qq_bias.extra_columns) + case.qq_bias.row_padding
        yield "qq_bias", (live + case.qq_bias.extra_rows) * columns


def _cache_sizes(case: AttentionCase) -> Iterator[tuple[str, int]]:
    """Yield the elements of everything that grows with keys and pages: each cache, and the table of the pages."""
    heads, pages, num_seqs = case.heads, case.pages, len(case.sequences)
    slots = case.total_keys + (num_seqs + pages.spare_blocks + 1) * pages.block_size
    yield "a cache", slots * heads.num_kv_heads * (heads.head_size + case.strides.cache_slot + case.strides.value_slot)
    longest = -(-case.max_seq_len // pages.block_size)
    yield "block_table", num_seqs * (longest + pages.extra_columns + case.strides.block_table)


def rearranged(
    case: AttentionCase, *, family: Family | None = None, strides: Strides | None = None, **changes: object
) -> AttentionCase:
    """Return the case with some fields changed, those among them that say how its caches lie.

    Far pages stay about as many elements into their caches, so their numbers change.
    """
    family, strides = family or case.family, strides or case.strides
    if case.pages.first_block:
        before = page_elements(case.family, case.heads, case.pages.block_size, case.strides)[1]
        after = page_elements(family, case.heads, case.pages.block_size, strides)[1]
        first_block = min(-(-case.pages.first_block * before // after), LARGEST_FIRST_BLOCK)
        changes["pages"] = msgspec.structs.replace(case.pages, first_block=first_block)
    return replace(case, family=family, strides=strides, **changes)


def replace(case: AttentionCase, **changes: object) -> AttentionCase:
    """Return the case with some fields changed, checked like a new one."""
    changed: AttentionCase = msgspec.structs.replace(case, **changes)
    return changed
