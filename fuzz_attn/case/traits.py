"""Traits: every way in which a case is more than the simplest one, which is one key of one float32 head of 16.

A failure's *trigger* is the traits that it needs. A case whose traits contain the trigger of a known failure may show
that failure again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import msgspec

from fuzz_attn.case.attention_case import AttentionCase, replace, replace_layout
from fuzz_attn.case.case_fields import CaseFields
from fuzz_attn.case.dtypes import is_fp8
from fuzz_attn.case.families import Feature
from fuzz_attn.case.features import CASE_FEATURES
from fuzz_attn.case.parts import INNER_STRIDES, CallForm, DTypes, Scales, Sequence, Strides, without_far
from fuzz_attn.case.recipes import AlibiRecipe, NormalScores, NormalValues, PoisonRecipe, QQBiasRecipe, SinkRecipe

FP8_OUTPUT: Final = "fp8 output"
SIMPLEST_SIZE: Final = 16
"""The simplest size of a head and of a page: one block of a dot product."""


class Trait(NamedTuple):
    """One trait: its name, whether a case has it, and the case without it.

    ``without`` raises :class:`fuzz_attn.errors.CaseError` where the rest of the case needs the trait.
    """

    name: str
    present: Callable[[CaseFields], bool]
    without: Callable[[AttentionCase], AttentionCase]


class Size(NamedTuple):
    """A size with the thresholds that count as traits: ``more than 16 keys`` of ``("more than {} keys", ...)``.

    ``limited`` returns a case whose size is not above a threshold.
    """

    words: str
    measure: Callable[[CaseFields], int]
    thresholds: tuple[int, ...]
    limited: Callable[[AttentionCase, int], AttentionCase]

    def levels(self, case: CaseFields) -> tuple[int, ...]:
        """Return the thresholds that a case is above."""
        measured = self.measure(case)
        return tuple(threshold for threshold in self.thresholds if measured > threshold)


def _with(part: str, **changes: Any) -> Callable[[AttentionCase], AttentionCase]:
    """Return a function that changes fields of one part of a case."""
    return lambda case: replace(case, **{part: msgspec.structs.replace(getattr(case, part), **changes)})


def _set(**changes: Any) -> Callable[[AttentionCase], AttentionCase]:
    return lambda case: replace(case, **changes)


def _wide(case: AttentionCase) -> str:
    """Return the widest type that a case already uses, float32 where all are fp8."""
    names = (case.dtypes.q, case.dtypes.out)
    return next((name for name in names if not is_fp8(name)), "float32")


def _without_fp8_cache(case: AttentionCase) -> AttentionCase:
    wide = case.dtypes.q if not is_fp8(case.dtypes.q) else _wide(case)
    out = case.dtypes.out
    scales = Scales(out=case.scales.out)
    return replace(case, dtypes=DTypes(wide, wide, out), scales=scales, uint8_cache=False)  # type: ignore[arg-type]  # a name of a type


def _without_fp8_queries(case: AttentionCase) -> AttentionCase:
    return replace(
        case,
        dtypes=msgspec.structs.replace(case.dtypes, q=_wide(case)),
        scales=msgspec.structs.replace(case.scales, q=1.0),
    )


def _without_fp8_output(case: AttentionCase) -> AttentionCase:
    return replace(
        case,
        dtypes=msgspec.structs.replace(case.dtypes, out=_wide(case)),
        scales=msgspec.structs.replace(case.scales, out=1.0),
    )


def _with_type(old: Iterable[str], new: str) -> Callable[[AttentionCase], AttentionCase]:
    """Return a function that replaces types of a case by another."""
    types = frozenset(old)

    def changed(case: AttentionCase) -> AttentionCase:
        names = (case.dtypes.q, case.dtypes.kv, case.dtypes.out)
        return replace(case, dtypes=DTypes(*(new if name in types else name for name in names)))  # type: ignore[arg-type]  # a name of a type

    return changed


def _strides(*fields: str) -> tuple[Callable[[CaseFields], bool], Callable[[AttentionCase], AttentionCase]]:
    dense = {name: getattr(Strides(), name) for name in fields}

    def present(case: CaseFields) -> bool:
        return any(getattr(case.strides, name) != value for name, value in dense.items())

    return present, lambda case: replace_layout(case, strides=msgspec.structs.replace(case.strides, **dense))


def _without_empty_sequences(case: AttentionCase) -> AttentionCase:
    kept = tuple(sequence for sequence in case.sequences if sequence.query_len)
    return replace(case, sequences=kept or (Sequence(1),), overrides=())


def _without_empty_decodes(case: AttentionCase) -> AttentionCase:
    kept = tuple(sequence for sequence in case.sequences if not sequence.has_no_key)
    return replace(case, sequences=kept or (Sequence(1),), overrides=())


def _without_context(case: AttentionCase) -> AttentionCase:
    return replace(case, sequences=tuple(Sequence(s.seq_len) if _has_context(s) else s for s in case.sequences))


def _has_context(sequence: Sequence) -> bool:
    return sequence.context_len > 0 and sequence.query_len > 0


def _has_partly_filled_pages(case: CaseFields) -> bool:
    return any(sequence.seq_len % case.pages.block_size for sequence in case.sequences)


def _with_full_pages(case: AttentionCase) -> AttentionCase:
    size = case.pages.block_size
    filled = (Sequence(s.query_len, s.context_len + -s.seq_len % size) for s in case.sequences)
    return replace(case, sequences=tuple(filled))


def _with_positive_scales(case: AttentionCase) -> AttentionCase:
    positive = Scales(*(abs(scale) or 1.0 for scale in msgspec.structs.astuple(case.scales)))
    return replace(case, scales=positive, softmax_scale=abs(case.softmax_scale) or case.heads.head_size**-0.5)


def _with_matching_types(case: AttentionCase) -> AttentionCase:
    """Return the case with the output of q's type, or of one kind of fp8 with the caches."""
    kind = case.dtypes.kv if is_fp8(case.dtypes.kv) else case.dtypes.out
    q = kind if is_fp8(case.dtypes.q) else case.dtypes.q
    out = kind if is_fp8(case.dtypes.out) or is_fp8(q) else q
    return replace(case, dtypes=DTypes(q, case.dtypes.kv, out))


