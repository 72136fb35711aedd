"""Relation launches: the second launch of each metamorphic relation, and what it must give.

Each function has the name of its relation in the registry and returns the comparison to make. An exact relation must
give the same bits, however the target rounds. The second problem of a bounded one has an exact answer that follows from
the first one's, and the launch is compared with that answer, within the error bound of its own problem. An absent
feature is switched on without effect: the bits may differ, because a kernel compiled for the feature may round
elsewhere, so the launch with the feature is compared with the exact answer without it, within its own error bound.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import torch

from fuzz_attn.case.attention_case import AttentionCase, replace, translated
from fuzz_attn.case.domain import within
from fuzz_attn.case.parts import HeadLayout, PageLayout
from fuzz_attn.case.recipes import Custom
from fuzz_attn.inputs import transforms
from fuzz_attn.inputs.output_tensors import OutputTensor
from fuzz_attn.inputs.storage import is_fp8_dtype
from fuzz_attn.inputs.tensors import AttentionTensors, custom_mask_of, materialise, outputs_of
from fuzz_attn.inputs.transforms import (
    Shift,
    arranged,
    coarse,
    constant,
    in_float32,
    keys_changed,
    values_changed,
    with_expanded_heads,
    with_heads_reversed,
    with_own_pages,
    with_pages_reversed,
)
from fuzz_attn.oracle.reference import Expected, Reference, attend
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.properties.comparisons import Comparison, SameBits, WithinBound, reordered, second_launch
from fuzz_attn.properties.experiment import Experiment, Launch
from fuzz_attn.properties.relations import (
    live_sequences,
    other_families,
    with_other_configuration,
    with_other_poison,
    with_other_strides,
)
from fuzz_attn.targets.built_in import built_in


def determinism(experiment: Experiment) -> Comparison:
    """Launch a second time on the same input."""
    return second_launch(experiment)


def poison_independence(experiment: Experiment) -> Comparison:
    """Launch with other poison in unused slots, in padding and past the end of the block table."""
    other = experiment.launch(with_other_poison(experiment.case))
    return SameBits(other, "a launch with other poison in unused slots, table entries and padding", "poison_dependent")


def page_permutation(experiment: Experiment) -> Comparison:
    """Launch with the physical pages in reverse order."""
    other = experiment.launch_tensors(with_pages_reversed(experiment.fresh()))
    return SameBits(other, "a launch with the physical pages in reverse order")


def own_slots(experiment: Experiment) -> Comparison:
    """Launch with a copy of each shared page for each of its uses."""
    other = experiment.launch_tensors(with_own_pages(experiment.fresh()))
    return SameBits(other, "a launch with slots of their own for the keys that share one")


def other_strides(experiment: Experiment) -> Comparison:
    """Launch with other strides of queries, outputs, caches and tables.

    Paddings change only by multiples of 16 elements, so that a compiler generates the same code. Code for other strides
    might sum in another order, and be right.
    """
    return SameBits(experiment.launch(with_other_strides(experiment.case)), "a launch with other strides")


def empty_sequences(experiment: Experiment) -> Comparison:
    """Launch without the batch's empty sequences, or with some if it has none.

    Only a case that chooses the kernel must give the same bits. A launcher that chooses may go by the size of the
    batch, so its output is compared within the error bound.
    """
    order, change = _other_empties(experiment.case)
    tensors, tokens = arranged(experiment.fresh(), order)
    other = experiment.launch_tensors(tensors)
    if experiment.case.launch.path == "auto":
        exact = reordered(experiment.reference, tensors, "token", tokens)
        return WithinBound(other, change, exact, own=exact)
    return SameBits(other, change, tokens=tokens)


def _other_empties(case: AttentionCase) -> tuple[list[int | None], str]:
    """Return the new order of the sequences, None for an empty one, and the change in words."""
    live = [index for index, sequence in enumerate(case.sequences) if sequence.query_len]
    if len(live) < len(case.sequences):
        return [*live], "a launch without the empty sequences"
    order: list[int | None] = [None]
    for index in live:
        order += [index, None]
    return order, "a launch with an empty sequence on either side of each"


SEGMENTS: Final = (1, 2, 3, 4, 7, 8, 16)
SCALE: Final = -2.0
"""The factor of all values: exact, and it changes both sign and size."""

CANCELLED: Final = 2.0**-40
"""What float64 may lose, relative to the vector, in the average of values that were shifted by it: far below the
float32 rounding of any kernel."""
FLOAT64: Final = 2.0**-20
"""What merging in float64 loses, relative to the bounds: those count units of 2^-24 of the same numbers."""
_UNWRITTEN: Final = 0x7FFC_0000_5EED_FA11
"""Bits of a NaN that no arithmetic gives."""


def batch_order(experiment: Experiment) -> Comparison:
    """Launch the sequences in reverse order."""
    return _with_order(experiment, range(len(experiment.case.sequences))[::-1], "in reverse order")


def alone_in_batch(experiment: Experiment) -> Comparison:
    """Launch one sequence of the batch without the others."""
    live = live_sequences(experiment.case)
    chosen = live[experiment.case.seed % len(live)]
    return _with_order(experiment, (chosen,), f"reduced to sequence {chosen}")


def segments(experiment: Experiment) -> Comparison:
    """Launch the other kernel: 2D for a case of the 3D kernel, else 3D with some number of segments."""
    launch = experiment.case.launch
    hints = msgspec.structs.replace(launch, path="2d", num_segments=0)
    if launch.path != "3d":
        allowed = experiment.target.domain.segments
        counts = [count for count in SEGMENTS if within(count, allowed)] or [allowed[0]]
        count = counts[experiment.case.seed % len(counts)]
        hints = msgspec.structs.replace(launch, path="3d", num_segments=count)
    other = experiment.launch_tensors(dataclasses.replace(experiment.again(), launch=hints))
    how = f"3D in {hints.num_segments} segments" if hints.path == "3d" else "2D"
    exact = experiment.reference
    return WithinBound(other, f"a launch by {how}", exact, own=exact)


def head_permutation(experiment: Experiment) -> Comparison:
    """Launch with the query heads in reverse order, together with their KV heads, slopes and sinks."""
    other = experiment.launch_tensors(with_heads_reversed(experiment.fresh()))
    backwards = torch.arange(other.tensors.query.shape[1], device=other.tensors.query.device).flip(0)
    exact = reordered(experiment.reference, other.tensors, "head", backwards)
    return WithinBound(other, "a launch with the heads in reverse order", exact, own=exact)


def key_shift(experiment: Experiment) -> Comparison:
    """Launch with one vector added to all keys: all scores of a row move by the same amount, which softmax ignores.

    Each KV head has a vector as long as its longest key. It points along or against the query of the head's last row,
    so that the scores of some row move far. The keys are rounded first, so that the sum is exact in their type.
    """
    sign = 1.0 if experiment.case.seed % 2 else -1.0
    tensors = experiment.fresh()
    last = tensors.query[sum(tensors.query_lens) - 1].double()
    direction = torch.where(last[:: tensors.query.shape[1] // tensors.num_kv_heads] < 0, -sign, sign)
    tensors = keys_changed(tensors, coarse)
    exact = attend(tensors, experiment.target.rounding_model)
    other = experiment.launch_tensors(keys_changed(tensors, Shift(direction)))
    return WithinBound(other, "a launch with one vector added to all keys", {"out": exact["out"]})


def value_shift(experiment: Experiment) -> Comparison:
    """Launch with one vector added to all values: every output moves by it, since the weights sum to 1.

    The values are rounded first, so that the sum is exact in their type.
    """
    tensors = values_changed(experiment.fresh(), coarse)
    exact = attend(tensors, experiment.target.rounding_model)
    shape = tensors.value_slots.shape[2:]
    signs = torch.arange(shape[0] * shape[1], device=tensors.query.device).view(shape) % 3 - 1.0
    shift = Shift(signs.double())
    other = experiment.launch_tensors(values_changed(tensors, shift))
    added = shift.vector * (1.0 if tensors.v_scale is None else float(tensors.v_scale))
    added = added.repeat_interleave(tensors.query.shape[1] // tensors.num_kv_heads, 0)
    moved = dataclasses.replace(exact["out"], value=exact["out"].value + added)
    change, slack = "a launch with one vector added to all values", {"out": CANCELLED * added.abs()}
    return WithinBound(other, change, exact | {"out": moved}, slack=slack)


def value_scale(experiment: Experiment) -> Comparison:
    """Launch with all values doubled and negated: so is every output, and a clamped fp8 output stays clamped.

    The values are rounded first, so that twice each of them fits their type.
    """
    tensors = values_changed(experiment.fresh(), coarse)
    exact = attend(tensors, experiment.target.rounding_model)
    other = experiment.launch_tensors(values_changed(tensors, lambda numbers, _: numbers * SCALE))
    expected = exact["out"].value * SCALE
    if is_fp8_dtype(tensors.output.dtype):
        limit = torch.finfo(tensors.output.dtype).max
        expected = expected.clamp(-limit, limit)
    scaled = dataclasses.replace(exact["out"], value=expected)
    return WithinBound(other, f"a launch with all values times {SCALE:g}", exact | {"out": scaled})


def narrower_window(experiment: Experiment) -> Comparison:
    """Launch with the window narrower by one. A wider one is no choice: a key outside may lie in a dead slot.

    Rows that the narrower window cuts must give the oracle's answer to the narrower problem, the others the old answer.
    """
    window = experiment.case.window
    other = experiment.launch_tensors(dataclasses.replace(experiment.again(), window=window - 1))
    own = attend(other.tensors, experiment.target.rounding_model)
    narrower = other.tensors.visibility
    whole = [not narrower.cuts(position) for position in _positions(experiment)]
    uncut = torch.tensor(whole, device=other.tensors.query.device).nonzero().flatten()
    exact = {
        name: _with_values_of(own[name], expected, other.tensors.outputs[name].axes, uncut)
        for name, expected in experiment.reference.items()
    }
    return WithinBound(other, f"a launch with a window of {window - 1}", exact, own=own)


def configurations(experiment: Experiment) -> Comparison:
    """Launch the first configuration of the target's kernels, or the second one of a case that has the first."""
    launch = with_other_configuration(experiment.case).launch
    other = experiment.launch_tensors(dataclasses.replace(experiment.again(), launch=launch))
    words = ", ".join(dict.fromkeys(each.words for each in other.configurations)) or "another configuration"
    return WithinBound(other, f"a launch with {words}", experiment.reference, own=experiment.reference)


