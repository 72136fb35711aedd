"""Simplicity: the order of cases from what a person reads fastest to what takes longest."""

from __future__ import annotations

import msgspec

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.traits import FEATURES, KINDS, SIMPLEST_SIZE
from fuzz_attn.counterexamples.counterexample import Counterexample


def simplicity(case: AttentionCase, relation: str | None = None) -> tuple[float, ...]:
    """Return a key by which simpler cases come first.

    Few features and oddities count most, then plain types and heads, then few and short sequences, then small numbers.
    A relation counts as two features, because its case is two launches.
    """
    heads, pages = case.heads, case.pages
    return (
        sum(trait.present(case) for trait in FEATURES) + 2 * bool(relation),
        sum(trait.present(case) for trait in KINDS),
        len(case.sequences),
        case.total_keys,
        case.num_tokens,
        heads.num_query_heads,
        heads.num_kv_heads,
        abs(heads.head_size - SIMPLEST_SIZE) + abs(pages.block_size - SIMPLEST_SIZE),
        case.window + case.launch.num_segments + case.launch.tile_size + abs(case.softcap - 1.0),
        case.padded_tokens + sum(map(_number, (*_fields(case.strides), *_fields(case.pages)))),
        len(msgspec.json.encode(case)),
        case.seed,
    )


def is_simpler(found: Counterexample, other: Counterexample) -> bool:
    """Return whether a counterexample has a simpler case than another one."""
    return simplicity(found.case, found.relation) < simplicity(other.case, other.relation)


def _fields(part: msgspec.Struct) -> tuple[object, ...]:
    return msgspec.structs.astuple(part)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
