"""Write case: the input of one cache write as plain data, the domain of a target, and all aspects.

Keys and values of the new tokens are ``[num_tokens, num_heads, head_size]``. Slot ``s`` of a cache is place
``s % page_size`` of page ``s // page_size``. A skipped token has the slot -1.
"""

from __future__ import annotations

import zlib
from typing import Annotated, Final, Literal, TypeAlias, cast, get_args

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from fuzz_attn.case.aspect_table import AspectTable
from fuzz_attn.case.aspects import CONTRACT, SIMPLEST_SIZE
from fuzz_attn.case.case_fields import Seed
from fuzz_attn.case.contract_trial import ContractTrial, lines_of
from fuzz_attn.case.domain import sizes_of, within
from fuzz_attn.case.parts import DTYPES, DTypeName, is_fp8
from fuzz_attn.case.plain import Count, Plain, counted, shortest
from fuzz_attn.errors import CaseError
from fuzz_attn.operations.small_operation import (
    FAR_AXES,
    Fields,
    SmallDomain,
    far_aspect,
    far_words,
    fitting,
    when,
)

NAME: Final = "cache_write"
"""The operation, and its only family."""

ROLES: Final = {
    "key": "new keys, [num_tokens or more, num_heads, head_size]",
    "value": "new values, likewise",
    "key_cache": "cache of keys, written, [num_pages, page_size, num_heads, head_size]",
    "value_cache": "cache of values, likewise",
    "slot_mapping": "slot of each token, int64 [num_tokens], -1 for none",
    "k_scale": "scale of an fp8 cache of keys, float32 [1]",
    "v_scale": "scale of an fp8 cache of values, float32 [1]",
    "k_scale_cache": "scale of each slot and head of keys, written, float32 [num_pages, page_size, num_heads]",
    "v_scale_cache": "likewise of values",
    "kv_cache_dtype": "auto, fp8_e4m3, fp8_e5m2, int8_per_token_head or fp8_per_token_head, as a text",
    "kv_quant_mode": "0 without scales, 1 with one, 2 or 3 with a scale of each token and head in int8 or fp8",
    "kv_cache": "one cache, written, whose columns are those of keys and then those of values",
    "block_table": "page of each token, which is a sequence of its own, int32 [num_tokens, 1]",
    "seq_lens": "place of each token in its page, plus 1, int32 [num_tokens]",
    "query_start_loc": "0, 1, 2 and so on up to num_tokens: where sequences of one token start",
    "query_lens": "1 for each token",
    "max_query_len": "1",
}
"""The parameters that a target may have, in words."""
NAMES: Final = {
    "key": ("k", "keys", "k_states"),
    "value": ("v", "values", "v_states"),
    "key_cache": ("k_cache", "k_caches", "k_buffer"),
    "value_cache": ("v_cache", "v_caches", "v_buffer"),
    "slot_mapping": ("slots",),
    "block_table": ("block_offsets", "page_table"),
    "seq_lens": ("kv_seq_length", "kv_seqlens"),
    "query_start_loc": ("q_start_loc",),
    "query_lens": ("q_seq_length",),
    "max_query_len": ("max_q_seq_length", "max_q_seqlen"),
}
"""What published launchers call them."""
NEEDED: Final = (
    ("key", "value", "key_cache", "value_cache", "slot_mapping"),
    ("key", "value", "kv_cache", "slot_mapping"),
    ("key", "value", "key_cache", "value_cache", "block_table", "seq_lens"),
    ("key", "key_cache", "slot_mapping"),
)
"""Sets of roles, of which a target needs one. One without values is called a second time for them."""
SCALES: Final = ("k_scale", "v_scale")
"""The parameters that a target needs for fp8 caches with a scale for each cache."""
SCALE_CACHES: Final = ("k_scale_cache", "v_scale_cache")
"""The parameters that a target needs for caches with a scale for each token and head."""

NewType: TypeAlias = Literal["float32", "float16", "bfloat16"]
StoredType: TypeAlias = Literal[
    "same", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8_token_head", "float8_e4m3fn_token_head"
]
WriteAxis: TypeAlias = Literal[
    "key_token",
    "key_head",
    "value_token",
    "value_head",
    "caches_place",
    "caches_head",
    "scale_caches_page",
    "scale_caches_place",
    "scale_caches_head",
]
CacheType: TypeAlias = DTypeName | Literal["int8"]
OWN_SCALES: Final = "_token_head"
"""The end of a type of caches with a scale for each token and head, which the write computes."""
Size: TypeAlias = Annotated[int, Meta(ge=1, le=2**20)]
Scale: TypeAlias = Annotated[float, Meta(ge=2.0**-40, le=2.0**40)]
LARGEST: Final = {
    "num_tokens": 2**17 + 1,
    "num_heads": 1024,
    "head_size": 256,
    "page_size": 4096,
    "spare_pages": 2**17,
    "head_gap": 4096,
    "value_gap": 4096,
}
MOST_ELEMENTS: Final = 2**22
"""Elements of one cache, and of the new keys."""
LARGEST_NUMBER: Final = 3.5
"""No new number is larger, as a multiple of the magnitude."""
QUERY_HEADS: Final = 2
"""Heads of a fused tensor before those of the keys."""


