"""Launch properties: those that need no second launch, the value range among them.

Attention's output is a weighted average of the values that its row sees, so it lies within their range. This needs no
exact weights, so it also holds in ill-conditioned rows, where the oracle cannot judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import torch

from fuzz_attn.backends.backend import Observation
from fuzz_attn.inputs.output_tensors import OutputTensor, same_bytes
from fuzz_attn.inputs.storage import bits_of, elements_in
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.error_bound import probability_dtype, probability_unit, stored_bound, sum_units, value_unit
from fuzz_attn.oracle.reference import Expected, output_factor
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.oracle.roundings import (
    UNIT,
    denominator_units,
    gamma,
    half_denormal,
    lost_exponential,
    lost_products,
    output_error,
)
from fuzz_attn.oracle.row_blocks import RowBlock, largest_seen
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.experiment import Experiment

SEED_STEP: Final = 4
"""Of the cases that the oracle judges completely, only those whose seed is a multiple of this are checked: the value
range costs two thirds of the oracle."""


def value_range(experiment: Experiment) -> Verdict:
    """Every output lies between the smallest and the largest value that its row sees; a sink adds a value of 0.

    The tolerance is the part of the error bound that comes with the values, not only the output's own rounding: a
    correct kernel rounds P to its type for the numerator and not for the denominator, so its weights sum to 1 only up
    to that rounding, and it sums in float32. Errors of the scores play no part: wrong weights are still weights.
    """
    tensors, known = experiment.first.tensors, experiment.reference["out"]
    if experiment.case.seed % SEED_STEP and bool(known.judged.all()):
        return Verdict("value_range")
    nearest = nearest_inside(experiment.blocks, tensors, known, experiment.target.rounding_model)
    verdict = judge(tensors, {"out": nearest})
    message = verdict.message and f"outside the range of the values that the row sees: {verdict.message}"
    return msgspec.structs.replace(verdict, property_name="value_range", message=message)


@torch.inference_mode()
def nearest_inside(
    blocks: Iterable[RowBlock], tensors: AttentionTensors, known: Expected, model: RoundingModel
) -> Expected:
    """Return the outputs moved into the value range, and as bound how far outside an output may lie."""
    actual = tensors.outputs["out"].elements.double()
    expected, bound = torch.zeros_like(known.value), torch.full_like(known.bound, torch.inf)
    groups = (-1, tensors.num_kv_heads, tensors.query.shape[1] // tensors.num_kv_heads, actual.shape[-1])
    found, nearest, beyond = (each.view(groups) for each in (actual, expected, bound))
    for block in blocks:
        low, high = values_seen(block)
        if tensors.sinks is not None:
            low, high = low.clamp_max(0.0), high.clamp_min(0.0)
        error = _error(block, torch.maximum(low.abs(), high.abs()), tensors, model)
        factor, dtype = output_factor(tensors), tensors.output.dtype
        low, high = (low, high) if factor > 0 else (high, low)
        errors = [output_error(end * factor, error * abs(factor), tensors, model) for end in (low, high)]
        ends = [stored_bound(end * factor, widened, dtype) for end, widened in zip((low, high), errors, strict=True)]
        (low, _), (high, _) = ends
        low, high, error = (each[:, :, :, None] for each in (low, high, torch.maximum(*(e for _, e in ends))))
        nearest[block.tokens] = found[block.tokens].nan_to_num().clamp(low, high)
        beyond[block.tokens] = error
    return Expected(expected, bound.masked_fill(known.bound.isinf(), torch.inf), torch.ones_like(known.judged))


def values_seen(block: RowBlock) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the smallest and the largest value that each query token sees, ``[B, Q, num_kv_heads, head_size]``.

    Where a mask or a bias of -inf hides a key between others, the value range is wider than necessary. A row that sees
    no key has zeros.
    """
    largest = largest_seen(block, torch.cat([-block.values, block.values], -1))
    if block.empty is not None:
        largest = largest.masked_fill(block.empty[..., None, None], 0.0)
    low, high = largest.chunk(2, -1)
    return -low, high


