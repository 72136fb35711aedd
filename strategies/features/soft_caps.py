"""Soft caps: the bound ``c`` of ``c * tanh(s / c)``."""

from __future__ import annotations

from hypothesis import strategies as st

from fuzz_attn.strategies.sampling.draws import sampled_from

SOFT_CAPS = (1.0, 10.0, 30.0, 50.0, 0.5, 0.125, 5.5, 4096.0)
"""Those of models (30, 50), those that bend every logit, and tiny ones: wide scores make ``|s / c|`` exceed 88 there,
where the exponential of a float32 overflows. One far above all logits has to leave them as they are."""


def soft_caps() -> st.SearchStrategy[float]:
    """Return a strategy of positive soft caps; shrinks towards 1."""
    return sampled_from(SOFT_CAPS)