def other_family(experiment: Experiment) -> Comparison:
    """Launch this project's kernel of another family on the same problem in that family's layout.

    Its masks and roundings are not the target's, so they are not recorded.
    """
    families = other_families(experiment.case)
    family = families[experiment.case.seed % len(families)]
    case, target = translated(experiment.case, family), built_in(family)
    assert case is not None
    assert target is not None
    other = experiment.with_target(case, target.on_device(experiment.backend.tensor_core_slack))
    with experiment.backend.unrecorded(own=False):
        launch = other.first
    change = f"the same problem on this project's own kernel of the family {family}"
    return WithinBound(launch, change, experiment.reference, rounding_model=other.target.rounding_model)


def expanded_heads(experiment: Experiment) -> Comparison:
    """Launch this project's unified attention on the latent keys, copied for each query head, as keys and as values.

    The first elements of its output are the latent decode's. As in ``other_family``, nothing is recorded.
    """
    target = built_in("unified")
    assert target is not None
    target = target.on_device(experiment.backend.tensor_core_slack)
    case, latent = experiment.case, experiment.again()
    heads = HeadLayout(case.heads.num_query_heads, 1, case.heads.head_size)
    plain = AttentionCase(
        case.sequences, heads=heads, dtypes=case.dtypes, pages=PageLayout(case.pages.block_size),
        softmax_scale=case.softmax_scale,
    )  # fmt: skip
    tensors = with_expanded_heads(materialise(plain, experiment.place), latent)
    with experiment.backend.unrecorded(own=False):
        launch = experiment.with_target(plain, target).launch_tensors(tensors)
    own = attend(tensors, target.rounding_model)["out"]
    exact, more = experiment.reference["out"], slice(case.heads.head_size_v, None)
    value = torch.cat([exact.value, own.value[..., more]], -1)
    exact = Expected(value, torch.cat([exact.bound, own.bound[..., more]], -1), exact.judged)
    return WithinBound(launch, "this project's unified attention on expanded heads", {"out": exact}, own={"out": own})