def _with_float32_biases(case: AttentionCase) -> AttentionCase:
    parts = {name: getattr(case, name) for name in ("alibi", "qq_bias", "sinks")}
    changed = {name: msgspec.structs.replace(part, dtype="float32") for name, part in parts.items() if part is not None}
    return replace(case, **changed)


def _with_dense_rows_and_pages(case: AttentionCase) -> AttentionCase:
    near = without_far(case.strides, "bias_column", "cache_slot", "cache_head", "cache_dim")
    dense = msgspec.structs.replace(near, key_piece=0, **dict.fromkeys(INNER_STRIDES, 0))
    bias = case.qq_bias and msgspec.structs.replace(case.qq_bias, order="rows", step=1)
    return replace_layout(replace(case, qq_bias=bias), strides=dense)


def _next_power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _power_of_two(size: int) -> bool:
    return size & (size - 1) == 0


def _halves(case: CaseFields) -> bool:
    return not {"float16", "bfloat16"}.isdisjoint((case.dtypes.q, case.dtypes.kv, case.dtypes.out))


_WORDS: Final = {feature.name: feature.words for feature in CASE_FEATURES}
_PRESENT: Final = {feature.name: feature.present for feature in CASE_FEATURES}


def _feature(name: Feature, without: Callable[[AttentionCase], AttentionCase]) -> Trait:
    return Trait(_WORDS[name], _PRESENT[name], without)


