"""Rounding of the float formats of Triton's IR, and conversion between their bits and their values.

Values of every format of at most 32 bits live in float32 arrays; a value of a narrow format is one that the
format can represent. A cast to a narrow format rounds (to nearest even unless the IR says towards zero). Casts
to fp8 saturate at the largest finite value, as the hardware's `cvt.rn.satfinite` does, infinities included; NaN
stays NaN. Casts to bf16 and fp16 overflow to infinity.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]

# Below this many elements numpy's conversions are faster than torch's kernels, each call of which costs some 25
# microseconds more in a launch than in a tight loop.
_SMALL = {"bf16": 131072, "f16": 8192}
_SMALL_READ = 8192
_HALF = {"bf16": torch.bfloat16, "f16": torch.float16}
_FP8 = {"f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn), "f8E5M2": np.dtype(ml_dtypes.float8_e5m2)}
_LARGEST = {"f8E4M3FN": np.float32(448.0), "f8E5M2": np.float32(57344.0)}
_DECODE = {element: np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32) for element, dtype in _FP8.items()}

_UPPER = 1 if sys.byteorder == "little" else 0
"""Which half of a float32 is a bfloat16."""

STORAGE: dict[str, np.dtype[Any]] = {
    "i1": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),
    "f8E4M3FN": np.dtype(np.uint8),
    "f8E5M2": np.dtype(np.uint8),
}
"""The numpy type that holds an element in memory; formats that numpy lacks are held as bits."""

CONTAINER: dict[str, np.dtype[Any]] = {
    element: np.dtype(np.float32) if element in ("f16", "bf16", *_FP8) else storage
    for element, storage in STORAGE.items()
}
"""The numpy type that holds an element inside a running kernel."""


_TF32: Final = np.int32(~0x1FFF)


def round_bf16(values: Array) -> Array:
    """Return float32 values rounded to bfloat16, to nearest even; NaN stays NaN."""
    if values.size > _SMALL["bf16"]:
        return _through_torch(values, torch.bfloat16)
    rounded: Array = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    return rounded


def round_f16(values: Array) -> Array:
    """Return float32 values rounded to float16, to nearest even, subnormals kept, overflow to infinity."""
    if values.size > _SMALL["f16"]:
        return _through_torch(values, torch.float16)
    return values.astype(np.float16).astype(np.float32)


def cut_to_tf32(values: Array) -> Array:
    """Return float32 values without their 13 low bits, as an H200's tensor cores read them in tf32."""
    cut: Array = (values.view(np.int32) & _TF32).view(np.float32)
    return cut


def _through_torch(values: Array, dtype: torch.dtype) -> Array:
    source = values if values.flags.writeable else values.copy()
    result: Array = torch.from_numpy(source).to(dtype).to(torch.float32).numpy()
    return result


def round_fp8(values: Array, element: str) -> Array:
    """Return float32 values rounded to an fp8 format, to nearest even, saturating at its largest finite value."""
    rounded: Array = _fp8_tables(element)[0].take(_upper_halves(values))
    return rounded


def _upper_halves(values: Array) -> Array:
    """Return the upper 16 bits of float32 values, the last one set where any of the lower ones is.

    They round to fp8 as the values do: the numbers between which fp8 rounds have fewer bits than these keep.
    """
    bits = values.view(np.uint32)
    upper = bits >> np.uint32(16)
    upper |= (bits & np.uint32(0xFFFF)) != 0
    return upper


@functools.lru_cache(maxsize=2)
def _fp8_tables(element: str) -> tuple[Array, Array]:
    """Return what each upper half rounds to, saturating, and the bits of those that the format can represent."""
    values = (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)).view(np.float32)
    largest = _LARGEST[element]
    with np.errstate(all="ignore"):
        rounded = np.clip(values, -largest, largest).astype(_FP8[element]).view(np.uint8)
        return _DECODE[element].take(rounded), values.astype(_FP8[element]).view(np.uint8)


def round_to(values: Array, element: str) -> Array:
    """Return float32 or float64 values as values of `element`, rounded as a `truncf` or `fp_to_fp` does."""
    if element == "f64":
        return values.astype(np.float64)
    if values.dtype != np.float32:
        values = values.astype(np.float32)
    if element == "bf16":
        return round_bf16(values)
    if element == "f16":
        return round_f16(values)
    return round_fp8(values, element) if element in _FP8 else values


def truncate_to(values: Array, element: str) -> Array:
    """Return float32 values rounded towards zero to `element`; finite values stay finite."""
    nearest = round_to(values, element)
    too_far = np.abs(nearest) > np.abs(values)
    stepped = _step_towards_zero(nearest, element)
    return np.where(too_far, stepped, nearest)


def _step_towards_zero(values: Array, element: str) -> Array:
    bits = to_bits(values, element)
    magnitude = bits & (0x7F if bits.dtype == np.uint8 else 0x7FFF)
    return from_bits(np.where(magnitude > 0, bits - 1, bits).astype(bits.dtype), element)


def from_bits(bits: Array, element: str) -> Array:
    """Return the container values of raw storage elements (as `STORAGE` types them)."""
    if element == "bf16":
        wide: Array = bits.view(ml_dtypes.bfloat16).astype(np.float32)
        return wide
    if element == "f16":
        half = bits.view(np.float16)
        if half.size > _SMALL_READ and half.flags.writeable:
            result: Array = torch.from_numpy(half).to(torch.float32).numpy()
            return result
        return half.astype(np.float32)
    decode = _DECODE.get(element)
    return bits if decode is None else decode.take(bits.view(np.uint8))


def to_bits(values: Array, element: str) -> Array:
    """Return the unsigned bits of container values that `element` represents exactly; other elements unchanged."""
    if element == "bf16":
        if values.flags.c_contiguous and values.ndim:
            return values.view(np.uint16)[..., _UPPER::2]
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    if element == "f16":
        return values.astype(np.float16).view(np.uint16)
    if element in _FP8:
        bits: Array = _fp8_tables(element)[1].take(_upper_halves(values))
        return bits
    return values


def to_storage(values: Array, element: str) -> Array:
    """Return container values as `STORAGE` holds them in memory."""
    bits = to_bits(values, element)
    return bits.view(np.float16) if element == "f16" else bits


def narrowed(values: Array, element: str) -> Array:
    """Return float32 values rounded to bf16 or f16, to nearest even, as `STORAGE` holds them."""
    return values.astype(np.float16) if element == "f16" else values.astype(ml_dtypes.bfloat16).view(np.uint16)


def bitcast(values: Array, source: str, target: str) -> Array:
    """Return the container values of `target` with the bits of `values`, container values of `source`."""
    bits = to_bits(values, source)
    if target in ("bf16", "f16", *_FP8):
        return from_bits(bits.view(np.uint16 if target in _HALF else np.uint8), target)
    return bits.view(CONTAINER[target])


def float_to_integer(values: Array, target: str, signed: bool) -> Array:
    """Return floats truncated to integers: saturated at 32 and 64 bits, and 0 for NaN, as the hardware converts."""
    dtype = CONTAINER[target]
    wide = np.dtype(f"{'i' if signed else 'u'}{max(dtype.itemsize, 4)}")
    limits = np.iinfo(wide)
    exact = np.trunc(np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    result = np.zeros(exact.shape, wide)
    low, high = exact <= float(limits.min), exact >= float(limits.max)
    inside = ~(low | high)
    result[inside] = exact[inside].astype(wide)
    result[low], result[high] = limits.min, limits.max
    return result.astype(dtype) if dtype.itemsize <= 4 else result.view(np.int64)
