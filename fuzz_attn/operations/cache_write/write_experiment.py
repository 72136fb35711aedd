"""Write experiment: the launches of one cache write, those of its relations, and the reference with its bound.

One relation writes, then reads back: an attention kernel of this project reads what a cache write stored.

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

import dataclasses
from functools import cached_property
from typing import Any, Final

import torch
from msgspec.structs import replace

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import DTypes, HeadLayout, PageLayout, Scales, Sequence
from fuzz_attn.inputs import tensors as attention_tensors
from fuzz_attn.inputs.storage import is_fp8_dtype
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.inputs.transforms import numbers_like
from fuzz_attn.operations.cache_write.write_case import WriteCase
from fuzz_attn.operations.cache_write.write_tensors import WriteTensors, materialise
from fuzz_attn.operations.small_target import SmallExperiment
from fuzz_attn.oracle.error_bound import stored_bound
from fuzz_attn.oracle.reference import Expected, Reference, attend
from fuzz_attn.oracle.roundings import FLUSHED, UNIT
from fuzz_attn.properties.comparisons import Comparison, SameBits, WithinBound, second_launch
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.targets.built_in import built_in

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
MOST_READ: Final = 200
"""Of more tokens, some all over the caches are read back: each is a sequence."""


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


def read_back(experiment: WriteExperiment) -> Comparison:
    """Launch unified attention on the written cache of values, or on that of keys as if they were values.

    Each written token is a sequence that ends at its slot. A window of 1 key lets it see only that slot, so that its
    output is the number there. The write and the read may both be off, so their bounds add up.
    """
    written = experiment.left
    tokens = (written.slot_mapping >= 0).nonzero().flatten()
    if not len(tokens):
        return second_launch(experiment)  # there is nothing to read
    tokens = tokens[:: -(-len(tokens) // MOST_READ)]
    target = built_in("unified")
    assert target is not None
    target = target.on_device(experiment.backend.tensor_core_slack)
    of_keys = bool(experiment.case.seed % 2)
    name = "key_cache" if of_keys else "value_cache"
    case = attention_case_of(experiment, len(tokens))
    tensors = _reading(attention_tensors.materialise(case, experiment.place), written, tokens, name)
    with experiment.backend.unrecorded(own=False):
        launch = Experiment(case, target, experiment.backend).launch_tensors(tensors)
    own, kept = attend(tensors, target.rounding_model)["out"], experiment.reference[name]
    scale = float(written.k_scale if of_keys else written.v_scale) if experiment.case.is_fp8 else 1.0
    value, error = kept.value[tokens] * scale, kept.bound[tokens] * abs(scale)
    value, bound = stored_bound(value, error, tensors.query.dtype)  # the kernel rounds a dequantised number
    known = kept.judged.expand_as(kept.value)[tokens] & bound.isfinite()
    exact = Expected(value.nan_to_num(0.0, 0.0, 0.0), bound, known)
    both = dataclasses.replace(own, bound=own.bound + bound, judged=own.judged & known)
    return WithinBound(launch, f"unified attention on the written {name}", {"out": exact}, own={"out": both})


def attention_case_of(experiment: WriteExperiment, num_tokens: int) -> AttentionCase:
    """Return a case with as many one-key sequences as tokens were written, of the sizes and types of the caches."""
    case = experiment.case
    kept = case.dtype if case.is_fp8 else case.cache_dtype
    assert kept != "int8"
    assert case.cache_dtype != "int8"
    return AttentionCase(
        (Sequence(1),) * num_tokens,
        heads=HeadLayout(case.num_heads, 1, case.head_size),
        dtypes=DTypes(kept, case.cache_dtype, kept),
        pages=PageLayout(case.page_size),
        scales=Scales(k=case.v_scale, v=case.k_scale if case.seed % 2 else case.v_scale),
        window=1,
    )


def slots_of(written: WriteTensors, tokens: torch.Tensor) -> torch.Tensor:
    """Return the slots of some tokens."""
    return written.slot_mapping[tokens]


def _reading(tensors: AttentionTensors, written: WriteTensors, tokens: torch.Tensor, name: str) -> AttentionTensors:
    """Return the tensors with the written caches, and each sequence at the slot of its token."""
    cache, slots = written.outputs[name].tensor, slots_of(written, tokens)
    tensors.block_table[:, 0] = torch.div(slots, tensors.block_size, rounding_mode="floor").int()
    places = (slots % tensors.block_size).tolist()
    return dataclasses.replace(
        tensors,
        key_cache=cache,
        value_cache=cache,
        seq_lens=numbers_like(tensors.seq_lens, [place + 1 for place in places]),
        context_lens=tuple(places),
    )


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
    known = with_scale(new, scale, dtype)
    return dataclasses.replace(known, judged=judged[..., None])


def with_scale(new: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> Expected:
    """Return what a cache must hold of new numbers with a scale for each token and head, which is computed too."""
    judged = torch.ones_like(scale, dtype=torch.bool)
    exact = new / scale.masked_fill(scale == 0.0, 1.0)[..., None]
    error = exact.abs() * ((1.0 + QUOTIENT) * (1.0 + QUOTIENT) / (1.0 - QUOTIENT) - 1.0) + FLUSHED
    if is_fp8_dtype(dtype):
        return Expected(*stored_bound(exact, error, dtype), judged[..., None])
    return Expected(exact, 0.5 + error + UNIT * (exact.abs() + 1.0), judged[..., None])