def sequence_twice(experiment: Experiment) -> Comparison:
    """Launch with one sequence a second time, at the end of the batch, on the same pages."""
    with_pages = [index for index in live_sequences(experiment.case) if experiment.case.sequences[index].context_len]
    chosen = with_pages[experiment.case.seed % len(with_pages)]
    order = [*range(len(experiment.case.sequences)), chosen]
    return _with_order(experiment, order, f"with sequence {chosen} twice, on the same pages")


def cut_by_keys(experiment: Experiment) -> Comparison:
    """Launch the last token of each sequence with its first pages only, and with the others only, and merge both."""
    tensors, tokens = transforms.cut_by_keys(_roomy(experiment), experiment.case.seed)
    launch, exact = merged(experiment.launch_tensors(tensors), experiment.target.rounding_model)
    whole = reordered(experiment.reference, launch.tensors, "token", tokens)
    return WithinBound(launch, "a launch of each half of the keys, merged", whole, own=exact)


def _with_values_of(one: Expected, other: Expected, axes: tuple[str, ...], tokens: torch.Tensor) -> Expected:
    """Return what one output must be, with the values of another at some tokens."""
    if "token" not in axes:
        return one
    axis = axes.index("token")
    return dataclasses.replace(one, value=one.value.index_copy(axis, tokens, other.value.index_select(axis, tokens)))


