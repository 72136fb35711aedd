"""Write, then read back: an attention kernel of this project reads what a cache write stored."""

from __future__ import annotations

import dataclasses
from typing import Final

import torch

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import DTypes, HeadLayout, PageLayout, Scales, Sequence
from fuzz_attn.inputs.tensors import AttentionTensors, materialise
from fuzz_attn.inputs.transforms import numbers_like
from fuzz_attn.operations.cache_write.write_tensors import WriteTensors
from fuzz_attn.operations.small_target import SmallExperiment
from fuzz_attn.oracle.error_bound import stored_bound
from fuzz_attn.oracle.reference import Expected, attend
from fuzz_attn.properties.comparisons import Comparison, WithinBound, second_launch
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.targets.built_in import built_in

MOST_READ: Final = 200
"""Of more tokens, some all over the caches are read: each is a sequence."""


def read_back(experiment: SmallExperiment) -> Comparison:
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
    tensors = _reading(materialise(case, experiment.place), written, tokens, name)
    with experiment.backend.unrecorded(own=False):
        launch = Experiment(case, target, experiment.backend).launch_tensors(tensors)
    own, stored = attend(tensors, target.rounding_model)["out"], experiment.reference[name]
    scale = float(written.k_scale if of_keys else written.v_scale) if experiment.case.is_fp8 else 1.0
    value, error = stored.value[tokens] * scale, stored.bound[tokens] * abs(scale)
    value, bound = stored_bound(value, error, tensors.query.dtype)  # the kernel rounds a dequantised number
    known = stored.judged.expand_as(stored.value)[tokens] & bound.isfinite()
    exact = Expected(value.nan_to_num(0.0, 0.0, 0.0), bound, known)
    both = dataclasses.replace(own, bound=own.bound + bound, judged=own.judged & known)
    return WithinBound(launch, f"unified attention on the written {name}", {"out": exact}, own={"out": both})


def attention_case_of(experiment: SmallExperiment, num_tokens: int) -> AttentionCase:
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