def cache_type(stored_as: StoredType) -> CacheType:
    """Return the type of caches that do not have the type of the new keys."""
    return cast("CacheType", stored_as.removesuffix(OWN_SCALES))


class WriteKey(Plain, frozen=True):
    """What a kernel is compiled for."""

    dtype: NewType = "float32"
    stored_as: StoredType = "same"
    head_size: Size = SIMPLEST_SIZE
    page_size: Size = SIMPLEST_SIZE

    @property
    def number(self) -> int:
        """A number for the key, the same in every process."""
        return zlib.crc32(msgspec.json.encode((NAME, self.dtype, self.stored_as, self.head_size, self.page_size)))


class WriteCase(Plain, frozen=True, tag_field="operation", tag=NAME):
    """The input of one write; raises ``CaseError`` for sizes that are too large.

    New numbers are normal numbers times ``magnitude``; with ``zero_rows``, a quarter of the tokens and heads have only
    zeros, the first among them. Token i goes into slot i, or into any with ``shuffled``; with ``skipped`` a third of
    the tokens go nowhere, the first among them. ``spare_pages`` pages are more than the tokens need. ``heads_first``
    swaps places and heads in the memory of a page. ``head_gap`` elements of poison lie between heads of both caches,
    ``value_gap`` more in that of values. With ``fused``, keys and values are columns of one tensor that begins with
    queries. ``padded_tokens`` rows of keys and values belong to no token. With ``far``, the last page lies 2^31
    elements behind the first. So do the last indices of ``far_axes``, at most one of each tensor.
    """

    num_tokens: Size = 1
    num_heads: Size = 1
    head_size: Size = SIMPLEST_SIZE
    page_size: Size = SIMPLEST_SIZE
    spare_pages: Count = 0
    dtype: NewType = "float32"
    stored_as: StoredType = "same"
    magnitude: Scale = 1.0
    k_scale: Scale = 1.0
    v_scale: Scale = 1.0
    shuffled: bool = False
    skipped: bool = False
    heads_first: bool = False
    head_gap: Count = 0
    value_gap: Count = 0
    fused: bool = False
    padded_tokens: Count = 0
    far: bool = False
    seed: Seed = 0
    far_axes: tuple[WriteAxis, ...] = ()
    zero_rows: bool = False
    contract: ContractTrial | None = None

    def __post_init__(self) -> None:
        """Check the sizes; msgspec turns the error into one that names the place in the file."""
        if self.stored_as == self.dtype:
            force_setattr(self, "stored_as", "same")
        if not self.is_fp8 or self.per_token_head:
            force_setattr(self, "k_scale", 1.0)
            force_setattr(self, "v_scale", 1.0)
        super().__post_init__()
        for name, largest in LARGEST.items():
            if getattr(self, name) > largest:
                raise CaseError(f"{name}={getattr(self, name)} must be at most {largest}")
        if self.num_elements > MOST_ELEMENTS:
            raise CaseError(f"a cache has {self.num_elements} elements, must have at most {MOST_ELEMENTS}")
        force_setattr(self, "far_axes", fitting(self.far_axes, self.far_lengths, self._far_indices, self.num_elements))

    @property
    def cache_dtype(self) -> CacheType:
        """The type of the caches."""
        return self.dtype if self.stored_as == "same" else cache_type(self.stored_as)

    @property
    def per_token_head(self) -> bool:
        """Whether each token and head of the caches has a scale, which is written too."""
        return self.stored_as.endswith(OWN_SCALES)

    @property
    def is_fp8(self) -> bool:
        """Whether the caches have an fp8 type."""
        return self.cache_dtype != "int8" and is_fp8(self.cache_dtype)

    @property
    def overflows(self) -> bool:
        """Whether new numbers may lie beyond the largest of the caches and are finite in their own type."""
        if self.cache_dtype == "int8" or self.per_token_head:
            return False
        limit = DTYPES[self.cache_dtype].largest
        largest = min(LARGEST_NUMBER * self.magnitude, DTYPES[self.dtype].largest)
        return largest / min(self.k_scale, self.v_scale) > limit

    @property
    def is_far(self) -> bool:
        """Whether some addresses of the tensors have no memory."""
        return self.far or bool(self.far_axes)

    @property
    def far_lengths(self) -> dict[str, int]:
        """How many indices tokens may use of each axis that may be far.

        Keys and values in one tensor are not far, caches with far pages not along another axis.
        """
        places = self.page_size if self.shuffled else min(self.page_size, self.num_tokens)
        lacking = {"key", "value"} if self.fused else set()
        lacking |= {"caches"} if self.far else set()
        lacking |= set() if self.per_token_head else {"scale_caches"}
        lengths = self._far_indices | {name: self.num_tokens for name in get_args(WriteAxis) if name.endswith("_token")}
        lengths |= {name: places for name in get_args(WriteAxis) if name.endswith("_place")}
        return {name: length for name, length in lengths.items() if name.rpartition("_")[0] not in lacking}

    @property
    def _far_indices(self) -> dict[str, int]:
        """How many indices each axis has that may be far."""
        rows = self.num_tokens + self.padded_tokens
        lengths = {"token": rows, "head": self.num_heads, "page": self.num_pages, "place": self.page_size}
        return {name: lengths[name.rpartition("_")[2]] for name in get_args(WriteAxis)}

    @property
    def num_pages(self) -> int:
        """Pages of each cache."""
        return -(-self.num_tokens // self.page_size) + self.spare_pages

    @property
    def num_elements(self) -> int:
        """Elements of the larger one of a cache and the new keys."""
        width = self.num_heads * (self.head_size + self.head_gap + self.value_gap)
        rows = self.num_tokens + self.padded_tokens
        return max(self.num_pages * self.page_size * width, rows * (2 * self.num_heads + QUERY_HEADS) * self.head_size)

    @property
    def compile_key(self) -> WriteKey:
        """The part of the case that decides whether another kernel must be compiled."""
        return WriteKey(self.dtype, self.stored_as, self.head_size, self.page_size)


class WriteDomain(SmallDomain, frozen=True, forbid_unknown_fields=True, tag_field="operation", tag=NAME):
    """The cases that a target promises to write; sizes are inclusive ranges, as in attention's domain."""

    dtypes: tuple[NewType, ...] = ("float32", "float16", "bfloat16")
    stored_as: tuple[StoredType, ...] = get_args(StoredType)
    head_sizes: tuple[int, ...] = (1, 256)
    page_sizes: tuple[int, ...] = (1, 4096)
    num_heads: tuple[int, ...] = (1, 1024)
    features: frozenset[str] = frozenset(
        (
            "skipped",
            "heads_first",
            "strides",
            "value_strides",
            "fused",
            "padded_tokens",
            "overflow",
            "far",
            "far_axes",
        )
    )

    def __post_init__(self) -> None:
        """Raise :class:`DomainError` for a domain without cases or with an unknown feature."""
        self.require(FEATURES, self.dtypes, self.stored_as, self.head_sizes, self.page_sizes)

    def in_memory(self) -> WriteDomain:
        """Return the domain without caches whose addresses mostly take no memory."""
        return msgspec.structs.replace(self, features=self.features - {"far", FAR_AXES})


_HEADS: Final = (16, 64, 128, 80, 96, 32, 256, 1, 24, 8, 72, 2, 40, 192, 33, 112)
_PAGES: Final = (16, 8, 32, 1, 64, 24, 17, 128, 2, 48, 3, 256, 272)
_TURN: Final = 5
"""Page sizes from one head size to the next, so that no type meets the same page size twice in a row."""


def key_pool(domain: WriteDomain) -> tuple[WriteKey, ...]:
    """Return the compile keys that cases are drawn from, the simplest first; page sizes take turns."""
    heads = [size for size in _HEADS if within(size, domain.head_sizes)] or list(sizes_of(domain.head_sizes))[:1]
    pages = [size for size in _PAGES if within(size, domain.page_sizes)] or list(sizes_of(domain.page_sizes))[:1]
    types = [(new, stored) for stored in domain.stored_as for new in domain.dtypes if new != stored]
    return tuple(
        WriteKey(dtype, stored, size, pages[(_TURN * row + column) % len(pages)])
        for row, size in enumerate(heads)
        for column, (dtype, stored) in enumerate(types)
    )


def unpromised(case: WriteCase, domain: WriteDomain) -> str:
    """Return what of a case a target does not promise, in words; an empty string where it promises all."""
    if words := domain.lacking(case, FEATURES):
        return words
    if case.dtype not in domain.dtypes:
        return f"new keys of {case.dtype}"
    if case.stored_as not in domain.stored_as:
        return f"caches of {case.stored_as.replace('_token_head', ' with a scale for each token and head')}"
    if not within(case.head_size, domain.head_sizes):
        return f"heads of {case.head_size}"
    if not within(case.num_heads, domain.num_heads):
        return f"{case.num_heads} heads"
    return "" if within(case.page_size, domain.page_sizes) else f"pages of {case.page_size}"


def described(case: WriteCase) -> list[tuple[str, str]]:
    """Return (what, words) pairs; two different cases have different ones."""
    order = "any order" if case.shuffled else "order"
    pages = f"{counted(case.num_pages, 'page')} of {case.page_size}, {case.spare_pages} more than needed"
    tokens = f"{counted(case.num_tokens, 'token')}, {counted(case.num_heads, 'head')} of {case.head_size}"
    lines = [
        ("operation", "cache write"),
        ("new keys and values", f"{tokens}, {case.dtype}"),
        ("caches", f"{pages}, {case.cache_dtype}"),
        ("slots", f"in {order}" + ", some tokens skipped" * case.skipped),
        ("numbers", f"magnitude {shortest(case.magnitude)}, seed {case.seed}"),
    ]
    if case.per_token_head:
        lines.append(("scales", "of each token and head"))
    elif case.is_fp8:
        lines.append(("scales", f"k {shortest(case.k_scale)}, v {shortest(case.v_scale)}"))
    lines += lines_of(case)
    memory = [
        *(["heads before places"] if case.heads_first else []),
        *([f"{case.head_gap} elements between heads"] if case.head_gap else []),
        *([f"{case.value_gap} more between heads of values"] if case.value_gap else []),
        *(["queries, keys and values in one tensor"] if case.fused else []),
        *([counted(case.padded_tokens, "padded row")] if case.padded_tokens else []),
        *(["pages that span 2^31 elements"] if case.far else []),
        *far_words(case.far_axes),
    ]
    if case.zero_rows:
        lines.append(("zeros", "all numbers of some tokens and heads"))
    return [*lines, ("memory", ", ".join(memory))] if memory else lines


PLAIN: Final = WriteCase()
_field, _flag = Fields(PLAIN).field, Fields(PLAIN).flag

FEATURES: Final = {
    "skipped": _flag("skipped tokens", "skipped"),
    "heads_first": _flag("heads before places", "heads_first"),
    "strides": _flag("padding between heads", "head_gap", 1),
    "value_strides": _flag("other strides of values", "value_gap", 1),
    "fused": _flag("queries, keys and values in one tensor", "fused"),
    "padded_tokens": _flag("padded rows", "padded_tokens", 1),
    "overflow": when(
        "numbers beyond those of the cache", lambda case: case.overflows, magnitude=1.0, k_scale=1.0, v_scale=1.0
    ),
    "far": _flag("offsets beyond 2^31", "far"),
    FAR_AXES: far_aspect(4),
}
"""Every feature by its name, in the order in which signatures name them."""

FP8_CACHE: Final = "fp8 caches"
_TRIED_SCALES: Final = (2.0, 0.5)

ODDITIES: Final = (
    CONTRACT,
    *FEATURES.values(),
    _field("slots in any order", "shuffled"),
    _field("spare pages", "spare_pages", tried=(1, 2, 3, 4)),
    _field("a scale of keys", "k_scale", tried=_TRIED_SCALES),
    _field("a scale of values", "v_scale", tried=_TRIED_SCALES),
    _field("numbers of another magnitude", "magnitude", tried=(16.0, 1024.0)),
    _field("rows of zeros", "zero_rows"),
    _field("seed", "seed", tried=(0, 1, 2, 3), trait=False),
)
KINDS: Final = (
    when(FP8_CACHE, lambda case: case.is_fp8, stored_as="same"),
    when("a scale for each token and head", lambda case: case.per_token_head, stored_as="same"),
    when("int8 caches", lambda case: case.cache_dtype == "int8", stored_as="float8_e4m3fn_token_head"),
    when("another type of caches", lambda case: case.stored_as != "same", stored_as="same"),
    when("float8_e5m2", lambda case: case.stored_as == "float8_e5m2", stored_as="float8_e4m3fn"),
    when("bfloat16", lambda case: case.dtype == "bfloat16", dtype="float16"),
    when("16-bit types", lambda case: case.dtype != "float32", dtype="float32"),
    _field("tokens", "num_tokens", above="more than {} tokens", levels=(1, 16), trait=False, tried=(1, 2, 3, 4, 8)),
    _field("several heads", "num_heads", tried=(1, 2, 3, 4)),
    _field("head size", "head_size", above="heads larger than {}", levels=(64, 128), trait=False,
           tried=(16, 8, 32, 24, 4, 17, 2, 1, 64, 80, 96, 128)),
    when("head size no power of two", lambda case: case.head_size & (case.head_size - 1) != 0, head_size=16),
    _field("page size", "page_size", trait=False, tried=(16, 8, 4, 3, 2, 1, 24, 17)),
    when("page size no power of two", lambda case: case.page_size & (case.page_size - 1) != 0, page_size=16),
    when("another page size", lambda case: case.page_size != SIMPLEST_SIZE, page_size=SIMPLEST_SIZE),
)  # fmt: skip
TABLE: Final = AspectTable(ODDITIES, KINDS, ())
"""All aspects."""
