"""Equal heads: the query heads that give all their keys the same weight, whatever the recipes say."""

from __future__ import annotations

import numpy as np

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.inputs.random_bits import Stream

_EQUAL = 31


def equal_heads(case: AttentionCase) -> np.typing.NDArray[np.bool_]:
    """Return which query heads have queries, slopes and sinks of 0: about three in four, and at least one."""
    num_heads = case.heads.num_query_heads
    chosen: np.typing.NDArray[np.bool_] = Stream(case.seed, _EQUAL).below(4, num_heads) > 0
    chosen[case.seed % num_heads] = True
    return chosen & case.equal_heads
