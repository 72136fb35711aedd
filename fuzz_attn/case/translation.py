"""Translation: the same attention problem as a case of another kernel family."""

from __future__ import annotations

import msgspec

from fuzz_attn.case.attention_case import AttentionCase, replace_layout
from fuzz_attn.case.checks import inexpressible
from fuzz_attn.case.dtypes import is_fp8
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.mask_recipes import CAUSAL
from fuzz_attn.case.parts import LaunchHints


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
    # Drops what only says how the problem reaches the kernel. The unified family can express everything else.
    bare = replace_layout(
        case,
        family="unified",
        strides=msgspec.structs.replace(case.strides, cache=cache),
        filter_by_query_len=False,
        uint8_cache=False,
        stale_cache=False,
        ragged_splits=False,
        lse=None,
        launch=LaunchHints(),
    )
    return None if inexpressible(bare, family) else replace_layout(bare, family=family)
