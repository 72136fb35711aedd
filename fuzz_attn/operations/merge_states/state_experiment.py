"""State experiment: the tensors of a merge, the callable that gets them, its launches, and the reference.

With states ``(o_i, l_i)`` of a row, ``m = max l_i`` and ``w_i = exp(l_i - m)``, the merged output is
``o = sum w_i o_i / sum w_i`` and the merged LSE ``m + log(sum w_i)``. Without any key they are 0 and -inf.

A correct kernel computes in float32. It may go over the states twice, for the maximum and for the sums, or once and
rescale its sums at each new maximum. It takes differences from a maximum before it takes exponentials. Let ``u`` be the
unit roundoff and ``n`` the number of states that saw a key.

- Exponents: the steps from ``l_i`` to the last maximum have the length ``m - l_i`` together. Each loses ``u`` when it
  is subtracted, and 2 ``u`` when it is multiplied with a rounded constant, as an exponential of base 2 needs.
- Weights: of each, at most ``n - 1`` exponentials and as many rescalings are not by exactly 1. An exponential loses
  ``exp_units`` of itself. The weight of the largest LSE is exactly 1, because exp(0) is. Numerator and denominator
  share all of this: ``w_i (1 + e_i)`` with ``|e_i| <= W_i``. So it moves the output by ``sum p_i e_i (o_i - o)``, where
  ``p_i`` are the exact shares.
- Sums: each term has one product, and up to ``n - 1`` additions and ``n - 1`` products of rescalings, in numerator and
  denominator separately, which also counts rescaled sums twice on purpose: the factor is shared, its product is not.
- The quotient loses at most 4 units, then the output is rounded to its type.
- The logarithm loses 2^-22, as ``lg2.approx`` does near 1, or 6 units of itself, with the change of base; the last sum
  rounds once.
- Exponentials and products that underflow lose at most the smallest normal number each.

All terms are rigorous and none is a tolerance.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace

from fuzz_attn.binding.binding import Binding
from fuzz_attn.case.parts import LaunchHints
from fuzz_attn.case.recipes import LogSumExp, SlotPoison
from fuzz_attn.case.visibility import Visibility
from fuzz_attn.inputs.output_tensors import CallTensors, OutputTensor
from fuzz_attn.inputs.random_bits import Stream
from fuzz_attn.inputs.storage import (
    TORCH_DTYPES,
    bits_dtype,
    bits_of,
    output_poison,
    poisoned,
    rounded,
    slot_poison,
    strided,
    tensors_over,
)
from fuzz_attn.operations.merge_states.state_case import NAME, NAMES, NEEDED, ROLES, StateCase, StateDomain, StateType
from fuzz_attn.operations.small_target import Forms, Roles, SmallExperiment, SmallTarget, found, limited, with_far_axis
from fuzz_attn.oracle.error_bound import stored_bound
from fuzz_attn.oracle.reference import PLAIN_MODEL, Expected, Reference
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.oracle.roundings import FLUSHED, UNDERFLOW, UNIT
from fuzz_attn.properties.comparisons import Comparison, SameBits, WithinBound, second_launch

_LSES, _OUTPUTS, _EMPTY, _ROWS = 61, 62, 63, 64
"""The streams of random numbers."""
BASES: Final = {"e": math.e, "2": 2.0}
EMPTY: Final = -np.inf
"""The LSE of a state, or of a merged row, that saw no key."""


@dataclass(frozen=True)
class StateTensors(CallTensors):
    """The states of all rows, and the outputs ``out`` and ``lse`` of the merge.

    ``partial_outputs`` is ``[num_states, num_tokens, num_heads, head_size]``, ``partial_lses`` is float32
    ``[num_states, num_tokens, num_heads]``. ``out`` is ``[num_tokens or more, num_heads, head_size]`` in their type,
    and ``lse`` float32 ``[num_tokens or more, num_heads]``. LSEs are logarithms of ``base``. To the judge all rows are
    one sequence.
    """

    partial_outputs: torch.Tensor
    partial_lses: torch.Tensor
    outputs: dict[str, OutputTensor]
    query_lens: tuple[int, ...] = (1,)
    context_lens: tuple[int, ...] = (0,)
    base: float = math.e
    visibility: Visibility = field(default_factory=Visibility)
    launch: LaunchHints = field(default_factory=LaunchHints)

    def inputs(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the name and tensor of everything that a merge must not change."""
        yield "partial_outputs", self.partial_outputs
        yield "partial_lses", self.partial_lses


