"""Write draws: strategies of cases of cache writes."""

from __future__ import annotations

from typing import Any, Final, get_args

from hypothesis import strategies as st

from fuzz_attn.case.domain import within
from fuzz_attn.case.parts import DTYPES, is_fp8
from fuzz_attn.operations.cache_write.write_case import (
    LARGEST,
    LARGEST_NUMBER,
    MOST_ELEMENTS,
    OWN_SCALES,
    WriteAxis,
    WriteCase,
    WriteDomain,
    WriteKey,
)
from fuzz_attn.operations.small_draws import FEW, HEADS, OFTEN, RARELY, SEEDS, far_axes, grown, with_far_axes
from fuzz_attn.strategies.draws import composite, sampled_from

_TOKENS: Final = sampled_from((1, 2, 3, 5, 8, 16, 17, 33))
_SPARE: Final = sampled_from((0, 1, 2, 5))
_UNITS: Final = sampled_from((1.0, 2.0**-6, 0.01, 37.0, 1e-4))
_SCALES: Final = sampled_from((1.0, 0.5, 3.0, 0.3))
_SMALL: Final = (1.0, 1.0, 16.0, 0.02)
_LARGE: Final = (500.0, 1e5)
_MAGNITUDES: Final = (1.0, 1.0, 1e-6, 300.0)
_BEYOND: Final = (1e5,)
_FAR_AXES: Final = {own: far_axes(get_args(WriteAxis), OFTEN if own else RARELY) for own in (False, True)}
"""Far axes by whether the caches have scales of their own, as fewer types do."""
_SELDOM: Final = sampled_from((False,) * 15 + (True,))
_LARGEST: Final = {name: LARGEST[name] for name in ("num_tokens", "num_heads")} | {
    "spare_slots": LARGEST["spare_pages"]
}
MOST_FAR: Final = 64
FAR_PAGES: Final = 2
"""Spare pages of a far cache at least: with three pages, strides are below 2^31 and offsets are not."""


@composite
def write_cases(draw: st.DrawFn, domain: WriteDomain, keys: tuple[WriteKey, ...]) -> WriteCase:
    """Return a strategy of cases of some compile keys; shrinks towards one token and one head."""
    key = draw(sampled_from(keys))
    sizes = {"num_tokens": draw(_TOKENS), "num_heads": draw(HEADS), "spare_slots": draw(_SPARE) * key.page_size}
    shuffled = draw(OFTEN)
    skipped = domain.allows("skipped") and draw(OFTEN)
    heads_first = domain.allows("heads_first") and draw(RARELY)
    gap = draw(FEW) if domain.allows("strides") and draw(RARELY) else 0
    value_gap = draw(FEW) if domain.allows("value_strides") and draw(RARELY) else 0
    fused = domain.allows("fused") and draw(RARELY)
    padded = draw(FEW) if domain.allows("padded_tokens") and draw(RARELY) else 0
    far = domain.allows("far") and draw(_SELDOM)
    magnitude, k_scale, v_scale = draw(_numbers(key, overflows=domain.allows("overflow")))
    width = key.head_size + gap + value_gap
    sizes = draw(grown(sizes, _LARGEST, width))
    tokens, heads, spare = sizes["num_tokens"], sizes["num_heads"], sizes["spare_slots"] // key.page_size
    heads = heads if within(heads, domain.num_heads) else domain.num_heads[0]
    names = draw(_FAR_AXES[key.stored_as.endswith(OWN_SCALES)]) if domain.allows("far_axes") else ()
    far = far and tokens <= MOST_FAR * key.page_size
    spare = min(max(spare, FAR_PAGES), MOST_FAR) if far or "scale_caches_page" in names else spare
    pages = -(-tokens // key.page_size) + spare
    if pages * key.page_size * heads * width > MOST_ELEMENTS:
        heads, spare = 1, min(spare, FAR_PAGES)
    zero_rows = draw(RARELY)
    case = WriteCase(
        num_tokens=tokens,
        num_heads=heads,
        spare_pages=spare,
        head_size=key.head_size,
        page_size=key.page_size,
        dtype=key.dtype,
        stored_as=key.stored_as,
        magnitude=magnitude,
        k_scale=k_scale,
        v_scale=v_scale,
        shuffled=shuffled or far,
        skipped=skipped,
        heads_first=heads_first,
        head_gap=gap,
        value_gap=value_gap,
        fused=fused,
        padded_tokens=padded,
        far=far,
        seed=draw(SEEDS),
        zero_rows=zero_rows,
    )
    return with_far_axes(case, names)


@composite
def _numbers(draw: st.DrawFn, key: WriteKey, *, overflows: bool) -> tuple[float, float, float]:
    """Return a strategy of a magnitude and the scales of K and V; shrinks towards 1.

    The scales lie within a factor of ten of each other, or one of the caches would hold only zeros or its largest
    number. Without ``overflows`` all numbers stay within the cache.
    """
    if key.stored_as.endswith(OWN_SCALES):
        return draw(_UNITS) * draw(sampled_from(_SMALL)), 1.0, 1.0
    stored: Any = key.dtype if key.stored_as == "same" else key.stored_as
    if is_fp8(stored):
        unit = draw(_UNITS)
        k_scale, v_scale = unit * draw(_SCALES), unit * draw(_SCALES)
        return unit * draw(sampled_from(_SMALL + _LARGE * overflows)), k_scale, v_scale
    is_within = _BEYOND[0] * LARGEST_NUMBER < DTYPES[stored].largest
    return draw(sampled_from(_MAGNITUDES + _BEYOND * (overflows or is_within))), 1.0, 1.0
