"""Memory layouts: how the tensors of a case are strided."""

from __future__ import annotations

from typing import Literal

from hypothesis import strategies as st

from fuzz_attn.case import Strides
from fuzz_attn.strategies.draws import composite

_STRIDED = st.sampled_from((False, False, False, True, True))
_PADDING = st.sampled_from((0, 0, 1, 3, 8, 16))
_CACHES: st.SearchStrategy[Literal["separate", "kv_first", "blocks_first", "heads_first"]] = st.sampled_from(
    ("separate", "kv_first", "blocks_first", "heads_first")
)
_DENSE = Strides()


@composite
def memory_layouts(draw: st.DrawFn) -> Strides:
    """Draw the strides of a case; shrinks towards dense tensors, which three in five cases have."""
    if not draw(_STRIDED):
        return _DENSE
    return Strides(
        q_token=draw(_PADDING),
        q_head=draw(_PADDING),
        out_token=draw(_PADDING),
        out_head=draw(_PADDING),
        cache=draw(_CACHES),
        cache_slot=draw(_PADDING),
        block_table=draw(_PADDING),
    )
