"""Tensor types: the element types of a case in torch and in numpy."""

from __future__ import annotations

from typing import Any, Final, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

from fuzz_attn.case.dtypes import DTYPES, FP8_DTYPES, DTypeName
from fuzz_attn.case.recipes import BiasDType

TORCH_DTYPES: Final[dict[DTypeName, torch.dtype]] = {name: getattr(torch, name) for name in DTYPES}

_FP8: Final = frozenset(TORCH_DTYPES[name] for name in FP8_DTYPES)

BIAS_DTYPES: Final[dict[BiasDType, torch.dtype]] = {name: getattr(torch, name) for name in get_args(BiasDType)}
"""The types of slopes, biases and sinks."""

NUMPY_DTYPES: Final[dict[DTypeName, np.dtype[Any]]] = {
    name: np.dtype(getattr(np, name, None) or getattr(ml_dtypes, name)) for name in DTYPES
}

UNSIGNED: Final[dict[int, npt.DTypeLike]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
"""The unsigned integer of numpy that holds an element of so many bytes."""

INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""An integer of torch that holds an element of so many bytes, and that numpy knows."""


def bits_dtype(dtype: DTypeName) -> npt.DTypeLike:
    """Return the unsigned integer that holds an element of the type."""
    return UNSIGNED[DTYPES[dtype].bytes]


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same memory as integers of the elements' size, which copy and compare exactly in every type."""
    return tensor.view(INTEGERS[tensor.dtype.itemsize])


def is_fp8_dtype(dtype: torch.dtype) -> bool:
    """Return whether a type of torch is an fp8 type, which comes with a scale; bytes and int8 are not."""
    return dtype in _FP8
