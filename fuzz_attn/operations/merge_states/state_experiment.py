"""State experiment: the launches of one case of merging, and the second launches of its relations."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any, Final

from msgspec.structs import replace

from fuzz_attn.case.recipes import SlotPoison
from fuzz_attn.operations.merge_states.state_case import StateCase
from fuzz_attn.operations.merge_states.state_reference import merge
from fuzz_attn.operations.merge_states.state_tensors import StateTensors, materialise, outputs_of
from fuzz_attn.operations.small.small_experiment import SmallExperiment
from fuzz_attn.oracle.reference import Reference
from fuzz_attn.properties.comparisons import Comparison, SameBits, WithinBound, second_launch

_OTHER_POISON: Final[dict[SlotPoison, SlotPoison]] = {
    "zero": "nan",
    "nan": "huge",
    "inf": "nan",
    "negative_inf": "nan",
    "huge": "zero",
}


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
    def place(self) -> str:
        """The device of the tensors that are judged; far ones have addresses on the backend's only."""
        place: str = super().place
        return self.backend.device if self.case.far else place

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
