"""Siblings: larger cases of the same kind, for what a shrunk case with one key or one head cannot tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from fuzz_attn.case import traits
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.description import describe
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import HeadLayout, Sequence
from fuzz_attn.case.recipes import NormalScores
from fuzz_attn.errors import CaseError

WIDE_HEAD: Final = 24
"""A head size for which the padding to a power of two overlaps the next head in part only."""
NO_LIMIT: Final = 4096


class Growth(NamedTuple):
    """How much longer a sibling is: keys, query tokens, and keys of the window."""

    keys: int
    queries: int
    window: int = 0


GROWTHS: Final = (Growth(21, 3), Growth(75, 3), Growth(21, 0))
WITH_WINDOW: Final = (Growth(21, 3), Growth(21, 3, 5), Growth(75, 3, 37), Growth(21, 0))


def siblings(case: AttentionCase) -> Iterator[AttentionCase]:
    """Yield longer cases with the same features, with two sequences where there is one."""
    for growth in WITH_WINDOW if case.window else GROWTHS:
        longer = _grown(case, growth)
        if longer is not None:
            yield longer
    more = with_more_heads(case)
    if more is not None:
        yield more


def without_empty(case: AttentionCase) -> AttentionCase | None:
    """Return a case without its sequences that have no query tokens; None where there is none, or are no others."""
    answered = tuple(sequence for sequence in case.sequences if sequence.query_len)
    if not answered or len(answered) == len(case.sequences):
        return None
    try:
        return replace(case, sequences=answered)
    except CaseError:
        return None


def with_one_page(case: AttentionCase) -> AttentionCase | None:
    """Return a case whose sequences have no more keys than a page; None where they have none, or more new tokens."""
    size = case.pages.block_size
    if case.max_seq_len <= size or any(sequence.query_len > size for sequence in case.sequences):
        return None
    shorter = tuple(
        Sequence(sequence.query_len, min(sequence.context_len, size - sequence.query_len))
        for sequence in case.sequences
    )
    try:
        return replace(case, sequences=shorter, overrides=())
    except CaseError:
        return None


def with_more_heads(case: AttentionCase) -> AttentionCase | None:
    """Return a longer case with two KV heads and groups of two; None where it has as many heads."""
    if case.heads.num_kv_heads > 1 and case.heads.num_queries_per_kv > 1:
        return None
    longer = _grown(case, Growth(21, 3))
    if longer is None:
        return None
    try:
        return replace(longer, heads=HeadLayout(2, 2, longer.heads.head_size))
    except CaseError:
        return None


def without_limit(case: AttentionCase) -> AttentionCase | None:
    """Return a case without a window with one that hides nothing; None for a case with a window."""
    return None if case.window else replace(case, window=NO_LIMIT)


def difference(case: AttentionCase, other: AttentionCase) -> str:
    """Return the lines of a case in words that another case does not have."""
    known = describe(case)
    return "; ".join(f"{what}: {words}" for what, words in describe(other) if (what, words) not in known)


def _grown(case: AttentionCase, growth: Growth) -> AttentionCase | None:
    """Return a longer case; None where it cannot exist."""
    sequences = tuple(_longer(sequence, growth, case) for sequence in case.sequences)
    if len(sequences) == 1:
        first = sequences[0]
        sequences = (first, msgspec.structs.replace(first, context_len=first.context_len + 4))
    window = case.window + growth.window
    try:
        longer = replace(case, sequences=sequences, window=window, scores=NormalScores(), overrides=())
        size = case.heads.head_size
        if (size < WIDE_HEAD and size & (size - 1)) or size < 16:
            longer = traits.with_head_size(longer, size=WIDE_HEAD)
    except CaseError:
        return None
    return longer


def _longer(sequence: Sequence, growth: Growth, case: AttentionCase) -> Sequence:
    """Return a sequence with more keys; its kernel stays the same where that depends on the query's length."""
    if not sequence.query_len:
        return sequence
    decodes = FAMILIES[case.family].decodes_apart or case.filter_by_query_len
    more = 0 if decodes and sequence.query_len == 1 else growth.queries
    return Sequence(sequence.query_len + more, sequence.context_len + growth.keys)