FEATURES: Final = (
    _feature("window", _set(window=0)),
    _feature("softcap", _set(softcap=0.0)),
    _feature("alibi", _set(alibi=None)),
    Trait("unusual slopes", lambda case: case.alibi not in (None, AlibiRecipe()), _set(alibi=AlibiRecipe())),
    _feature("qq_bias", _set(qq_bias=None)),
    Trait("unusual bias", lambda case: case.qq_bias not in (None, QQBiasRecipe()), _set(qq_bias=QQBiasRecipe())),
    _feature("sinks", _set(sinks=None)),
    Trait("unusual sinks", lambda case: case.sinks not in (None, SinkRecipe()), _set(sinks=SinkRecipe())),
    Trait("fp8 queries", lambda case: is_fp8(case.dtypes.q), _without_fp8_queries),
    Trait("fp8 cache", lambda case: is_fp8(case.dtypes.kv), _without_fp8_cache),
    Trait(FP8_OUTPUT, lambda case: is_fp8(case.dtypes.out), _without_fp8_output),
    Trait(
        "fp8 of type e5m2",
        lambda case: "float8_e5m2" in (case.dtypes.q, case.dtypes.kv, case.dtypes.out),
        _with_type(("float8_e5m2",), "float8_e4m3fn"),
    ),
    Trait("scales other than 1", lambda case: case.scales != Scales(), _set(scales=Scales())),
    _feature("filter_by_query_len", _set(filter_by_query_len=False)),
    _feature("uint8_cache", _set(uint8_cache=False)),
    _feature("stale_cache", _set(stale_cache=False)),
    _feature("large_offsets", _with("pages", first_block=0)),
    _feature("far_axes", _with("strides", far=())),
    Trait("K and V in one order of memory", *_strides("cache")),
    Trait("padding in q", *_strides("q_token", "q_head")),
    Trait("padding in the output", *_strides("out_token", "out_head")),
    Trait("padding in the caches", *_strides("cache_slot", "value_slot")),
    Trait("padding in the block table", *_strides("block_table")),
    Trait("padding in the new keys", *_strides("new_token", "new_head")),
    _feature("empty_sequences", _without_empty_sequences),
    _feature("empty_decodes", _without_empty_decodes),
    _feature("padded_tokens", _set(padded_tokens=0)),
    _feature("scale_signs", _with_positive_scales),
    _feature("mixed_dtypes", _with_matching_types),
    _feature("bias_dtypes", _with_float32_biases),
    _feature("inner_strides", _with_dense_rows_and_pages),
    _feature("call_forms", _set(form=CallForm())),
    Trait("2D path", lambda case: case.launch.path == "2d", _with("launch", path="auto")),
    Trait("3D path", lambda case: case.launch.path == "3d", _with("launch", path="auto", num_segments=0)),
    Trait("another num_warps", lambda case: case.launch.num_warps > 0, _with("launch", num_warps=0)),
    Trait("another num_stages", lambda case: case.launch.num_stages > 0, _with("launch", num_stages=0)),
    Trait("tile size", lambda case: case.launch.tile_size > 0, _with("launch", tile_size=0)),
    Trait("pages in a random order", lambda case: case.pages.permuted, _with("pages", permuted=False)),
    Trait("shared pages", lambda case: case.pages.shared_prefix > 0, _with("pages", shared_prefix=0)),
    Trait("repeated pages", lambda case: case.pages.repeated, _with("pages", repeated=False)),
    Trait("spare pages", lambda case: case.pages.spare_blocks > 0, _with("pages", spare_blocks=0)),
    Trait("a wider block table", lambda case: case.pages.extra_columns > 0, _with("pages", extra_columns=0)),
    Trait("dead keys without NaN", lambda case: case.poison.keys != "nan", _with("poison", keys="nan")),
    Trait("dead values without NaN", lambda case: case.poison.values != "nan", _with("poison", values="nan")),
    Trait(
        "dead table entries other than num_blocks",
        lambda case: case.poison.table != PoisonRecipe().table,
        _with("poison", table=PoisonRecipe().table),
    ),
    Trait("the second NaN in the output", lambda case: case.poison.out > 0, _with("poison", out=0)),
    Trait("scores not normal", lambda case: case.scores != NormalScores(), _set(scores=NormalScores())),
    Trait("values not normal", lambda case: case.values != NormalValues(), _set(values=NormalValues())),
    Trait("single elements set", lambda case: bool(case.overrides), _set(overrides=())),
    Trait("near-uniform weights", lambda case: case.near_uniform, _set(near_uniform=False)),
    Trait("equal weights in most heads", lambda case: case.equal_heads, _set(equal_heads=False)),
    Trait("marked keys", lambda case: case.key_marks, _set(key_marks=False)),
    Trait(
        "unusual softmax scale",
        lambda case: case.softmax_scale != case.heads.head_size**-0.5,
        lambda case: replace(case, softmax_scale=case.heads.head_size**-0.5),
    ),
)
"""Features and oddities, in the order in which a report names them."""
_WITHOUT: Final = {trait.name: trait.without for trait in FEATURES}


def without_feature(case: AttentionCase, name: Feature) -> AttentionCase:
    """Return the case without a feature; raises :class:`fuzz_attn.errors.CaseError` where the rest of it needs that."""
    return _WITHOUT[_WORDS[name]](case)


