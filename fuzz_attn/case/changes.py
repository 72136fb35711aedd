"""Changes: cases with other values, checked like new ones; each raises ``CaseError`` where the rest does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec

from fuzz_attn.case.case_fields import CaseFields
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import (
    INNER_STRIDES,
    LARGEST_FIRST_BLOCK,
    DTypeName,
    DTypes,
    HeadLayout,
    PageLayout,
    Scales,
    Sequence,
    Strides,
    is_fp8,
    without_far,
)
from fuzz_attn.errors import CaseError

C = TypeVar("C", bound=CaseFields)
Change: TypeAlias = Callable[[CaseFields], CaseFields]


def replace(case: C, **changes: object) -> C:
    """Return the case with some fields changed, checked like a new one."""
    return msgspec.structs.replace(case, **changes)


def replace_layout(case: C, *, family: Family | None = None, strides: Strides | None = None, **changes: object) -> C:
    """Return the case with another family, other strides or sizes of pages, and other fields changed.

    Large offsets stay about as many elements into the caches, so page numbers change with the size of a page. Far axes
    are left out where they would need too much memory.
    """
    family, strides = family or case.family, strides or case.strides
    if "cache_dim" in strides.far and not FAMILIES[family].cache.is_split:
        strides = without_far(strides, "cache_dim")
    pages = cast(PageLayout, changes.get("pages", case.pages))
    if case.pages.first_block and pages.first_block == case.pages.first_block:
        heads = cast(HeadLayout, changes.get("heads", case.heads))
        before = max(case.cache_layout.page_strides)
        layout = FAMILIES[family].cache.layout(heads, pages.block_size, case.dtypes.kv, strides)
        after = max(layout.page_strides)
        first_block = min(-(-case.pages.first_block * before // after), _largest_first_block(case, family, pages))
        changes["pages"] = msgspec.structs.replace(pages, first_block=first_block)
    try:
        return replace(case, family=family, strides=strides, **changes)
    except CaseError:
        if not strides.far:
            raise
        return replace(case, family=family, strides=msgspec.structs.replace(strides, far=()), **changes)


def _largest_first_block(case: CaseFields, family: Family, pages: PageLayout) -> int:
    """Return the largest number of a case's first page; numbers of slots have 31 bits too, where lists have them."""
    if not FAMILIES[family].cache.in_one_row:
        return LARGEST_FIRST_BLOCK
    size = pages.block_size
    return min(
        LARGEST_FIRST_BLOCK, 2**31 // size - case.total_keys // size - len(case.sequences) - pages.spare_blocks - 2
    )


def with_field(case: C, path: str, value: Any) -> C:
    """Return the case with one field changed, named like ``window`` or ``pages.permuted``, and all others as before."""
    return with_fields(case, {path: value})


def with_fields(case: C, changes: Mapping[str, Any]) -> C:
    """Return the case with fields changed; where they change the size of a page, large offsets stay as large."""
    fields: dict[str, Any] = {}
    for path, value in changes.items():
        part, _, field = path.partition(".")
        whole = fields.get(part, getattr(case, part))
        fields[part] = msgspec.structs.replace(whole, **{field: value}) if field else value
    return replace(case, **fields) if _OF_PAGES.isdisjoint(fields) else replace_layout(case, **fields)


_OF_PAGES: Final = frozenset(("heads", "pages", "strides"))
"""The parts of a case on which it depends how many elements a page has."""


def _wide(case: CaseFields) -> DTypeName:
    """Return the widest type that a case already uses, float32 where all are fp8."""
    return next((name for name in (case.dtypes.q, case.dtypes.out) if not is_fp8(name)), "float32")


def without_fp8_cache(case: CaseFields) -> CaseFields:
    """Return the case with a cache and queries of a wide type."""
    dtypes, scales = DTypes(_wide(case), _wide(case), case.dtypes.out), Scales(out=case.scales.out)
    return replace(case, dtypes=dtypes, scales=scales, uint8_cache=False)


def without_fp8_queries(case: CaseFields) -> CaseFields:
    """Return the case with queries of a wide type."""
    return with_fields(case, {"dtypes.q": _wide(case), "scales.q": 1.0})


def without_fp8_output(case: CaseFields) -> CaseFields:
    """Return the case with an output of a wide type."""
    return with_fields(case, {"dtypes.out": _wide(case), "scales.out": 1.0})


def with_type(new: DTypeName, *old: DTypeName) -> Change:
    """Return a function that replaces types of a case by another."""

    def changed(case: CaseFields) -> CaseFields:
        names = (case.dtypes.q, case.dtypes.kv, case.dtypes.out)
        return replace(case, dtypes=DTypes(*(new if name in old else name for name in names)))

    return changed


def with_dtypes(case: CaseFields, dtypes: DTypes) -> CaseFields:
    """Return the case with other types and scales of 1."""
    return replace(case, dtypes=dtypes, scales=Scales(), uint8_cache=case.uint8_cache and is_fp8(dtypes.kv))


def with_matching_types(case: CaseFields) -> CaseFields:
    """Return the case with the output of q's type, or of one kind of fp8 with the caches."""
    kind = case.dtypes.kv if is_fp8(case.dtypes.kv) else case.dtypes.out
    q = kind if is_fp8(case.dtypes.q) else case.dtypes.q
    out = kind if is_fp8(case.dtypes.out) or is_fp8(q) else q
    return replace(case, dtypes=DTypes(q, case.dtypes.kv, out))


def with_positive_scales(case: CaseFields) -> CaseFields:
    """Return the case with the absolute values of its scales, 1 and the usual softmax scale for 0."""
    positive = Scales(*(abs(scale) or 1.0 for scale in msgspec.structs.astuple(case.scales)))
    return replace(case, scales=positive, softmax_scale=abs(case.softmax_scale) or case.heads.head_size**-0.5)


