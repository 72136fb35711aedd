"""Write experiment: the launches of one cache write, those of its relations, and the reference with its bound.

A cast to a wider type or to the same one is exact. A cast to a narrower one rounds to nearest, ties to even: it has one
right result. Where a number is beyond the largest of a float16 cache, any element may be there.

For an fp8 cache a number ``x`` is divided by the scale ``s`` in float32, clamped to the finite range and rounded. The
quotient loses at most 4 units of itself: as much as a product with a rounded reciprocal, or as the quotient of a GPU.
A quotient below the normal range of float32 may be flushed. So the last rounding has one or, near the middle between
two fp8 numbers, two right results. No term is a tolerance.

With a scale for each token and head, the scale is the largest magnitude of the row divided by the limit of the cache,
so it loses at most as much as a quotient. A quotient with it loses that much once more. An int8 cache holds the nearest
integer, of which a sum with 0.5 may lose one unit more. Rows with a scale below ``LEAST_SCALE`` are not judged: kernels
keep their scales above some small number, each above its own.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import torch
from msgspec.structs import replace

from fuzz_attn.inputs.tensor_types import is_fp8_dtype
from fuzz_attn.operations.cache_write.write_case import WriteCase
from fuzz_attn.operations.cache_write.write_read_back import read_back
from fuzz_attn.operations.cache_write.write_tensors import WriteTensors, materialise
from fuzz_attn.operations.small_target import SmallExperiment
from fuzz_attn.oracle.error_bound import stored_bound
from fuzz_attn.oracle.reference import Expected, Reference
from fuzz_attn.oracle.roundings import FLUSHED, UNIT
from fuzz_attn.properties.comparisons import Comparison, SameBits, second_launch

QUOTIENT: Final = 4 * UNIT
LEAST_SCALE: Final = 1e-5
LIMITS: Final = {torch.int8: 127.0} | {
    dtype: torch.finfo(dtype).max for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)
}
"""What a scale makes of the largest magnitude."""
NAMES: Final = {"k_scale_cache": "key_cache", "v_scale_cache": "value_cache"}
"""The cache of each cache of scales."""
EXACT: Final = 0.25
"""The bound of an exact element in spacings at most: any other number of its type is twice as far away, or more."""


class WriteExperiment(SmallExperiment):
    """One cache write on one target and one backend."""

    @staticmethod
    def materialise(case: WriteCase, device: str = "cpu", **changes: Any) -> WriteTensors:
        """Return the tensors of a case, made with the options of the function of that name."""
        return materialise(case, device, **changes)

    @staticmethod
    def with_other_numbers(case: WriteCase) -> WriteCase:
        """Return the case with other numbers of an ordinary magnitude."""
        return replace(case, seed=case.seed ^ 1, magnitude=1.0)

    @cached_property
    def reference(self) -> Reference:
        """The oracle's answers to the first launch, computed from the inputs as the launch left them."""
        return write(self.left)


def _poison_independence(experiment: WriteExperiment) -> Comparison:
    launch = experiment.launch(experiment.case, variant=1)
    return SameBits(launch, "a launch on caches that held something else", "poison_dependent")


def _token_order(experiment: WriteExperiment) -> Comparison:
    launch = experiment.launch(experiment.case, reverse=True)
    order = torch.arange(experiment.case.num_tokens - 1, -1, -1, device=launch.tensors.device)
    return SameBits(launch, "with the tokens in reverse order", tokens=order)


def _other_slots(experiment: WriteExperiment) -> Comparison:
    return SameBits(experiment.launch(experiment.case, other=1), "with the tokens in other slots")


WriteExperiment.second = {
    "determinism": second_launch,
    "poison_independence": _poison_independence,
    "token_order": _token_order,
    "other_slots": _other_slots,
    "read_back": read_back,
}


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
    """Return the new numbers of each output, those of its tokens only, and the scale of its cache."""
    rows = len(tensors.slot_mapping)
    of_keys, of_values = (tensors.key[:rows], tensors.k_scale), (tensors.value[:rows], tensors.v_scale)
    return {name: of_keys if name.startswith("k") else of_values for name in tensors.outputs}


@torch.inference_mode()
def stored(new: torch.Tensor, scale: torch.Tensor, tensors: WriteTensors, name: str) -> Expected:
    """Return what an output must hold of new numbers, whatever their slots are."""
    dtype = tensors.outputs[name].tensor.dtype
    if "k_scale_cache" in tensors.outputs:
        return _with_own_scale(
            new.double(), tensors.outputs[NAMES.get(name, name)].tensor.dtype, of_scale=name in NAMES
        )
    if is_fp8_dtype(dtype):
        exact = new.double() / scale.double()
        value, bound = stored_bound(exact, exact.abs() * QUOTIENT + FLUSHED, dtype)
    else:
        cast = new.to(dtype).double()
        info = torch.finfo(dtype)
        bound = cast.abs().clamp_min(info.smallest_normal) * (EXACT * info.eps)  # infinite for infinity
        value = cast.nan_to_num(0.0, 0.0, 0.0)
    return Expected(value, bound, torch.ones(1, 1, 1, dtype=torch.bool, device=value.device))


def _with_own_scale(new: torch.Tensor, dtype: torch.dtype, *, of_scale: bool) -> Expected:
    """Return the scale of each token and head, or the numbers that are stored with it."""
    scale = new.abs().amax(-1) / LIMITS[dtype]
    judged = scale >= LEAST_SCALE
    if of_scale:
        return Expected(scale, scale * QUOTIENT + FLUSHED, judged)
    judged |= scale == 0.0
    exact = new / scale.masked_fill(scale == 0.0, 1.0)[..., None]
    error = exact.abs() * ((1.0 + QUOTIENT) * (1.0 + QUOTIENT) / (1.0 - QUOTIENT) - 1.0) + FLUSHED
    if is_fp8_dtype(dtype):
        return Expected(*stored_bound(exact, error, dtype), judged[..., None])
    return Expected(exact, 0.5 + error + UNIT * (exact.abs() + 1.0), judged[..., None])