_SIMPLEST: Final[dict[Feature, dict[str, Any]]] = {
    "window": {"window": 8},
    "softcap": {"softcap": 1.0},
    "alibi": {"alibi": AlibiRecipe()},
    "qq_bias": {"qq_bias": QQBiasRecipe()},
    "sinks": {"sinks": SinkRecipe()},
}
ADDED_FEATURES: Final = frozenset(_SIMPLEST)
"""The features that :func:`with_feature` can add."""


def with_feature(case: AttentionCase, name: Feature) -> AttentionCase:
    """Return the case with the simplest form of one of the ``ADDED_FEATURES``."""
    return replace(case, **_SIMPLEST[name])


def _resized(part: str, field: str, size: int) -> Callable[[AttentionCase], AttentionCase]:
    """Return a function that changes a size of a case; the usual softmax scale follows the head size."""

    def changed(case: AttentionCase) -> AttentionCase:
        usual = case.softmax_scale == case.heads.head_size**-0.5
        scale = size**-0.5 if field == "head_size" and usual else case.softmax_scale
        changes: dict[str, Any] = {part: msgspec.structs.replace(getattr(case, part), **{field: size})}
        return replace(case, softmax_scale=scale, **changes)

    return changed


def with_head_size(case: AttentionCase, size: int) -> AttentionCase:
    """Return the case with heads of another size."""
    return _resized("heads", "head_size", size)(case)


def with_page_size(case: AttentionCase, size: int) -> AttentionCase:
    """Return the case with pages of another size and sequences of as many pages as before."""
    before = case.pages.block_size
    scaled = (Sequence(s.query_len, _scaled(s, before, size) - s.query_len) for s in case.sequences)
    resized = _resized("pages", "block_size", size)(case)
    return replace(resized, sequences=tuple(scaled))


