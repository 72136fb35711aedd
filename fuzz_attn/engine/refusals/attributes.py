"""Attributes: what a target may refuse of a case. Each has one value in a case, which a probe can change."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec

from fuzz_attn.case.attention_case import AttentionCase, replace, replace_layout
from fuzz_attn.case.case_fields import CaseFields
from fuzz_attn.case.compile_key import CompileKey
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.dtypes import is_fp8
from fuzz_attn.case.families import Feature
from fuzz_attn.case.features import CASE_FEATURES
from fuzz_attn.case.parts import DTypes, LaunchHints, Scales, Sequence, Strides
from fuzz_attn.case.recipes import QQBiasRecipe, SinkRecipe
from fuzz_attn.case.traits import ADDED_FEATURES, with_feature, without_feature
from fuzz_attn.strategies.dtypes import fp8_dtypes, plain_dtypes
from fuzz_attn.strategies.heads import group_sizes, head_sizes
from fuzz_attn.strategies.launches import launch_paths, stage_counts, tile_sizes, warp_counts
from fuzz_attn.strategies.pages import block_sizes

Value: TypeAlias = Hashable
Changed: TypeAlias = Callable[[AttentionCase, Any], AttentionCase]


class Attribute(NamedTuple):
    """One attribute of a case.

    ``changed`` returns a case with another value; raises :class:`fuzz_attn.errors.CaseError` where the rest of the case
    does not allow it. ``values`` are those worth trying in a domain, the simplest first. A ``growing`` attribute is a
    size that a target may limit; it has only its simplest value there. ``of_key`` is the value in a compile key.
    """

    name: str
    of_case: Callable[[CaseFields], Value]
    changed: Changed
    values: Callable[[Domain], tuple[Any, ...]]
    words: Callable[[Any], str] = str
    growing: bool = False
    of_key: Callable[[CompileKey], Value] | None = None
    feature: Feature | None = None


def _set(**changes: Any) -> Changed:
    """Return a change to the simplest value, which sets fields of the case."""
    return lambda case, value: replace(case, **changes)


def _set_part(part: str, field: str) -> Changed:
    """Return a change of one field of a part of the case."""

    def changed(case: AttentionCase, value: Any) -> AttentionCase:
        return replace(case, **{part: msgspec.structs.replace(getattr(case, part), **{field: value})})

    return changed


def _with_dtypes(case: AttentionCase, dtypes: DTypes) -> AttentionCase:
    return replace(case, dtypes=dtypes, scales=Scales(), uint8_cache=case.uint8_cache and is_fp8(dtypes.kv))


def _dtypes_in_words(dtypes: DTypes) -> str:
    if dtypes.q == dtypes.kv == dtypes.out:
        return dtypes.q
    return f"q {dtypes.q} with cache {dtypes.kv} and output {dtypes.out}"


def _launch_of(fields: CaseFields | CompileKey) -> LaunchHints:
    return LaunchHints(path=fields.launch.path, num_segments=fields.launch.num_segments)


def _with_launch(case: AttentionCase, launch: LaunchHints) -> AttentionCase:
    changed = msgspec.structs.replace(case.launch, path=launch.path, num_segments=launch.num_segments)
    return replace(case, launch=changed)


def _launch_in_words(launch: LaunchHints) -> str:
    return f"3d with {launch.num_segments} segments" if launch.num_segments else launch.path


def _with_sequences(case: AttentionCase, count: int) -> AttentionCase:
    return replace(case, sequences=case.sequences[:count] or (Sequence(1),))


def _with_longest_query(case: AttentionCase, longest: int) -> AttentionCase:
    short = (Sequence(min(s.query_len, longest), s.context_len) for s in case.sequences)
    return replace(case, sequences=tuple(short))


def _with_longest(case: AttentionCase, longest: int) -> AttentionCase:
    queries = [min(s.query_len, longest) for s in case.sequences]
    contexts = [min(s.context_len, longest - query) for s, query in zip(case.sequences, queries, strict=True)]
    return replace(case, sequences=tuple(map(Sequence, queries, contexts)))


def _dense(case: AttentionCase, value: bool) -> AttentionCase:
    return replace_layout(case, strides=Strides(cache=case.strides.cache))


def _with_arrangement(case: AttentionCase, cache: Any) -> AttentionCase:
    return replace_layout(case, strides=msgspec.structs.replace(case.strides, cache=cache))


_SWITCHED: Final[dict[str, Any]] = {
    "filter_by_query_len": True,
    "uint8_cache": True,
    "stale_cache": True,
    "padded_tokens": 1,
}
"""Features that are fields of the case and that no target requires, with their value where a probe switches them on.