def _roomy(experiment: Experiment) -> AttentionTensors:
    """Return new tensors of the case, with room in the outputs for each sequence twice."""
    roomy = replace(experiment.case, sequences=2 * experiment.case.sequences, overrides=())
    return dataclasses.replace(experiment.fresh(), outputs=outputs_of(roomy, experiment.place))


def _with_order(experiment: Experiment, order: range | Sequence[int], how: str) -> Comparison:
    """Launch the sequences of the batch that ``order`` names, in that order."""
    more = len(order) > len(experiment.case.sequences)
    tensors, tokens = arranged(_roomy(experiment) if more else experiment.fresh(), order)
    other = experiment.launch_tensors(tensors)
    exact = reordered(experiment.reference, tensors, "token", tokens)
    return WithinBound(other, f"a launch of the batch {how}", exact, own=exact)


def _positions(experiment: Experiment) -> list[int]:
    """Return the position of every query token in its sequence."""
    return [s.context_len + row for s in experiment.case.sequences for row in range(s.query_len)]


def merged(launch: Launch, model: RoundingModel) -> tuple[Launch, Reference]:
    """Return a launch whose float64 outputs are the merged ones of both halves, and what these must be.

    With outputs ``a`` and ``b``, log-sum-exps ``l`` and ``m`` and ``w = 1 / (1 + exp(m - l))``, the merged output is
    ``w a + (1 - w) b``. Let the target be off by ``A``, ``B``, ``L`` and ``M`` at most. Then ``l - m`` is off by
    ``L + M``, so ``w`` lies between two known numbers, and the merged output is off by at most

        max(w) A + max(1 - w) B + max|change of w| |a - b|.

    The merged log-sum-exp moves by a logarithm of a weighted average of ``exp(l's error)``: by
    ``log(w exp(L) + (1 - w) exp(M))`` at most, because the exponential is convex.
    """
    tensors, exact = launch.tensors, attend(launch.tensors, model)
    out, lse = tensors.outputs["out"], tensors.outputs["lse"]
    unit = math.log(2.0) if tensors.lse is not None and tensors.lse.base == "2" else 1.0
    axis = lse.axes.index("token")
    value, total = merge(out.elements.double(), lse.elements.double() * unit, axis)
    bounds = expected_of(exact["out"], exact["lse"], unit, axis)
    count = len(tensors.query_lens) // 2
    halved = dataclasses.replace(
        tensors,
        query_lens=tensors.query_lens[:count],
        context_lens=tensors.context_lens[:count],
        outputs={
            "out": OutputTensor(value, _UNWRITTEN, axes=out.axes),
            "lse": OutputTensor(total / unit, _UNWRITTEN, axes=lse.axes),
        },
    )
    return dataclasses.replace(launch, tensors=halved), bounds


