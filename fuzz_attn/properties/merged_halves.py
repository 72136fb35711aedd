"""Merged halves: the outputs of a batch whose second half has the same tokens as the first half, and other keys."""

from __future__ import annotations

import dataclasses
import math
from typing import Final

import torch

from fuzz_attn.inputs.output_tensors import OutputTensor
from fuzz_attn.oracle.reference import Expected, Reference, attend
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.properties.experiment import Launch

FLOAT64: Final = 2.0**-20
"""What merging in float64 loses, relative to the bounds: those count units of 2^-24 of the same numbers."""
_UNWRITTEN: Final = 0x7FFC_0000_5EED_FA11
"""Bits of a NaN that no arithmetic gives."""


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