def empty_of(case: StateCase) -> npt.NDArray[np.bool_]:
    """Return which states saw no key, ``[num_states, num_tokens, num_heads]``."""
    shape = case.num_states, case.num_tokens, case.num_heads
    empty = np.zeros(shape, np.bool_)
    if case.empty_states:
        empty |= Stream(case.seed, _EMPTY).below(4, *shape) == 0
        kept = np.arange(case.num_tokens * case.num_heads).reshape(shape[1:]) % case.num_states
        np.put_along_axis(empty, kept[None], False, 0)
    if case.empty_rows:
        rows = Stream(case.seed, _ROWS).below(3, *shape[1:]) == 0
        rows.flat[0] = True
        empty |= rows
    return empty


def materialise(case: StateCase, device: str = "cpu", *, reverse: bool = False) -> StateTensors:
    """Return the tensors of a case, with the states in the reverse order on demand."""
    shape = case.num_states, case.num_tokens, case.num_heads
    empty = empty_of(case)
    lses = np.float32(case.lse_offset) + np.float32(case.lse_spread) * Stream(case.seed, _LSES).normals(*shape)
    lses = np.where(empty, np.float32(EMPTY), lses)
    bits = rounded(Stream(case.seed, _OUTPUTS).normals(*shape, case.head_size), case.dtype)
    bits = np.where(empty[..., None], bits.dtype.type(slot_poison(case.dtype, case.poison)), bits)
    if reverse:
        bits, lses = bits[::-1], lses[::-1]
    memory, view = _memory((*shape, case.head_size), case.gap, case.dtype, slot_poison(case.dtype, "nan"))
    view[...] = bits
    sums, sums_view = _memory(shape, 0, "float32", slot_poison("float32", "nan"))
    sums_view[...] = np.ascontiguousarray(lses).view(np.uint32)
    outputs = tensors_over(memory, (view,), TORCH_DTYPES[case.dtype], device)[0]
    near_sums = tensors_over(sums, (sums_view,), torch.float32, device)[0]
    return StateTensors(
        partial_outputs=with_far_axis(case, outputs, "partial_outputs", ("state", "token", "head")),
        partial_lses=with_far_axis(case, near_sums, "partial_lses", ("state", "token", "head")),
        outputs=outputs_of(case, device),
        base=BASES[case.base],
        query_lens=(case.num_tokens,),
    )


def outputs_of(case: StateCase, device: str, variant: int = 0) -> dict[str, OutputTensor]:
    """Return the poisoned outputs of a case; ``variant`` 1 has the other poison."""
    rows = case.num_tokens + case.padded_tokens
    shapes: dict[str, tuple[tuple[int, ...], int, StateType]] = {
        "out": ((rows, case.num_heads, case.head_size), case.gap, case.dtype),
        "lse": ((rows, case.num_heads), 0, "float32"),
    }
    found = {}
    for name, (shape, gap, dtype) in shapes.items():
        poison = output_poison(dtype, variant)
        memory, view = _memory(shape, gap, dtype, poison)
        near = tensors_over(memory, (view,), TORCH_DTYPES[dtype], device)[0]
        tensor = with_far_axis(case, near, name, ("token", "head"))
        axes = ("token", "head", "column")[: len(shape)]
        found[name] = OutputTensor(tensor, poison, (slice(0, case.num_tokens),), None, axes)
    return found


