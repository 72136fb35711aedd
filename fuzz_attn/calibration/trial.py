"""Trial: one candidate of a binding on one easy case."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec
import torch

from fuzz_attn.backends.backend import Backend
from fuzz_attn.binding.binding import Binding
from fuzz_attn.binding.promises import domain_of
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.errors import BindingError
from fuzz_attn.oracle.reference import attend
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.targets.target import Target

Outcome: TypeAlias = Literal["fits", "wrong", "raised"]

COARSE: Final = 64.0
"""How many bounds of the default rounding model an output of the right binding may be off, unless its own model allows
more. Few targets state theirs, and correct kernels were measured at up to 58 such bounds; a wrong convention is off by
whole values."""


SHOWN_CHARACTERS: Final = 300


class Trial(NamedTuple):
    """What became of a trial, and why it does not fit."""

    outcome: Outcome
    why: str = ""


def bound_to(target: Target, binding: Binding) -> Target:
    """Return a target with a binding that is whole, and with the family of its problem."""
    whole = msgspec.structs.replace(binding, whole=True)
    if binding.family == target.family:
        return replace(target, binding=whole)
    return replace(target, binding=whole, domain=domain_of(whole))


def tried_on(target: Target, binding: Binding, case: AttentionCase, backend: Backend) -> Trial:
    """Return whether a target that is called by a binding computes the case."""
    experiment = Experiment(case, bound_to(target, binding), backend)
    try:
        with backend.unrecorded():
            launch = experiment.first
    except BindingError as error:
        return Trial("raised", str(error))
    if launch.error:
        return Trial("raised", " ".join(launch.error.split())[:SHOWN_CHARACTERS])
    if experiment.changed_inputs:
        return Trial("wrong", f"another {experiment.changed_inputs[0]}, which it must not change")
    wrong = _wrong_elements(experiment)
    return Trial("wrong", f"{wrong} wrong elements") if wrong else Trial("fits")


def _wrong_elements(experiment: Experiment) -> int:
    """Return how many elements of all outputs were not written or are far from the oracle's."""
    tensors, wrong = experiment.first.tensors, 0
    usual = attend(tensors, RoundingModel(), experiment.blocks)
    for name, expected in experiment.reference.items():
        output = tensors.outputs[name]
        error = (output.elements.double() - expected.value).abs()
        near = (error <= torch.maximum(COARSE * usual[name].bound, expected.bound)) & ~output.unwritten
        wrong += int((~near).sum())
    return wrong
