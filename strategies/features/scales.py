"""Scales of the softmax and of one-byte types."""

from __future__ import annotations

from functools import lru_cache

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from fuzz_attn.case.dtypes import is_fp8
from fuzz_attn.case.parts import DTypes, Scales
from fuzz_attn.strategies.sampling.draws import composite, sampled_from

FP8_SCALES = (1.0, 2.0, 0.5, 0.3, 1.7, 3.0, 0.125, 11.0, 2.0**5, 2.0**-8)
"""Powers of two, other numbers, and both extremes; independent for K and V, so that they are seldom equal."""

_FP8_SCALES = sampled_from(FP8_SCALES)
_ALL_ONE = sampled_from((Scales(),))


def softmax_scales(*, head_size: int = 16) -> st.SearchStrategy[float]:
    """Return a strategy of positive softmax scales, mostly ``head_size ** -0.5``; shrinks towards it."""
    if head_size < 1:
        raise InvalidArgument(f"{head_size=} must be at least 1")
    return _softmax_scales(head_size)


@lru_cache(maxsize=1024)
def _softmax_scales(head_size: int) -> st.SearchStrategy[float]:
    return sampled_from((head_size**-0.5,) * 14 + (1.0, 1.0 / head_size, 0.1))


def scales(*, dtypes: DTypes = DTypes(), fp8_q_scales: bool = True) -> st.SearchStrategy[Scales]:  # noqa: B008 (frozen)
    """Return a strategy of the scales of one-byte types; shrinks towards 1, the scale of every other type.

    Without ``fp8_q_scales`` all are 1 for one-byte queries.
    """
    if is_fp8(dtypes.q) and not fp8_q_scales:
        return _ALL_ONE
    return _cached_scales(dtypes)


@lru_cache(maxsize=256)
def _cached_scales(dtypes: DTypes) -> st.SearchStrategy[Scales]:
    return _scales(dtypes)


@composite
def _scales(draw: st.DrawFn, dtypes: DTypes) -> Scales:
    return Scales(
        q=draw(_FP8_SCALES) if is_fp8(dtypes.q) else 1.0,
        k=draw(_FP8_SCALES) if is_fp8(dtypes.kv) else 1.0,
        v=draw(_FP8_SCALES) if is_fp8(dtypes.kv) else 1.0,
        out=draw(_FP8_SCALES) if is_fp8(dtypes.out) else 1.0,
    )