def _memory(
    shape: tuple[int, ...], gap: int, dtype: StateType, poison: int
) -> tuple[npt.NDArray[np.unsignedinteger], npt.NDArray[np.unsignedinteger]]:
    """Return poisoned memory for a tensor whose last axis has ``gap`` elements behind it, and the view of it."""
    memory = poisoned((*shape[:-1], shape[-1] + gap), bits_dtype(dtype), poison)
    return memory, strided(memory, shape, tuple(stride // memory.itemsize for stride in memory.strides))


LAUNCHER: Final = "merge_states:merge_states"
STATE_ROLES: Final = Roles(ROLES, NAMES, NEEDED, "a merge of states")
_BASES: Final = {"e": "the natural logarithm", "2": "the logarithm of base 2"}
_PROMISED: Final = frozenset(("empty_states", "strides"))
"""What the names of other parameters than this project's own promise."""


@dataclass(frozen=True)
class StateTarget(SmallTarget):
    """A callable that merges all states of a row, or two."""

    def value(  # noqa: PLR0911 - one for each kind of role
        self, role: str, tensors: StateTensors, forms: Forms
    ) -> object:
        """Return the argument of a role."""
        outputs, sums = tensors.partial_outputs, self._ordered(tensors.partial_lses)
        place = 0 if role.startswith("first") else 1
        match role:
            case "partial_outputs":
                return outputs
            case "first_output" | "second_output":
                return outputs[place]
            case "partial_lses" | "first_lse" | "second_lse":
                given = sums if role == "partial_lses" else sums[place]
                return given if self.domain.lse.order == "tokens" else forms.given(role, given)
            case "token_outputs" | "token_lses":
                by_token = (outputs if role == "token_outputs" else tensors.partial_lses).transpose(0, 1)
                return forms.given(role, by_token.flatten(0, 1) if "state_indptr" in self.roles else by_token)
            case "state_indptr":
                count, tokens = outputs.shape[:2]
                return forms.given(role, torch.arange(tokens + 1, dtype=torch.int32, device=outputs.device) * count)
            case "first_to_out" | "first_to_lse":
                output = tensors.outputs["out" if role == "first_to_out" else "lse"].tensor
                first = (outputs if role == "first_to_out" else tensors.partial_lses)[0]
                bits_of(output)[: len(first)] = bits_of(first)
                return output
            case "lse" if self.domain.lse.order == "heads":
                own = tensors.outputs["lse"]
                return forms.output(role, own, own.tensor.T, lambda bits: bits.T)
        return tensors.outputs[role].tensor

    def _ordered(self, lses: torch.Tensor) -> torch.Tensor:
        return lses if self.domain.lse.order == "tokens" else lses.transpose(-1, -2)

    def variants(self) -> Iterator[tuple[StateTarget, str]]:
        """Yield the target with each base of LSEs, and each order of their axes where it is given such tensors."""
        if self.match.published or "lse" in self.match.binding.domain:
            return
        has_order = not {"token_lses", "first_to_lse"} & set(self.roles)
        for order in ("tokens", "heads") if has_order else ("tokens",):
            for base, words in _BASES.items():
                lse = LogSumExp(base="2" if base == "2" else "e", order="heads" if order == "heads" else "tokens")
                yield self.with_domain(replace(self.domain, lse=lse)), f"LSEs are {words}, {order} first"


def load(name: str, binding: Binding | None) -> StateTarget:
    """Return the target that a specification names; raises :class:`TargetError` where its parameters do not fit."""
    call, match = found(name, binding, (NAME, LAUNCHER), STATE_ROLES)
    roles, domain = set(match.binding.parameter_of), StateDomain()
    if not match.published and not match.binding.whole:
        pair = {"second_output", "second_lse"} & roles
        domain = replace(domain, features=_PROMISED, empty_outputs=("zero",), num_states=(2, 2) if pair else (1, 64))
    target = StateTarget(name, call, domain=limited(domain, match.binding), binding=binding, how=match)
    if {"out", "first_to_out"} & roles:
        return target
    return target.with_domain(target.domain, returns=("out", "lse"), output="returned")


_OTHER_POISON: Final[dict[SlotPoison, SlotPoison]] = {
    "zero": "nan",
    "nan": "huge",
    "inf": "nan",
    "negative_inf": "nan",
    "huge": "zero",
}
QUOTIENT: Final = 4 * UNIT
LOGARITHM: Final = 2.0**-22
LOGARITHM_UNITS: Final = 6 * UNIT
EXPONENT: Final = math.expm1(3 * math.log1p(UNIT))
"""What an exponent loses of itself."""


class StateExperiment(SmallExperiment):
    """One case of merging on one target and one backend."""

    @staticmethod
    def materialise(case: StateCase, device: str = "cpu", **changes: Any) -> StateTensors:
        """Return the tensors of a case, with its states in the reverse order on demand."""
        return materialise(case, device, **changes)

    @staticmethod
    def with_other_numbers(case: StateCase) -> StateCase:
        """Return the case with ordinary LSEs and outputs."""
        return replace(case, seed=case.seed ^ 1, poison="zero", lse_offset=0.0)

    @cached_property
    def reference(self) -> Reference:
        """The oracle's answers to the first launch, computed from the inputs as the launch left them."""
        return merge(self.left, self.target.rounding_model)


def with_other_poison(case: StateCase) -> StateCase:
    """Return the case with other numbers in the outputs of states without a key."""
    return replace(case, poison=_OTHER_POISON[case.poison])


def _poison_independence(experiment: StateExperiment) -> Comparison:
    tensors: Any = materialise(with_other_poison(experiment.case), experiment.place)
    outputs = outputs_of(experiment.case, experiment.place, variant=1)
    other = dataclasses.replace(tensors, outputs=outputs)
    return SameBits(experiment.launch_call(other), "a launch with other unused memory", "poison_dependent")


def _state_order(experiment: StateExperiment) -> Comparison:
    launch = experiment.launch(experiment.case, reverse=True)
    return WithinBound(launch, "with the states in reverse order", experiment.reference, own=experiment.reference)


StateExperiment.second = {
    "determinism": second_launch,
    "poison_independence": _poison_independence,
    "state_order": _state_order,
}


@torch.inference_mode()
def merge(tensors: StateTensors, model: RoundingModel = PLAIN_MODEL) -> Reference:
    """Return the merged output and LSE of all rows, by their names ``out`` and ``lse``.

    Outputs of empty states are not read. An LSE of -inf must be met exactly.
    """
    unit = math.log(tensors.base)
    lses = tensors.partial_lses.double() * unit
    empty = lses == EMPTY
    states = tensors.partial_outputs.double().masked_fill(empty[..., None], 0.0)
    top = lses.amax(0)
    nothing = top == EMPTY
    distance = (top.masked_fill(nothing, 0.0) - lses).masked_fill(empty, 0.0)
    weights = (-distance).exp().masked_fill(empty, 0.0)
    total = weights.sum(0).masked_fill(nothing, 1.0)
    shares = weights / total
    output = (shares[..., None] * states).sum(0)

    others = ((~empty).sum(0).double() - 1.0).clamp_min(0.0)
    log_unit = math.log1p(UNIT)
    moved = (distance * EXPONENT + others * (math.log1p(model.exp_units * UNIT) + log_unit)).expm1()
    moved.masked_fill_(distance == 0.0, 0.0)
    in_sums = (2.0 * others * log_unit).expm1()
    in_products = ((2.0 * others + 1.0) * log_unit).expm1()
    lost = others * FLUSHED
    below = (shares * ((1.0 + moved) * (1.0 + in_sums) - 1.0)).sum(0) + lost
    grown = shares * (1.0 + moved)
    error = (
        (shares[..., None] * moved[..., None] * (states - output).abs()).sum(0)
        + (grown[..., None] * states.abs()).sum(0) * in_products[..., None]
        + output.abs() * (grown.sum(0) * in_sums)[..., None]
        + (states.abs().amax(0) + output.abs()) * lost[..., None]
        + ((2.0 * others + 2.0) * FLUSHED)[..., None]
    )
    error = error / (1.0 - below)[..., None]
    error = error * (1.0 + QUOTIENT) + output.abs() * QUOTIENT
    error = error.masked_fill(nothing[..., None], 0.0)
    expected, bound = stored_bound(output, error, tensors.outputs["out"].tensor.dtype)
    everywhere = torch.ones_like(nothing)
    return {
        "out": Expected(expected, bound, everywhere[..., None]),
        "lse": Expected(*_sum_of(top, total, below, nothing, unit), everywhere, exact_infinities=True),
    }


def _sum_of(
    top: torch.Tensor, total: torch.Tensor, below: torch.Tensor, nothing: torch.Tensor, unit: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the merged LSE and its bound, in the base whose logarithm is ``unit``.

    ``below`` is what the sum of weights may lose of itself.
    """
    logarithm = total.log()
    value = top + logarithm
    error = -torch.log1p(-below) + LOGARITHM + LOGARITHM_UNITS * logarithm.abs()
    error += UNIT * (value.abs() + error)
    return value / unit, (error / unit).masked_fill(nothing, UNDERFLOW)
