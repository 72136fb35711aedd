"""Write reference: what each written element must be, and the largest error that a correct kernel can make in it.

A cast to a wider type or to the same one is exact. A cast to a narrower one rounds to nearest, ties to even: it has one
right result. Where a number is beyond the largest of a float16 cache, any element may be there.

For an fp8 cache a number ``x`` is divided by the scale ``s`` in float32, clamped to the finite range and rounded. The
quotient loses at most 4 units of itself: as much as a product with a rounded reciprocal, or as the quotient of a GPU.
A quotient below the normal range of float32 may be flushed. So the last rounding has one or, near the middle between
two fp8 numbers, two right results. No term is a tolerance.
"""

from __future__ import annotations

from typing import Final

import torch

from fuzz_attn.inputs.tensor_types import is_fp8_dtype
from fuzz_attn.operations.cache_write.write_tensors import WriteTensors
from fuzz_attn.oracle.error_bound import stored_bound
from fuzz_attn.oracle.reference import Expected, Reference
from fuzz_attn.oracle.roundings import FLUSHED, UNIT

QUOTIENT: Final = 4 * UNIT
EXACT: Final = 2.0**-160
"""The bound of an exact element, below the smallest number of every type: bounds are positive."""


@torch.inference_mode()
def write(tensors: WriteTensors) -> Reference:
    """Return what the slots of all tokens must hold, by the names of the caches; those of skipped tokens are 0."""
    found = {}
    for name, (new, scale) in parts_of(tensors).items():
        known, live = stored(new, scale, tensors, name), tensors.outputs[name].live
        if live is not None:
            value, bound = known.value.masked_fill(~live, 0.0), known.bound.masked_fill(~live, torch.inf)
            known = Expected(value, bound, known.judged)
        found[name] = known
    return found


def parts_of(tensors: WriteTensors) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return the new numbers of each cache, those of its tokens only, and its scale."""
    rows = len(tensors.slot_mapping)
    return {
        "key_cache": (tensors.key[:rows], tensors.k_scale),
        "value_cache": (tensors.value[:rows], tensors.v_scale),
    }


@torch.inference_mode()
def stored(new: torch.Tensor, scale: torch.Tensor, tensors: WriteTensors, name: str) -> Expected:
    """Return what a cache must hold of new numbers, whatever their slots are."""
    dtype = tensors.outputs[name].tensor.dtype
    if is_fp8_dtype(dtype):
        exact = new.double() / scale.double()
        value, bound = stored_bound(exact, exact.abs() * QUOTIENT + FLUSHED, dtype)
    else:
        cast = new.to(dtype).double()
        bound = torch.full_like(cast, EXACT).masked_fill(cast.isinf(), torch.inf)
        value = cast.nan_to_num(0.0, 0.0, 0.0)
    return Expected(value, bound, torch.ones(1, 1, 1, dtype=torch.bool, device=value.device))