def merge(out: torch.Tensor, lse: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the merged output and the merged natural log-sum-exp."""
    (one, other), (first, second) = out.chunk(2), lse.chunk(2, axis)
    weight, other_weight = _weights(first - second, axis)
    return weight * one + other_weight * other, torch.logaddexp(first, second)


def expected_of(out: Expected, lse: Expected, unit: float, axis: int) -> Reference:
    """Return what is merged of the expected outputs, with its bounds."""
    value, total = merge(out.value, lse.value * unit, axis)
    (one, other), (first, second) = out.value.chunk(2), (lse.value * unit).chunk(2, axis)
    (of_one, of_other), (shift, other_shift) = out.bound.chunk(2), (lse.bound * unit).chunk(2, axis)
    apart, moved = first - second, shift + other_shift
    weights, above, below = (_weights(each, axis) for each in (apart, apart + moved, apart - moved))
    change = torch.maximum(above[0] * weights[1], weights[0] * below[1]) * -_by_tokens(torch.expm1(-moved), axis)
    bound = above[0] * of_one + below[1] * of_other + change * (one - other).abs()
    logsigmoid = torch.nn.functional.logsigmoid
    sum_bound = torch.logaddexp(logsigmoid(apart) + shift, logsigmoid(-apart) + other_shift)
    judged = [each.judged.expand_as(each.value).chunk(2, where) for each, where in ((out, 0), (lse, axis))]
    return {
        "out": Expected(value, _grown(bound), judged[0][0] & judged[0][1]),
        "lse": Expected(total / unit, _grown(sum_bound / unit), judged[1][0] & judged[1][1]),
    }


def _weights(apart: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights of both halves, ``[tokens, heads, 1]``; a small one is not 1 minus a large one."""
    return _by_tokens(torch.sigmoid(apart), axis), _by_tokens(torch.sigmoid(-apart), axis)


def _by_tokens(rows: torch.Tensor, axis: int) -> torch.Tensor:
    """Return numbers of rows as ``[tokens, heads, 1]``."""
    return rows.movedim(axis, 0)[..., None]


def _grown(bound: torch.Tensor) -> torch.Tensor:
    """Return a bound with what float64 loses, infinite where it is unknown."""
    return (bound * (1.0 + FLOAT64)).nan_to_num(torch.inf, torch.inf)


WIDEST: Final = 2**20
"""The widest window that a case may have."""


def wide_window(experiment: Experiment) -> Comparison:
    """Launch with a window that is at least as long as the longest sequence, and as its query tokens.

    Where rows count from the first key, the last of more query tokens than keys stands behind the last key.
    """
    longest = max(experiment.case.max_seq_len, experiment.case.max_query_len)
    window = (longest, longest + 1, WIDEST)[experiment.case.seed % 3]
    return _with(experiment, f"a launch with a window of {window}", same_bound=True, window=window)


def zero_slopes(experiment: Experiment) -> Comparison:
    """Launch with ALiBi slopes of 0."""
    heads = experiment.case.heads.num_query_heads
    slopes = constant(experiment.first.tensors, (heads,), 0.0)
    return _with(experiment, "a launch with ALiBi slopes of 0", alibi_slopes=slopes)


def zero_bias(experiment: Experiment) -> Comparison:
    """Launch with query-query biases of 0."""
    longest = experiment.case.max_query_len
    bias = constant(experiment.first.tensors, (longest, longest), 0.0)
    return _with(experiment, "a launch with a query-query bias of 0", qq_bias=bias)


def absent_sinks(experiment: Experiment) -> Comparison:
    """Launch with sinks of -inf."""
    heads = experiment.case.heads.num_query_heads
    sinks = constant(experiment.first.tensors, (heads,), -float("inf"))
    return _with(experiment, "a launch with sinks of -inf", same_bound=True, sinks=sinks)


def causal_bits(experiment: Experiment) -> Comparison:
    """Launch with a custom mask in place of the causal one that has its bits."""
    case = replace(experiment.case, mask=Custom("bottom_right", causal=False))
    bits = custom_mask_of(case, str(experiment.first.tensors.query.device))
    change = "a launch with the bits of the causal mask as a custom one"
    return _with(experiment, change, same_bound=True, mask=case.mask, custom_mask=bits)


def unit_scales(experiment: Experiment) -> Comparison:
    """Launch with all scales 1: fp8 numbers then stand for themselves, and other types ignore the scales."""
    tensors = experiment.again()
    one = constant(tensors, (1,), 1.0)
    scaled = dataclasses.replace(
        tensors,
        q_scale=None if tensors.q_scale is None else one,
        k_scale=one,
        v_scale=one,
        out_scale=None if tensors.out_scale is None else one,
    )
    other, change = experiment.launch_tensors(scaled), "a launch with all scales 1"
    if 1 not in (each.itemsize for each in (tensors.query.dtype, tensors.kv_dtype, tensors.output.dtype)):
        exact = experiment.reference  # without fp8 nothing is scaled, and the problem is the same
        return WithinBound(other, change, exact, own=exact)
    return WithinBound(other, change, attend(in_float32(other.tensors), experiment.target.rounding_model))


def _with(experiment: Experiment, change: str, *, same_bound: bool = False, **feature: Any) -> Comparison:
    """Launch with a feature. With ``same_bound`` the oracle computes the same for both problems."""
    other, exact = experiment.launch_tensors(dataclasses.replace(experiment.again(), **feature)), experiment.reference
    return WithinBound(other, change, exact, own=exact if same_bound else None)
