"""Translation: one attention problem in the words of another kernel family."""

from __future__ import annotations

import msgspec

from fuzz_attn.case.attention_case import AttentionCase, LaunchHints, inexpressible, is_fp8, rearranged
from fuzz_attn.case.families import SPLIT_CACHES, Family, reads_dense


def translated(case: AttentionCase, family: Family) -> AttentionCase | None:
    """Return the case as one of another family with the same exact output, None where that family cannot express it.

    Rows that the case's own family leaves alone have no counterpart. New tokens read densely packed and read from the
    cache are the same numbers, unless the cache rounds them to fp8. Where several keys share a slot, which of them it
    holds depends on which are stored at all.
    """
    if not all(case.answers):
        return None
    own_slots = not (case.pages.shared_prefix or case.pages.repeated)
    moved = tuple(reads_dense(family, s.query_len) for s in case.sequences) != case.reads_dense
    if (moved and is_fp8(case.dtypes.kv)) or ((moved or case.stale_cache) and not own_slots):
        return None
    cache = "separate" if family in SPLIT_CACHES and case.strides.cache == "heads_first" else case.strides.cache
    # What only says how the same problem reaches the kernel stays behind; the unified family can express all the rest.
    bare = rearranged(
        case,
        family="unified",
        strides=msgspec.structs.replace(case.strides, cache=cache),
        filter_by_query_len=False,
        uint8_cache=False,
        stale_cache=False,
        launch=LaunchHints(),
    )
    return None if inexpressible(bare, family) else rearranged(bare, family=family)
