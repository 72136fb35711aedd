"""Poison: the bit patterns of memory that no kernel may read, and of outputs before they are written.

Patterns are bits, so they survive copies between types and compare exactly. e4m3fn has no infinity and uses NaN
instead.
"""

from typing import Final

from fuzz_attn.case.dtypes import DTypeName
from fuzz_attn.case.recipes import BiasDType, SlotPoison, TablePoison

_SLOTS: Final[dict[DTypeName, dict[SlotPoison, int]]] = {
    "float32": {"nan": 0x7FC00000, "inf": 0x7F800000, "negative_inf": 0xFF800000, "huge": 0x7F7FFFFF, "zero": 0},
    "float16": {"nan": 0x7E00, "inf": 0x7C00, "negative_inf": 0xFC00, "huge": 0x7BFF, "zero": 0},
    "bfloat16": {"nan": 0x7FC0, "inf": 0x7F80, "negative_inf": 0xFF80, "huge": 0x7F7F, "zero": 0},
    "float8_e4m3fn": {"nan": 0x7F, "inf": 0x7F, "negative_inf": 0xFF, "huge": 0x7E, "zero": 0},
    "float8_e5m2": {"nan": 0x7E, "inf": 0x7C, "negative_inf": 0xFC, "huge": 0x7B, "zero": 0},
}

_OUTPUTS: Final[dict[DTypeName, tuple[int, int]]] = {
    "float32": (0x7FC0DEAD, 0xFFC0BEEF),
    "float16": (0x7EAD, 0xFEEF),
    "bfloat16": (0x7FAD, 0xFFEF),
    "float8_e4m3fn": (0x7F, 0xFF),
    "float8_e5m2": (0x7D, 0xFF),
}


def slot_poison(dtype: DTypeName, kind: SlotPoison) -> int:
    """Return the bits of an element that no kernel may read."""
    return _SLOTS[dtype][kind]


def bias_poison(dtype: BiasDType) -> int:
    """Return the bits of a NaN between and around slopes, biases and sinks."""
    return 0x7FF8000000000000 if dtype == "float64" else slot_poison(dtype, "nan")


def output_poison(dtype: DTypeName, variant: int) -> int:
    """Return the bits of an output element not yet written.

    It is a NaN that no arithmetic produces, where the type has such a NaN (e4m3fn has two NaNs in all).
    """
    return _OUTPUTS[dtype][variant]


def table_poison(kind: TablePoison, num_blocks: int) -> int:
    """Return the block-table entry past the last page of a sequence."""
    return {"zero": 0, "negative": -1, "one_past": num_blocks, "huge": 2**31 - 1}[kind]
