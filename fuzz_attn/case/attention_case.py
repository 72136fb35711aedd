"""AttentionCase: the whole input of one attention call as small, frozen, plain data, and its compile key.

A case holds recipes and a seed, never a tensor. :mod:`fuzz_attn.inputs.tensors` makes the tensors from them, bit for
bit the same on every machine. Cases compare by value, hash, and go into JSON files
(:mod:`fuzz_attn.counterexamples`).

Vocabulary: a *row* is one (token, query head). ``context_len`` tokens of a sequence are in the cache before this step,
``query_len`` tokens are new, ``seq_len`` is their sum. Query token ``i`` is at position ``context_len + i``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

import msgspec

from fuzz_attn.case.aspects import (
    FLAGS,
    MASK_FEATURES,
    RECIPES,
    STATED,
    Feature,
    compiled_features,
    first_feature_beyond,
    fp8_features,
)
from fuzz_attn.case.case_fields import CaseFields
from fuzz_attn.case.changes import replace, replace_layout
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import (
    BlockSize,
    DTypes,
    FarAxis,
    HeadLayout,
    HeadSize,
    LaunchHints,
    Scales,
    Strides,
    ValueSize,
    is_fp8,
)
from fuzz_attn.case.plain import Plain, Positive
from fuzz_attn.case.recipes import CAUSAL, MaskKind
from fuzz_attn.errors import CaseError


class CompileKey(Plain, frozen=True):
    """Everything that a kernel of the family takes as a constexpr or a dtype.

    It leaves out what Triton sees in the arguments themselves, such as strides of 1, and what most cases have in the
    usual form (:class:`fuzz_attn.strategies.kernel_variants.KernelVariant`). Strategies draw the key first, from a
    bounded set, because compiling takes most of a campaign's time.
    """

    family: Family = "unified"
    dtypes: DTypes = DTypes()
    num_queries_per_kv: Positive = 1
    head_size: HeadSize = 16
    block_size: BlockSize = 16
    mask: MaskKind = "causal"
    compiled: tuple[Feature, ...] = ()
    """Features in the order of ``COMPILED_FEATURES``."""
    launch: LaunchHints = LaunchHints()
    value_size: ValueSize = 0

    @property
    def number(self) -> int:
        """A number for the key, the same in every process; that of a key with one flag for each of its features."""
        fields = msgspec.to_builtins(self)
        flags, launch = fields.pop("compiled", ()), fields.pop("launch", None)
        fields |= dict.fromkeys(flags, True)
        return zlib.crc32(msgspec.json.encode(fields if launch is None else {**fields, "launch": launch}))

    @property
    def widest(self) -> int:
        """The elements of a head of keys or of values, whichever has more."""
        return max(self.head_size, self.value_size)

    def has(self, feature: Feature) -> bool:
        """Return whether kernels are compiled for a feature."""
        return feature in self.compiled

    @property
    def features(self) -> frozenset[Feature]:
        """The features of its cases that the key decides."""
        return fp8_features(self.dtypes).union(self.compiled, MASK_FEATURES[self.mask])


def compile_key_of(case: CaseFields) -> CompileKey:
    """Return the compile key of a case."""
    return CompileKey(
        family=case.family,
        dtypes=case.dtypes,
        num_queries_per_kv=case.heads.num_queries_per_kv,
        head_size=case.heads.head_size,
        block_size=case.pages.block_size,
        mask=case.mask.kind,
        compiled=compiled_features(case),
        launch=case.launch,
        value_size=case.heads.value_size,
    )


__all__ = ("AttentionCase", "replace", "replace_layout")
MAX_TOTAL_ELEMENTS: Final = 2**26
"""No tensor of a case may hold more elements; keeps a mistyped file from filling the memory."""

MAX_OFFSET_ELEMENTS: Final = 2**33
"""How many elements a cache may span where most of it is addresses without memory."""

MAX_FAR_ELEMENTS: Final = 2**22
"""How many elements of a tensor that is far along an axis may have memory, what is around them included."""

SMALLEST_NUMBER, LARGEST_NUMBER = 2.0**-126, 2.0**126
"""Bounds of scales and soft caps: in float32, which kernels get, they and their reciprocals are normal."""


class AttentionCase(CaseFields, frozen=True):
    """The whole input of one attention call; raises ``CaseError`` where its fields contradict each other."""

    def __post_init__(self) -> None:
        """Check the fields together; msgspec turns the error into one that names the place in the file."""
        super().__post_init__()
        check_case(self)

    @property
    def answers(self) -> tuple[bool, ...]:
        """For each sequence, whether the target writes its rows; all other rows stay unchanged."""
        interface, filtered = FAMILIES[self.family], self.filter_by_query_len
        return tuple(
            interface.answers(s.query_len, filter_by_query_len=filtered)
            and (interface.answers_no_key or not s.has_no_key)
            for s in self.sequences
        )

    @property
    def reads_packed(self) -> tuple[bool, ...]:
        """For each sequence, whether the keys of its new tokens are read packed instead of from the cache."""
        return tuple(FAMILIES[self.family].reads_packed(s.query_len) for s in self.sequences)

    @property
    def compile_key(self) -> CompileKey:
        """The part of the case that decides whether another kernel must be compiled."""
        return compile_key_of(self)


def translated(case: AttentionCase, family: Family) -> AttentionCase | None:
    """Return the case as one of another family with the same exact output, None where that family cannot express it.

    Rows that the case's own family skips or that see no key have no counterpart, and neither has a log-sum-exp. New
    tokens are the same numbers read packed or from the cache, unless the cache rounds them to fp8. Where several keys
    share a slot, the key that the slot holds depends on which keys are stored at all. Other masks, values that are
    parts of keys, and values of another size than keys have no counterpart either, and neither have rows before
    the first key.
    """
    interface = FAMILIES[family]
    latent = FAMILIES[case.family].cache.is_latent or interface.cache.is_latent
    no_key = any(sequence.has_no_key for sequence in case.sequences)
    if no_key or not all(case.answers) or case.mask != CAUSAL or case.heads.value_size or latent:
        return None
    if any(sequence.context_len < 0 for sequence in case.sequences):
        return None
    own_slots = not (case.pages.shared_prefix or case.pages.repeated)
    moved = tuple(interface.reads_packed(s.query_len) for s in case.sequences) != case.reads_packed
    if (moved and is_fp8(case.dtypes.kv)) or ((moved or case.stale_cache) and not own_slots):
        return None
    cache = case.strides.cache if case.strides.cache in interface.cache.arrangements else "separate"
    # Drops what only says how the problem reaches the kernel, and what other targets do not state. The unified family
    # can express everything else.
    bare = replace_layout(
        case,
        family="unified",
        strides=msgspec.structs.replace(case.strides, cache=cache),
        launch=LaunchHints(),
        **dict.fromkeys(FLAGS, False),
        **dict.fromkeys(STATED),
    )
    return None if inexpressible(bare, family) else replace_layout(bare, family=family)


def check_case(case: CaseFields) -> None:
    """Raise :class:`CaseError` where the parts of a case contradict each other or exceed a bound."""
    _check_dtypes(case.dtypes, case.scales)
    _check_family(case)
    _check_numbers(case)
    _check_sizes(case)


def inexpressible(case: CaseFields, family: Family) -> str:
    """Return why a family's interface cannot express a case, or an empty string where it can."""
    interface, heads = FAMILIES[family], case.heads
    feature = first_feature_beyond(case, family)
    if feature:
        return f"family={family!r} has no {feature.feature} ({feature.words})"
    pieces = interface.cache.piece(case.dtypes.kv), case.strides.key_piece if interface.cache.piece_bytes else 0
    for piece in filter(None, pieces):
        if heads.head_size % piece:
            return f"heads.head_size={heads.head_size} must be a multiple of {piece} for family={family!r}"
    for name, value, allowed in (
        ("strides.cache", case.strides.cache, interface.cache.arrangements),
        ("launch.path", case.launch.path, interface.paths),
    ):
        if value not in allowed:
            return f"{name}={value!r} must be one of {', '.join(allowed)} for family={family!r}"
    if interface.one_token_each and not case.filter_by_query_len and any(s.query_len != 1 for s in case.sequences):
        return f"every sequence must have query_len=1 for family={family!r} without filter_by_query_len"
    if interface.cache.is_packed and case.pages.are_moved:
        return f"pages must be in order and used once, with no wider table, for family={family!r}"
    lengths = _impossible_lengths(case) if interface.any_lengths else _impossible_sequence(case)
    return lengths or (_impossible_values(heads, family) if interface.cache.is_latent else "")


