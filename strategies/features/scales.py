"""Scales of the softmax and of one-byte types."""

from __future__ import annotations

from functools import lru_cache

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from fuzz_attn.case.dtypes import DTypeName, is_fp8
from fuzz_attn.case.parts import DTypes, Scales
from fuzz_attn.strategies.sampling.draws import composite, sampled_from

FP8_SCALES = (1.0, 2.0, 0.5, 0.3, 1.7, 3.0, 0.125, 11.0, 2.0**5, 2.0**-8)
"""Powers of two, other numbers, and both extremes; independent for K and V, so that they are seldom equal."""

OTHER_SIGNS = (-1.0, -0.3, -2.0, 0.0)
"""Scales of other signs than those in serving. The output is divided by its scale, which is never 0."""

_FP8_SCALES = sampled_from(FP8_SCALES)
_OTHER_SIGNS = sampled_from(OTHER_SIGNS)
_NEGATIVE = sampled_from(tuple(scale for scale in OTHER_SIGNS if scale))
_RARELY = sampled_from((False,) * 15 + (True,))
_ALL_ONE = sampled_from((Scales(),))


def softmax_scales(*, head_size: int = 16, other_signs: bool = False) -> st.SearchStrategy[float]:
    """Return a strategy of softmax scales, mostly ``head_size ** -0.5``; shrinks towards it.

    All are positive, unless ``other_signs`` are allowed.
    """
    if head_size < 1:
        raise InvalidArgument(f"{head_size=} must be at least 1")
    return _softmax_scales(head_size, other_signs)


@lru_cache(maxsize=1024)
def _softmax_scales(head_size: int, other_signs: bool) -> st.SearchStrategy[float]:
    usual = head_size**-0.5
    rare = (-usual, -usual, -1.0, -1.0, 0.0) if other_signs else (usual,) * 5
    return sampled_from((*(usual,) * 68, *rare, *(1.0,) * 5, *(1.0 / head_size,) * 5, *(0.1,) * 5))


def scales(
    *,
    dtypes: DTypes = DTypes(),  # noqa: B008 (frozen)
    fp8_q_scales: bool = True,
    other_signs: bool = False,
) -> st.SearchStrategy[Scales]:
    """Return a strategy of the scales of one-byte types; shrinks towards 1, the scale of every other type.

    Without ``fp8_q_scales`` all are 1 for one-byte queries. With ``other_signs`` a few are negative or 0.
    """
    if is_fp8(dtypes.q) and not fp8_q_scales:
        return _ALL_ONE
    return _cached_scales(dtypes, other_signs)


@lru_cache(maxsize=256)
def _cached_scales(dtypes: DTypes, other_signs: bool) -> st.SearchStrategy[Scales]:
    return _scales(dtypes, other_signs)


@composite
def _scales(draw: st.DrawFn, dtypes: DTypes, other_signs: bool) -> Scales:
    def scale(dtype: DTypeName, others: st.SearchStrategy[float]) -> float:
        if not is_fp8(dtype):
            return 1.0
        usual, rare, other = draw(_FP8_SCALES), draw(_RARELY), draw(others)
        return other if rare and other_signs else usual

    kv = dtypes.kv
    return Scales(
        q=scale(dtypes.q, _OTHER_SIGNS),
        k=scale(kv, _OTHER_SIGNS),
        v=scale(kv, _OTHER_SIGNS),
        out=scale(dtypes.out, _NEGATIVE),
    )