They and ``ADDED_FEATURES`` are attributes by their own name; the types are one attribute, the strides another.
"""


def _switch(name: Feature, case: AttentionCase, on: bool) -> AttentionCase:
    if on and name in _SWITCHED:
        return replace(case, **{name: _SWITCHED[name]})
    return with_feature(case, name) if on else without_feature(case, name)


def _values_of_feature(name: Feature, domain: Domain) -> tuple[bool, ...]:
    return (False, True) if name in ADDED_FEATURES and domain.allows(name) else (False,)


def _feature_of_key(name: str, key: CompileKey) -> bool:
    return bool(getattr(key, name))


def _features() -> tuple[Attribute, ...]:
    return tuple(
        Attribute(
            feature.words,
            feature.present,
            partial(_switch, feature.name),
            partial(_values_of_feature, feature.name),
            of_key=partial(_feature_of_key, feature.name) if feature.compiled else None,
            feature=feature.name,
        )
        for feature in CASE_FEATURES
        if feature.name in ADDED_FEATURES or feature.name in _SWITCHED
    )


def _off(domain: Domain) -> tuple[bool]:
    return (False,)


def _one(domain: Domain) -> tuple[int]:
    return (1,)


def _of(value: Value) -> Callable[[Domain], tuple[Any, ...]]:
    return lambda domain: (value,)


def _all_dtypes(domain: Domain) -> tuple[DTypes, ...]:
    return (*plain_dtypes(domain), *fp8_dtypes(domain))


ATTRIBUTES: Final[tuple[Attribute, ...]] = (
    Attribute(
        "large offsets",
        lambda case: case.pages.first_block > 0,
        lambda case, value: without_feature(case, "large_offsets"),
        _off,
        feature="large_offsets",
    ),
    Attribute("padding between rows", lambda case: _padded(case.strides), _dense, _off, feature="strides"),
    Attribute("caches arranged as", lambda case: case.strides.cache, _with_arrangement, _of("separate")),
    Attribute(
        "sequences without query tokens",
        lambda case: not case.sequences or any(not sequence.query_len for sequence in case.sequences),
        lambda case, value: without_feature(case, "empty_sequences"),
        _off,
        feature="empty_sequences",
    ),
    Attribute(
        "decodes of length 0",
        lambda case: any(sequence.has_no_key for sequence in case.sequences),
        lambda case, value: without_feature(case, "empty_decodes"),
        _off,
        feature="empty_decodes",
    ),
    Attribute(
        "pages permuted, shared or repeated",
        lambda case: case.pages.permuted or case.pages.shared_prefix > 0 or case.pages.repeated,
        lambda case, value: replace(
            case, pages=msgspec.structs.replace(case.pages, permuted=False, shared_prefix=0, repeated=False)
        ),
        _off,
    ),
    Attribute(
        "spare pages or a wider block table",
        lambda case: case.pages.spare_blocks > 0 or case.pages.extra_columns > 0,
        lambda case, value: replace(case, pages=msgspec.structs.replace(case.pages, spare_blocks=0, extra_columns=0)),
        _off,
    ),
    Attribute("scales other than 1", lambda case: case.scales != Scales(), _set(scales=Scales()), _off),
    Attribute(
        "a softmax scale other than head_size**-0.5",
        lambda case: case.softmax_scale != case.heads.head_size**-0.5,
        lambda case, value: replace(case, softmax_scale=case.heads.head_size**-0.5),
        _off,
    ),
    Attribute(
        "a bias of another shape than the longest query",
        lambda case: case.qq_bias is not None and (case.qq_bias.extra_rows, case.qq_bias.extra_columns) != (0, 0),
        _set(qq_bias=QQBiasRecipe()),
        _off,
    ),
    Attribute(
        "type of sinks",
        lambda case: case.sinks.dtype if case.sinks else "float32",
        _set(sinks=SinkRecipe()),
        _of("float32"),
    ),
    Attribute("KV heads", lambda case: case.heads.num_kv_heads, _set_part("heads", "num_kv_heads"), _one, growing=True),
    Attribute("sequences", lambda case: len(case.sequences), _with_sequences, _one, growing=True),
    Attribute("query tokens of a sequence", lambda case: case.max_query_len, _with_longest_query, _one, growing=True),
    Attribute("keys of a sequence", lambda case: case.max_seq_len, _with_longest, _one, growing=True),
    *_features(),
    Attribute(
        "path",
        _launch_of,
        _with_launch,
        lambda domain: launch_paths(domain=domain),
        _launch_in_words,
        of_key=_launch_of,
    ),
    Attribute(
        "tile size",
        lambda case: case.launch.tile_size,
        _set_part("launch", "tile_size"),
        lambda domain: tile_sizes(domain=domain),
        of_key=lambda key: key.launch.tile_size,
    ),
    Attribute(
        "num_warps",
        lambda case: case.launch.num_warps,
        _set_part("launch", "num_warps"),
        lambda domain: warp_counts(domain=domain),
        of_key=lambda key: key.launch.num_warps,
    ),
    Attribute(
        "num_stages",
        lambda case: case.launch.num_stages,
        _set_part("launch", "num_stages"),
        lambda domain: stage_counts(domain=domain),
        of_key=lambda key: key.launch.num_stages,
    ),
    Attribute(
        "query heads for each KV head",
        lambda case: case.heads.num_queries_per_kv,
        _set_part("heads", "num_queries_per_kv"),
        lambda domain: group_sizes(domain=domain),
        of_key=lambda key: key.num_queries_per_kv,
    ),
    Attribute(
        "page size",
        lambda case: case.pages.block_size,
        _set_part("pages", "block_size"),
        lambda domain: block_sizes(domain=domain),
        of_key=lambda key: key.block_size,
    ),
    Attribute(
        "head size",
        lambda case: case.heads.head_size,
        _set_part("heads", "head_size"),
        lambda domain: head_sizes(domain=domain),
        of_key=lambda key: key.head_size,
    ),
    Attribute(
        "type", lambda case: case.dtypes, _with_dtypes, _all_dtypes, _dtypes_in_words, of_key=lambda key: key.dtypes
    ),
)
"""Every attribute, in the order in which a reduction tries to make it simple: rare ones first."""

BY_NAME: Final = {attribute.name: attribute for attribute in ATTRIBUTES}


def _padded(strides: Strides) -> bool:
    return msgspec.structs.replace(strides, cache="separate") != Strides()


def values_of(case: AttentionCase) -> tuple[Value, ...]:
    """Return the value of every attribute, in their order."""
    return tuple(attribute.of_case(case) for attribute in ATTRIBUTES)


def simplest(attribute: Attribute, domain: Domain) -> Value:
    """Return the simplest value of an attribute in a domain."""
    return cast(Value, attribute.values(domain)[0])
