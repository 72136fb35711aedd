"""Call forms: arguments in one of several forms with the same meaning."""

from __future__ import annotations

from typing import Literal

from hypothesis import strategies as st

from fuzz_attn.case.parts import CallForm
from fuzz_attn.strategies.draws import composite, sampled_from

_OTHER = sampled_from((False,) * 5 + (True,))
_SCALES: st.SearchStrategy[Literal["vector", "scalar", "expanded", "omitted"]] = sampled_from(
    ("vector", "expanded", "expanded", "scalar", "omitted")
)
_THREE = sampled_from((0, 1, 2))
_ROWS = sampled_from((0, 0, 1, 3))


@composite
def call_forms(draw: st.DrawFn) -> CallForm:
    """Return a strategy of forms, five in six of them the default; shrinks towards it."""
    if not draw(_OTHER):
        return CallForm()
    return CallForm(
        scales=draw(_SCALES),
        window=draw(_THREE),
        cache_name=draw(_THREE),
        extra_table_rows=draw(_ROWS),
        extra_output_rows=draw(_ROWS),
        extra_new_rows=draw(_ROWS),
    )
