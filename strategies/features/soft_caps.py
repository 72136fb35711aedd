"""Soft caps: the bound ``c`` of ``c * tanh(s / c)``."""

from __future__ import annotations

from hypothesis import strategies as st

from fuzz_attn.strategies.sampling.draws import sampled_from

SOFT_CAPS = (1.0, 10.0, 30.0, 50.0, 0.5, 0.125, 5.5, 4096.0)
"""Caps of models (30, 50), caps that bend every logit, and tiny caps: there wide scores make ``|s / c|`` exceed 88,
where the exponential of a float32 overflows. One cap is far above all logits and must not change them."""


def soft_caps() -> st.SearchStrategy[float]:
    """Return a strategy of positive soft caps; shrinks towards 1."""
    return sampled_from(SOFT_CAPS)