def _error(block: RowBlock, largest: torch.Tensor, tensors: AttentionTensors, model: RoundingModel) -> torch.Tensor:
    """Return how far the average may lie outside, before it is scaled and stored; ``largest`` is the largest ``|v|``.

    These are the terms of :mod:`fuzz_attn.oracle.error_bound` that come with values and with the whole row. All weights
    together are at most 1, and each is flushed or rounded to 0 at most once at each rescaling.
    """
    count = block.visible.sum(-1, dtype=torch.float64)[..., None, None]
    probability = probability_dtype(tensors, model)
    cast = probability_unit(tensors, model)
    summed = sum_units(2 * count, tensors, model)
    rest = summed.add(1.0).mul_(1.0 + value_unit(tensors, model)).sub_(1.0)
    lost = half_denormal(probability) * (1 + rest) if cast else 0.0
    flushed = count * (lost + (count + 2.0) * lost_exponential(tensors, model))
    relative = rest.add(1.0).mul_(1.0 + cast).sub_(1.0).add_(flushed)
    error = largest * relative + lost_products(2 * count + 4, summed, tensors, model)
    units = denominator_units(gamma(2 * count + 8, UNIT), 2 * count, count, cast, tensors, model)
    return (largest * units + error) * units.mul(2.0).add_(1.0)


def oracle(experiment: Experiment) -> Verdict:
    """Every live element of each output was written and agrees with the oracle within its error bound."""
    tensors, reference = experiment.first.tensors, experiment.reference
    assert reference.keys() == tensors.outputs.keys(), "an output without a reference would never be judged"
    return judge(tensors, reference)


def findings(experiment: Experiment) -> tuple[Verdict, ...]:
    """Return a failed verdict for each line where the sanitizers of the backend found something.

    No access leaves its tensor, no unwritten memory is read, no programs race and no index overflows.
    """
    sites: dict[str, list[Observation]] = {}
    for observation in experiment.first.observations:
        sites.setdefault(observation.site or observation.kind, []).append(observation)
    return tuple(_finding(observations) for observations in sites.values())


def _finding(observations: Sequence[Observation]) -> Verdict:
    first, more = observations[0], len(observations) - 1
    message = first.message + (f" (and {more} more findings there)" if more else "")
    return Verdict("sanitizers", first.kind, message, wrong=len(observations), site=first.site)


def nothing_else_written(experiment: Experiment) -> Verdict:
    """Only live elements are written: padded rows, and padding between rows and heads, keep their bits."""
    launch = experiment.first
    several = len(launch.tensors.outputs) > 1
    for name, after in launch.outputs_after.items():
        allowed = _with_live_of(launch.tensors.outputs[name], launch.outputs_before[name])
        if not same_bytes(allowed, after):
            changed = allowed != after
            outside = int(changed.sum())
            what = f"{launch.tensors.output_words(name)}'s memory that belong to no row"
            return Verdict(
                "nothing_else_written",
                "written_outside",
                f"{outside} bytes of {what} were written",
                wrong=outside,
                elements=changed.numel(),
                output=name if several else "",
            )
    return Verdict("nothing_else_written")


def inputs_unchanged(experiment: Experiment) -> Verdict:
    """No input changes, and neither does its padding."""
    changed = experiment.changed_inputs
    if changed:
        return Verdict("inputs_unchanged", "input_changed", f"the launch changed its input {changed[0]}")
    return Verdict("inputs_unchanged")


def _with_live_of(output: OutputTensor, before: torch.Tensor) -> torch.Tensor:
    """Return an output's bytes from before the launch, with the elements that the target may write as they are now."""
    bits, memory = bits_of(output.tensor), before.clone()
    output.copy_live(bits, elements_in(memory, bits))
    return memory