def _impossible_values(heads: HeadLayout, family: Family) -> str:
    """Return why values cannot be parts of keys, or an empty string where they can."""
    if heads.num_kv_heads == 1 and heads.head_size_v <= heads.head_size:
        return ""
    sizes = f"heads.num_kv_heads={heads.num_kv_heads} and heads.value_size={heads.value_size}"
    return f"{sizes} must be 1 and at most heads.head_size={heads.head_size} for family={family!r}"


def _impossible_sequence(case: CaseFields) -> str:
    for sequence in case.sequences:
        context_len, query_len = sequence.context_len, sequence.query_len
        if context_len < 0 and (case.filter_by_query_len or query_len != 1 or context_len != -1):
            rule = "must be 0 or more, or -1 beside query_len=1 without filter_by_query_len"
            return f"context_len={context_len} of a sequence with query_len={query_len} {rule}"
    return ""


def _impossible_lengths(case: CaseFields) -> str:
    """Return why a sequence cannot have its lengths where it may have fewer keys than query tokens."""
    for sequence in case.sequences:
        if sequence.seq_len < 0:
            lengths = f"context_len={sequence.context_len} of a sequence with query_len={sequence.query_len}"
            return f"{lengths} must be at least {-sequence.query_len}"
    return ""


def _check_family(case: CaseFields) -> None:
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
        if not SMALLEST_NUMBER <= abs(scale) <= LARGEST_NUMBER and (scale or name == "out"):
            zero = "" if name == "out" else "0 or "
            raise CaseError(f"scales.{name}={scale} must be {zero}finite, of a size from 2**-126 to 2**126")
        if scale != 1.0 and not is_fp8(dtype):
            raise CaseError(f"scales.{name}={scale} must be 1 for the type {dtype!r}, which is not fp8")


