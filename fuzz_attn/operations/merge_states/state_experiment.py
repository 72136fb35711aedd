"""State experiment: the launches of one case of merging, those of its relations, and the reference with its bound.

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
from functools import cached_property
from typing import Any, Final

import torch
from msgspec.structs import replace

from fuzz_attn.case.recipes import SlotPoison
from fuzz_attn.operations.merge_states.state_case import StateCase
from fuzz_attn.operations.merge_states.state_tensors import EMPTY, StateTensors, materialise, outputs_of
from fuzz_attn.operations.small_target import SmallExperiment
from fuzz_attn.oracle.error_bound import stored_bound
from fuzz_attn.oracle.reference import PLAIN_MODEL, Expected, Reference
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.oracle.roundings import FLUSHED, UNDERFLOW, UNIT
from fuzz_attn.properties.comparisons import Comparison, SameBits, WithinBound, second_launch

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
