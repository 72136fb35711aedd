"""Wrong roundings: what a cache holds of new numbers that are rounded in another way than to the nearest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import torch

from fuzz_attn.inputs.storage import INTEGERS, is_fp8_dtype
from fuzz_attn.operations.cache_write.write_experiment import EXACT, LIMITS, QUOTIENT, stored
from fuzz_attn.operations.cache_write.write_tensors import WriteTensors
from fuzz_attn.oracle.reference import Expected
from fuzz_attn.oracle.roundings import FLUSHED, UNIT

_OF_INTEGERS: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "numbers are cut off towards 0 and not rounded to the nearest": torch.trunc,
    "0.5 is added to numbers and they are cut off towards 0: negative ones are rounded up": lambda x: (x + 0.5).trunc(),
    "numbers are rounded down and not to the nearest": torch.floor,
    "numbers are rounded up and not to the nearest": torch.ceil,
    "numbers are rounded away from 0 and not to the nearest": lambda x: x.abs().ceil() * x.sign(),
}


def roundings(
    new: torch.Tensor, scale: torch.Tensor, tensors: WriteTensors, name: str
) -> Iterator[tuple[str, Expected]]:
    """Yield roundings in words, with what a cache would hold: the numbers next to the exact ones on one side."""
    dtype = tensors.outputs[name].tensor.dtype
    known = stored(new, scale, tensors, name)
    exact = new.double()
    if "k_scale_cache" in tensors.outputs:
        largest = exact.abs().amax(-1, keepdim=True) / LIMITS[dtype]
        exact = exact / largest.masked_fill(largest == 0.0, 1.0)
    elif is_fp8_dtype(dtype):
        exact = exact / scale.double()
    elif new.dtype == dtype:
        return
    error = exact.abs() * 3.0 * QUOTIENT + FLUSHED
    for words, to_number in (_OF_INTEGERS if dtype == torch.int8 else _of_floats(dtype)).items():
        error = error + UNIT if dtype == torch.int8 else error
        low, high = to_number(exact - error), to_number(exact + error)
        unit = EXACT if dtype == torch.int8 else EXACT * torch.finfo(dtype).eps * high.abs()
        yield words, Expected((low + high) / 2.0, (high - low).abs() / 2.0 + unit, known.judged)


def _of_floats(dtype: torch.dtype) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Return roundings to a type of floats that are not to the nearest number."""
    return {
        "numbers are cut off towards 0 and not rounded to the nearest": lambda x: _towards_0(x, dtype),
        "numbers are rounded down and not to the nearest": lambda x: _rounded_down(x, dtype),
        "numbers are rounded up and not to the nearest": lambda x: -_rounded_down(-x, dtype),
    }


def _towards_0(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    limit = torch.finfo(dtype).max
    near = exact.clamp(-limit, limit).to(dtype)
    bits = near.view(INTEGERS[dtype.itemsize])
    cut = (bits - (near.double().abs() > exact.abs()).to(bits.dtype)).view(dtype)
    return cut.double()


def _rounded_down(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    limit = torch.finfo(dtype).max
    near = exact.clamp(-limit, limit).to(dtype)
    bits = near.view(INTEGERS[dtype.itemsize])
    above = near.double() > exact
    # Numbers of one sign are ordered as their bits are, negative ones the other way round. What rounds to 0 stays:
    # no mistake is told by numbers as small.
    moved = torch.where(near.double() > 0.0, bits - 1, bits + 1)
    return torch.where(above & (near.double() != 0.0), moved, bits).view(dtype).double()