def _check_numbers(case: CaseFields) -> None:
    if case.softmax_scale and not SMALLEST_NUMBER <= abs(case.softmax_scale) <= LARGEST_NUMBER:
        raise CaseError(f"softmax_scale={case.softmax_scale} must be 0 or finite, of a size from 2**-126 to 2**126")
    if case.softcap and not SMALLEST_NUMBER <= case.softcap <= LARGEST_NUMBER:
        raise CaseError(f"softcap={case.softcap} must be 0 or positive and finite, from 2**-126 to 2**126")
    bias = case.qq_bias
    if bias is not None and bias.order in ("one_row", "one_column") and bias.kind not in ("dense", "zero"):
        raise CaseError(f"qq_bias.order={bias.order!r} must be 'rows' or 'columns' for the kind {bias.kind!r}")
    if case.launch.num_segments and case.launch.path != "3d":
        raise CaseError(f"launch.num_segments={case.launch.num_segments} must be 0 for the path {case.launch.path!r}")


def _check_sizes(case: CaseFields) -> None:
    for name, size in (*_query_sizes(case), *_cache_sizes(case)):
        if size > MAX_TOTAL_ELEMENTS:
            raise CaseError(f"{name} of the case would hold {size} elements, more than {MAX_TOTAL_ELEMENTS}")
    if case.pages.first_block:
        _check_large_offsets(case)
    for name in case.strides.far:
        reason = why_not_far(case, case.strides, name)
        if reason:
            raise CaseError(reason)


def _check_large_offsets(case: CaseFields) -> None:
    first, size = case.pages.first_block, case.pages.block_size
    if case.strides.cache == "kv_first":
        raise CaseError(f"pages.first_block={first} must be 0 for strides.cache='kv_first', where V follows all of K")
    end = first + case.total_keys // size + len(case.sequences) + case.pages.spare_blocks + 1
    noun, each = ("slot", size) if FAMILIES[case.family].cache.in_one_row else ("page", 1)
    if end * each >= 2**31:
        raise CaseError(f"pages.first_block={first} must leave {noun} numbers below 2**31")
    elements = end * max(case.cache_layout.page_strides)
    if elements > MAX_OFFSET_ELEMENTS:
        raise CaseError(f"pages.first_block={first} would stretch a cache over {elements} elements, more than 2**33")


def why_not_far(case: CaseFields, strides: Strides, name: FarAxis) -> str:
    """Return why a case with these strides cannot be far along an axis, or an empty string where it can."""
    tensor = name.split("_")[0]
    others = [other for other in strides.far if other != name and other.split("_")[0] == tensor]
    if others:
        return f"strides.far={strides.far} must name one axis of each tensor, not both {name!r} and {others[0]!r}"
    own = strides.cache in ("separate", "heads_first")
    if tensor == "cache" and (case.pages.first_block or not own):
        return f"strides.far={strides.far} needs caches in memory of their own and pages.first_block=0 for {name!r}"
    unsuited = _unsuited_axis(case, strides, name)
    if unsuited:
        return unsuited
    if tensor == "bias" and case.qq_bias is not None and case.qq_bias.order in ("one_row", "one_column"):
        return f"qq_bias.order={case.qq_bias.order!r} must be 'rows' or 'columns' where strides.far contains {name!r}"
    elements = far_length(case, name) * dict((*_query_sizes(case), *_cache_sizes(case))).get(_SIZES[tensor], 0)
    if elements > MAX_FAR_ELEMENTS:
        return f"strides.far={strides.far} would need memory for {elements} elements, more than {MAX_FAR_ELEMENTS}"
    return ""


