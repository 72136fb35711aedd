"""Bounded relations: another problem whose exact answer follows from this one's, or is this one's in another order.

Each launch is judged within its own error bound against the exact answer that the relation gives, which finds more than
to ask of two launches that they differ by no more than both bounds together.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import torch

from fuzz_attn.case.parts import LaunchHints
from fuzz_attn.case.translation import translated
from fuzz_attn.inputs.transforms import Shift, arranged, coarse, keys_changed, values_changed, with_heads_reversed
from fuzz_attn.oracle.reference import Reference, attend
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.catalogue import live_sequences, other_families
from fuzz_attn.properties.comparisons import judged, mapped
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.targets.target import built_in

SEGMENTS: Final = (1, 2, 3, 4, 7, 8, 16)
SCALE: Final = -2.0
"""Factor of all values: exact, and both a sign and a size that a kernel may get wrong."""

CANCELLED: Final = 2.0**-40
"""What float64 may lose of an average of values to which minus their size is added: far below any kernel's float32."""


def batch_order(experiment: Experiment) -> Verdict:
    """Sequences get the same answers whatever their order in the batch: here the reverse one."""
    return _rearranged(experiment, "batch_order", range(len(experiment.case.sequences))[::-1], "in reverse order")


def alone_in_batch(experiment: Experiment) -> Verdict:
    """Whatever else is in the batch, a sequence gets the same answer: here none but itself is."""
    live = live_sequences(experiment.case)
    chosen = live[experiment.case.seed % len(live)]
    return _rearranged(experiment, "alone_in_batch", (chosen,), f"reduced to sequence {chosen}")


def segments(experiment: Experiment) -> Verdict:
    """By the 2D kernel, and by the 3D kernel with any number of segments, the answer is the same."""
    asked = experiment.case.launch
    tile = asked.tile_size
    hints = LaunchHints("2d", 0, tile)
    if asked.path != "3d":
        hints = LaunchHints("3d", SEGMENTS[experiment.case.seed % len(SEGMENTS)], tile)
    other = experiment.launch_tensors(dataclasses.replace(experiment.again(), launch=hints))
    how = f"3D in {hints.num_segments} segments" if hints.path == "3d" else "2D"
    exact = experiment.reference
    return judged(experiment, "segments", other, f"a launch by {how}", exact, own=exact)


def head_permutation(experiment: Experiment) -> Verdict:
    """Heads are strangers to each other: in reverse order, with their slopes, sinks and KV heads, the same answers."""
    other = experiment.launch_tensors(with_heads_reversed(experiment.fresh()))
    exact = mapped(experiment.reference, lambda rows: rows.flip(1))
    return judged(experiment, "head_permutation", other, "a launch with the heads in reverse order", exact, own=exact)


def key_shift(experiment: Experiment) -> Verdict:
    """One vector added to all keys moves all scores of a row alike, which the softmax does not see.

    For each KV head a vector as long as the longest key, along the query of its first head's last row or against it, so
    that the scores of some row move far. The keys are rounded first, so that the sum is exact in their type.
    """
    sign = 1.0 if experiment.case.seed % 2 else -1.0
    tensors = experiment.fresh()
    last = tensors.query[sum(tensors.query_lens) - 1].double()
    direction = torch.where(last[:: tensors.query.shape[1] // tensors.num_kv_heads] < 0, -sign, sign)
    tensors = keys_changed(tensors, coarse)
    exact = attend(tensors, experiment.target.model)
    other = experiment.launch_tensors(keys_changed(tensors, Shift(direction)))
    return judged(experiment, "key_shift", other, "a launch with one vector added to all keys", exact)


def value_shift(experiment: Experiment) -> Verdict:
    """One vector added to all values is added to every output, since the weights sum to 1. Without sinks.

    The values are rounded first, so that the sum is exact in their type.
    """
    tensors = values_changed(experiment.fresh(), coarse)
    exact = attend(tensors, experiment.target.model)
    shape = tensors.num_kv_heads, tensors.query.shape[2]
    signs = torch.arange(shape[0] * shape[1], device=tensors.query.device).view(shape) % 3 - 1.0
    shift = Shift(signs.double())
    other = experiment.launch_tensors(values_changed(tensors, shift))
    added = shift.vector * (1.0 if tensors.v_scale is None else float(tensors.v_scale))
    group = tensors.query.shape[1] // tensors.num_kv_heads
    added = added.repeat_interleave(group, 0)
    exact = dataclasses.replace(exact, expected=exact.expected + added)
    change = "a launch with one vector added to all values"
    return judged(experiment, "value_shift", other, change, exact, slack=CANCELLED * added.abs())


def value_scale(experiment: Experiment) -> Verdict:
    """All values doubled and negated, every output is. A clamped fp8 output stays clamped.

    The values are rounded first, so that twice any of them fits their type.
    """
    tensors = values_changed(experiment.fresh(), coarse)
    exact = attend(tensors, experiment.target.model)
    other = experiment.launch_tensors(values_changed(tensors, lambda numbers, _: numbers * SCALE))
    expected = exact.expected * SCALE
    if tensors.output.dtype.itemsize == 1:
        limit = torch.finfo(tensors.output.dtype).max
        expected = expected.clamp(-limit, limit)
    exact = dataclasses.replace(exact, expected=expected)
    return judged(experiment, "value_scale", other, f"a launch with all values times {SCALE:g}", exact)


def narrower_window(experiment: Experiment) -> Verdict:
    """Widening the window by one admits exactly one key; here by narrowing it, since a key outside may be a dead slot.

    What is expected is the oracle's answer to the narrower problem, and the old answer for rows that no window cuts.
    """
    window = experiment.case.window
    other = experiment.launch_tensors(dataclasses.replace(experiment.again(), window=window - 1))
    own = attend(other.tensors, experiment.target.model)
    whole = [context + row < window - 1 for context, row in _rows(experiment)]
    uncut = torch.tensor(whole, device=own.expected.device)[:, None, None]
    expected = torch.where(uncut, experiment.reference.expected, own.expected)
    exact = dataclasses.replace(own, expected=expected)
    return judged(experiment, "narrower_window", other, f"a launch with a window of {window - 1}", exact, own=own)


def other_family(experiment: Experiment) -> Verdict:
    """In another family's layout the problem gets the same answer, from this project's own kernel of that family."""
    families = other_families(experiment.case)
    family = families[experiment.case.seed % len(families)]
    case, target = translated(experiment.case, family), built_in(family)
    assert case is not None
    assert target is not None
    other = Experiment(case, target.on_device(experiment.backend.tensor_core_slack), experiment.backend)
    change = f"the same problem on this project's own kernel of the family {family}"
    return judged(other, "other_family", other.first, change, experiment.reference)


def _rearranged(experiment: Experiment, name: str, order: range | tuple[int, ...], how: str) -> Verdict:
    tensors, tokens = arranged(experiment.fresh(), order)
    other = experiment.launch_tensors(tensors)
    exact = _at(experiment.reference, tokens)
    return judged(experiment, name, other, f"a launch of the batch {how}", exact, own=exact)


def _at(reference: Reference, tokens: torch.Tensor) -> Reference:
    return mapped(reference, lambda rows: rows[tokens])


def _rows(experiment: Experiment) -> list[tuple[int, int]]:
    """Return the context length and the row inside of its sequence, of every token."""
    return [(s.context_len, row) for s in experiment.case.sequences for row in range(s.query_len)]
