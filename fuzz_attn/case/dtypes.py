"""Element types: one table of what the package needs to know about each. Imports neither torch nor numpy."""

from typing import Final, Literal, NamedTuple

DTypeName = Literal["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


class DType(NamedTuple):
    """One element type.

    torch calls it ``name``, and so does numpy or ml_dtypes; ``triton`` is its name in Triton's language. ``largest`` is
    the largest finite number. One-byte types come with a scale: as cache they are dequantised, as queries the dot
    products run on the stored values.
    """

    name: DTypeName
    bytes: int
    triton: str
    largest: float
    smallest_normal: float


DTYPES: Final[dict[DTypeName, DType]] = {
    dtype.name: dtype
    for dtype in (
        DType("float32", 4, "fp32", (2.0 - 2.0**-23) * 2.0**127, 2.0**-126),
        DType("float16", 2, "fp16", 65504.0, 2.0**-14),
        DType("bfloat16", 2, "bf16", (2.0 - 2.0**-7) * 2.0**127, 2.0**-126),
        DType("float8_e4m3fn", 1, "fp8e4nv", 448.0, 2.0**-6),
        DType("float8_e5m2", 1, "fp8e5", 57344.0, 2.0**-14),
    )
}
"""Every element type by its name, the simplest first."""

FP8_DTYPES: Final = tuple(name for name, dtype in DTYPES.items() if dtype.bytes == 1)
WIDE_DTYPES: Final = tuple(name for name in DTYPES if name not in FP8_DTYPES)
"""The types that have no scale."""


def is_fp8(dtype: DTypeName) -> bool:
    """Return whether the type is one byte wide and therefore comes with a scale."""
    return dtype in FP8_DTYPES