def _scaled(sequence: Sequence, before: int, after: int) -> int:
    """Return the keys of a sequence that fills as many pages of another size, as little of the last as it can."""
    if not sequence.seq_len:
        return 0
    return max((-(-sequence.seq_len // before) - 1) * after + 1, sequence.query_len)


KINDS: Final = (
    Trait(
        "bfloat16", lambda case: "bfloat16" in (case.dtypes.q, case.dtypes.out), _with_type(("bfloat16",), "float16")
    ),
    Trait("16-bit types", _halves, _with_type(("float16", "bfloat16"), "float32")),
    Trait("several KV heads", lambda case: case.heads.num_kv_heads > 1, _with("heads", num_kv_heads=1)),
    Trait("grouped heads", lambda case: case.heads.num_queries_per_kv > 1, _with("heads", num_queries_per_kv=1)),
    Trait(
        "head size no power of two",
        lambda case: not _power_of_two(case.heads.head_size),
        lambda case: with_head_size(case, _next_power_of_two(case.heads.head_size)),
    ),
    Trait(
        "small heads",
        lambda case: case.heads.head_size < SIMPLEST_SIZE,
        _resized("heads", "head_size", SIMPLEST_SIZE),
    ),
    Trait(
        "large heads",
        lambda case: case.heads.head_size > SIMPLEST_SIZE,
        _resized("heads", "head_size", SIMPLEST_SIZE),
    ),
    Trait(
        "page size no power of two",
        lambda case: not _power_of_two(case.pages.block_size),
        lambda case: _resized("pages", "block_size", _next_power_of_two(case.pages.block_size))(case),
    ),
    Trait(
        "small pages",
        lambda case: case.pages.block_size < SIMPLEST_SIZE,
        _resized("pages", "block_size", SIMPLEST_SIZE),
    ),
    Trait(
        "large pages",
        lambda case: case.pages.block_size > SIMPLEST_SIZE,
        _resized("pages", "block_size", SIMPLEST_SIZE),
    ),
)
"""Types, heads and pages."""

POISONS: Final = {
    "NaN or Inf in dead keys": "keys",
    "NaN or Inf in dead values": "values",
    "large numbers in dead keys": "keys",
    "large numbers in dead values": "values",
    "invalid dead table entries": "table",
}
"""Traits of poison that spreads through a weight of 0 or a masked load, and the fields of the recipe."""

NUANCES: Final = (
    Trait("partly filled pages", _has_partly_filled_pages, _with_full_pages),
    Trait("a context", lambda case: any(map(_has_context, case.sequences)), _without_context),
    Trait(
        "NaN or Inf in dead keys", lambda case: case.poison.keys not in ("huge", "zero"), _with("poison", keys="huge")
    ),
    Trait(
        "NaN or Inf in dead values",
        lambda case: case.poison.values not in ("huge", "zero"),
        _with("poison", values="huge"),
    ),
    Trait("large numbers in dead keys", lambda case: case.poison.keys != "zero", _with("poison", keys="zero")),
    Trait("large numbers in dead values", lambda case: case.poison.values != "zero", _with("poison", values="zero")),
    Trait("invalid dead table entries", lambda case: case.poison.table != "zero", _with("poison", table="zero")),
)
"""Traits of simple cases too: a failure needs one if its simplest case passes without it. NaN counts as large."""


def _with_keys(case: AttentionCase, most: int) -> AttentionCase:
    """Return the case with sequences of at most so many keys."""
    return replace(case, sequences=tuple(_cut(sequence, most) for sequence in case.sequences))


def _cut(sequence: Sequence, most: int) -> Sequence:
    query_len = min(sequence.query_len, most)
    return Sequence(query_len, min(sequence.context_len, most - query_len))


def _with_query_tokens(case: AttentionCase, most: int) -> AttentionCase:
    """Return the case with at most so many query tokens in a sequence, and as many keys."""
    cut = (Sequence(min(s.query_len, most), s.seq_len - min(s.query_len, most)) for s in case.sequences)
    return replace(case, sequences=tuple(cut))


def _with_one_page(case: AttentionCase, _: int) -> AttentionCase:
    """Return the case with pages that hold a whole sequence."""
    return _resized("pages", "block_size", _next_power_of_two(case.max_seq_len))(case)


SIZES: Final = (
    Size(
        "more than {} sequences",
        lambda case: len(case.sequences),
        (1, 4, 16),
        lambda case, most: replace(case, sequences=case.sequences[:most]),
    ),
    Size("more than {} query tokens", lambda case: case.max_query_len, (1, 16), _with_query_tokens),
    Size("more than {} keys", lambda case: case.max_seq_len, (1, 4, 16, 64, 256, 1024), _with_keys),
    Size("more than {} pages", lambda case: -(-case.max_seq_len // case.pages.block_size), (1,), _with_one_page),
    Size(
        "more than {} query heads for each KV head",
        lambda case: case.heads.num_queries_per_kv,
        (16,),
        lambda case, most: _with("heads", num_queries_per_kv=most)(case),
    ),
    Size("heads larger than {}", lambda case: case.heads.head_size, (64, 128), with_head_size),
    Size(
        "pages larger than {}",
        lambda case: case.pages.block_size,
        (64,),
        lambda case, most: _resized("pages", "block_size", most)(case),
    ),
)


def named(relation: str) -> str:
    """Return the trait of a case that is checked for a metamorphic relation."""
    return f"relation {relation}"


ANY_RELATION: Final = "any relation"
"""The trait of every case that is checked for some relation."""


def traits_of(case: CaseFields, relation: str | None = None, adds: Feature | None = None) -> tuple[str, ...]:
    """Return the traits of a case, in a fixed order; a case above a threshold is above all lower ones too.

    ``adds`` is the feature that the second launch of its relation has beside those of the case.
    """
    added = _WORDS[adds] if adds else None
    own = (trait.name for trait in (*FEATURES, *KINDS, *NUANCES) if trait.present(case) or trait.name == added)
    related = (named(relation), ANY_RELATION) if relation else ()
    sizes = (size.words.format(level) for size in SIZES for level in size.levels(case))
    return (*own, *sizes, *related)


def needed_by(case: CaseFields, relation: str | None) -> tuple[str, ...]:
    """Return all that a case may need to fail: its traits without nuances, of each size the highest threshold."""
    own = [trait.name for trait in (*FEATURES, *KINDS) if trait.present(case)]
    sizes = [size.words.format(levels[-1]) for size in SIZES if (levels := size.levels(case))]
    return (*own, *sizes, *((named(relation),) if relation else ()))


def core(trigger: Iterable[str]) -> frozenset[str]:
    """Return a trigger without what depends on where shrinking ended: nuances, and the thresholds of sizes."""
    return frozenset(_SIZE_OF.get(trait, trait) for trait in trigger if trait not in _NUANCES)


_NUANCES: Final = frozenset(trait.name for trait in NUANCES)
_SIZE_OF: Final = {size.words.format(threshold): size.words for size in SIZES for threshold in size.thresholds}
