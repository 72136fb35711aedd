"""State experiment: the launches of one case of merging, and the second launches of its relations."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

from msgspec.structs import replace

from fuzz_attn.case.recipes import SlotPoison
from fuzz_attn.inputs.output_tensors import CallTensors
from fuzz_attn.inputs.tensors import digest_of
from fuzz_attn.operations.merge_states.state_case import StateCase
from fuzz_attn.operations.merge_states.state_reference import merge
from fuzz_attn.operations.merge_states.state_tensors import StateTensors, materialise, outputs_of
from fuzz_attn.oracle.reference import Reference
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.check import failures_of_call
from fuzz_attn.properties.comparisons import Comparison, SameBits, WithinBound, second_launch
from fuzz_attn.properties.experiment import Experiment, Launch
from fuzz_attn.properties.refusal import Refusal

HOST_COST: Final = 2**18
"""Elements of a case up to which the host judges it."""
_OTHER_POISON: Final[dict[SlotPoison, SlotPoison]] = {
    "zero": "nan",
    "nan": "huge",
    "inf": "nan",
    "negative_inf": "nan",
    "huge": "zero",
}


class StateExperiment(Experiment):
    """One case of merging on one target and one backend."""

    case: Any
    left: Any

    @cached_property
    def refusal(self) -> Refusal | None:
        """What the target or the compiler refuses of the case, with any numbers; None where the case ran or failed."""
        refusal = self.first.refusal
        if refusal is None or refusal.stage == "compile":
            return refusal
        other = self.launch(replace(self.case, seed=self.case.seed ^ 1, poison="zero", lse_offset=0.0))
        return refusal if other.refusal else None

    @cached_property
    def place(self) -> str:
        """The device of the tensors that are judged: the host for small cases, else the backend's."""
        return "cpu" if self.case.num_elements <= HOST_COST else self.backend.device

    @cached_property
    def reference(self) -> Reference:
        """The oracle's answers to the first launch, computed from the inputs as the launch left them."""
        return merge(self.left, self.target.rounding_model)

    def launch(self, case: StateCase, *, reverse: bool = False) -> Launch:  # type: ignore[override]
        """Return a new launch of the target on a case, with its states in the reverse order on demand."""
        return self.launch_call(materialise(case, self.place, reverse=reverse))

    def fresh(self) -> Any:
        """Return new tensors of the case, which the caller may change and launch."""
        return materialise(self.case, self.place)

    def again(self) -> Any:
        """Return new tensors of the case for another launch."""
        return self.fresh()

    def launch_call(self, tensors: CallTensors) -> Launch:
        """Return the launch of the target on tensors."""
        launched: Any = tensors
        return self.launch_tensors(launched)


def failures(experiment: Experiment, relation: str | None) -> tuple[Verdict, ...]:
    """Return every failed verdict of an experiment and one relation, else only the oracle's."""
    return failures_of_call(experiment, relation, compare)


def compare(relation: str, experiment: Experiment) -> Comparison:
    """Return the second launch of a relation, and what it must give."""
    assert isinstance(experiment, StateExperiment)
    return _SECOND[relation](experiment)


def digest(case: StateCase) -> str:
    """Return 16 hexadecimal digits of the tensors of a case."""
    return digest_of(materialise(case))


def with_other_poison(case: StateCase) -> StateCase:
    """Return the case with other numbers in the outputs of states without a key."""
    return replace(case, poison=_OTHER_POISON[case.poison])


def _poison_independence(experiment: StateExperiment) -> Comparison:
    tensors: Any = materialise(with_other_poison(experiment.case), experiment.place)
    outputs = outputs_of(experiment.case, experiment.place, variant=1)
    other = StateTensors(tensors.partial_outputs, tensors.partial_lses, outputs, tensors.query_lens)
    return SameBits(experiment.launch_call(other), "a launch with other unused memory", "poison_dependent")


def _state_order(experiment: StateExperiment) -> Comparison:
    launch = experiment.launch(experiment.case, reverse=True)
    return WithinBound(launch, "with the states in reverse order", experiment.reference, own=experiment.reference)


_SECOND: Final[dict[str, Callable[[StateExperiment], Comparison]]] = {
    "determinism": second_launch,
    "poison_independence": _poison_independence,
    "state_order": _state_order,
}