def _unsuited_axis(case: CaseFields, strides: Strides, name: FarAxis) -> str:
    """Return why the format of the caches does not allow a far axis, or an empty string where it does."""
    cache, size = FAMILIES[case.family].cache, case.pages.block_size
    if name == "cache_slot" and cache.is_packed and size > 1:
        return f"pages.block_size={size} must be 1 where strides.far contains {name!r}"
    if name == "cache_dim" and not cache.is_split:
        return f"strides.far={strides.far} must not contain {name!r} for family={case.family!r}"
    return ""


_SIZES: Final = {
    "q": "query",
    "out": "output",
    "new": "new_values",
    "block": "block_table",
    "cache": "a cache",
    "bias": "qq_bias",
    "lse": "log-sum-exp",
}
"""The name in :func:`_query_sizes` or :func:`_cache_sizes` of the tensor of a far axis."""


def far_length(case: CaseFields, name: FarAxis) -> int:
    """Return how many indices an axis has without padded rows; of ``cache_dim`` those of the values.

    It is 0 where the case does not have the tensor.
    """
    heads, tokens = case.heads, case.num_tokens
    packs = FAMILIES[case.family].packs_new_keys
    bias = 0 if case.qq_bias is None else case.max_query_len
    lengths: dict[FarAxis, int] = {
        "q_token": tokens,
        "q_head": heads.num_query_heads,
        "out_token": tokens,
        "out_head": heads.num_query_heads,
        "new_token": tokens * packs,
        "new_head": heads.num_kv_heads * packs,
        "block_table": len(case.sequences),
        "cache_slot": case.total_keys if FAMILIES[case.family].cache.is_packed else case.pages.block_size,
        "cache_head": heads.num_kv_heads,
        "cache_dim": heads.head_size_v,
        "bias_row": bias,
        "bias_column": bias,
        "lse_token": tokens if case.lse else 0,
        "lse_head": heads.num_query_heads if case.lse else 0,
    }
    return lengths[name]


def _query_sizes(case: CaseFields) -> Iterator[tuple[str, int]]:
    """Yield name and elements, padding included, of each tensor that grows with tokens and query heads."""
    heads, strides, launch = case.heads, case.strides, case.launch
    tokens, query_heads = max(1, case.num_tokens + case.padded_tokens), heads.num_query_heads
    if FAMILIES[case.family].packs_new_keys:
        row = heads.num_kv_heads * (max(heads.head_size, heads.head_size_v) + strides.new_head + strides.new_value_head)
        new_tokens = tokens + case.form.extra_new_rows
        yield "new_values", new_tokens * (row + strides.new_token + strides.new_value_token)
    yield "query", tokens * (query_heads * (heads.head_size + strides.q_head) + strides.q_token)
    output_rows = tokens + case.form.extra_output_rows
    yield "output", output_rows * (query_heads * (heads.head_size_v + strides.out_head) + strides.out_token)
    if case.lse:
        yield "log-sum-exp", output_rows * (query_heads + strides.out_head)
    if launch.path == "3d":
        padded_head = 1 << (heads.head_size_v - 1).bit_length()
        yield "the segments' partial output", tokens * query_heads * launch.num_segments * padded_head
    yield "the mask", case.mask.elements(case.sequences)
    for name in RECIPES:
        recipe = getattr(case, name)
        if recipe is not None:
            yield name, recipe.elements(case.sequences)


def _cache_sizes(case: CaseFields) -> Iterator[tuple[str, int]]:
    """Yield name and elements, padding included, of each tensor that grows with keys and pages."""
    layout, pages, num_seqs = case.cache_layout, case.pages, len(case.sequences)
    slots = case.total_keys + (num_seqs + pages.spare_blocks + 1) * pages.block_size
    yield "a cache", -(-slots // pages.block_size) * max(page.elements for page in (layout.keys, layout.values))
    longest = -(-case.max_seq_len // pages.block_size)
    yield (
        "block_table",
        (num_seqs + case.form.extra_table_rows) * (longest + pages.extra_columns + case.strides.block_table),
    )