def with_float32_biases(case: CaseFields) -> CaseFields:
    """Return the case with slopes, biases and sinks of float32."""
    present = (name for name in ("alibi", "qq_bias", "sinks") if getattr(case, name) is not None)
    return with_fields(case, {f"{name}.dtype": "float32" for name in present})


def with_dense_rows_and_pages(case: CaseFields) -> CaseFields:
    """Return the case without the strides that published kernels assume to be dense."""
    near = without_far(case.strides, "bias_column", "cache_slot", "cache_head", "cache_dim")
    dense = msgspec.structs.replace(near, key_piece=0, **dict.fromkeys(INNER_STRIDES, 0))
    bias = case.qq_bias and msgspec.structs.replace(case.qq_bias, order="rows", step=1)
    return replace_layout(replace(case, qq_bias=bias), strides=dense)


def with_dense_caches(case: C) -> C:
    """Return the case with caches whose slots, and pages, follow each other without padding."""
    near = without_far(case.strides, "cache_slot", "cache_head", "cache_dim")
    paddings = ("cache_slot", "value_slot", "page_head", "key_chunk", "key_slot", "value_dim")
    strides = msgspec.structs.replace(near, cache="separate", **dict.fromkeys(paddings, 0))
    return replace_layout(case, strides=strides)


def with_empty_sequences(case: CaseFields) -> CaseFields:
    """Return the case with empty sequences; a family with one token each has them only in a batch of none."""
    one_token_each = FAMILIES[case.family].one_token_each
    return replace(case, sequences=() if one_token_each else (Sequence(1), Sequence(0, 4)))


def without_empty_sequences(case: CaseFields) -> CaseFields:
    """Return the case with the other sequences, or with one token."""
    kept = tuple(sequence for sequence in case.sequences if sequence.query_len)
    return replace(case, sequences=kept or (Sequence(1),), overrides=())


def without_empty_decodes(case: CaseFields) -> CaseFields:
    """Return the case with the sequences that have a key, or with one token."""
    kept = tuple(sequence for sequence in case.sequences if not sequence.has_no_key)
    return replace(case, sequences=kept or (Sequence(1),), overrides=())


def with_enough_keys(case: CaseFields) -> CaseFields:
    """Return the case with at least as many keys as query tokens in each sequence."""
    enough = (Sequence(s.query_len, max(0, s.context_len)) for s in case.sequences)
    return replace(case, sequences=tuple(enough))


def with_sequences(case: CaseFields, most: int) -> CaseFields:
    """Return the case with its first sequences, ``most`` of them, but at least one."""
    return replace(case, sequences=case.sequences[:most] or (Sequence(1),))


def with_query_tokens(case: CaseFields, most: int) -> CaseFields:
    """Return the case with at most ``most`` query tokens in each sequence, and as many keys as before."""
    cut = (Sequence(min(s.query_len, most), s.seq_len - min(s.query_len, most)) for s in case.sequences)
    return replace(case, sequences=tuple(cut))


def with_keys(case: CaseFields, most: int) -> CaseFields:
    """Return the case with sequences of at most so many keys, query tokens before others."""
    queries = [min(s.query_len, most) for s in case.sequences]
    contexts = [min(s.context_len, most - query) for s, query in zip(case.sequences, queries, strict=True)]
    return replace(case, sequences=tuple(map(Sequence, queries, contexts)))


def without_context(case: CaseFields) -> CaseFields:
    """Return the case with all keys of a sequence new, except for empty sequences."""
    new = (Sequence(s.seq_len) if s.context_len > 0 and s.query_len else s for s in case.sequences)
    return replace(case, sequences=tuple(new))


def with_full_pages(case: CaseFields) -> CaseFields:
    """Return the case with longer contexts, which fill the last page of each sequence."""
    size = case.pages.block_size
    filled = (Sequence(s.query_len, s.context_len + -s.seq_len % size) for s in case.sequences)
    return replace(case, sequences=tuple(filled))


def with_usual_scale(case: CaseFields) -> CaseFields:
    """Return the case with the softmax scale ``head_size ** -0.5``."""
    return replace(case, softmax_scale=case.heads.head_size**-0.5)


def with_head_size(case: C, size: int) -> C:
    """Return the case with heads of another size; the usual softmax scale follows it."""
    usual = case.softmax_scale == case.heads.head_size**-0.5
    heads = msgspec.structs.replace(case.heads, head_size=size)
    return replace_layout(case, heads=heads, softmax_scale=size**-0.5 if usual else case.softmax_scale)


def with_value_size(case: C, size: int) -> C:
    """Return the case with values of another size, 0 for that of keys."""
    return replace_layout(case, heads=msgspec.structs.replace(case.heads, value_size=size))


def with_block_size(case: C, size: int) -> C:
    """Return the case with pages of another size and sequences as long as before."""
    return with_field(case, "pages.block_size", size)


def with_one_page(case: CaseFields, _: int = 1) -> CaseFields:
    """Return the case with pages that hold a whole sequence."""
    return with_block_size(case, 1 << (case.max_seq_len - 1).bit_length())


def with_page_size(case: C, size: int) -> C:
    """Return the case with pages of another size and sequences of as many pages as before."""
    before = case.pages.block_size
    scaled = (Sequence(s.query_len, _scaled(s, before, size) - s.query_len) for s in case.sequences)
    return replace(with_block_size(case, size), sequences=tuple(scaled))


def _scaled(sequence: Sequence, before: int, after: int) -> int:
    """Return the keys of a sequence that fills as many pages of another size, as little of the last as it can."""
    if not sequence.seq_len:
        return 0
    return max((-(-sequence.seq_len // before) - 1) * after + 1, sequence.query_len)
