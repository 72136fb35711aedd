"""Write experiment: the launches of one cache write, and the second launches of its relations."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

import torch
from msgspec.structs import replace

from fuzz_attn.inputs.output_tensors import CallTensors
from fuzz_attn.inputs.tensors import digest_of
from fuzz_attn.operations.cache_write.write_case import WriteCase
from fuzz_attn.operations.cache_write.write_reference import write
from fuzz_attn.operations.cache_write.write_tensors import materialise
from fuzz_attn.oracle.reference import Reference
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.check import failures_of_call
from fuzz_attn.properties.comparisons import Comparison, SameBits, second_launch
from fuzz_attn.properties.experiment import Experiment, Launch
from fuzz_attn.properties.refusal import Refusal

HOST_COST: Final = 2**18
"""Elements of a case up to which the host judges it."""


class WriteExperiment(Experiment):
    """One cache write on one target and one backend."""

    case: Any
    left: Any

    @cached_property
    def refusal(self) -> Refusal | None:
        """What the target or the compiler refuses of the case, with any numbers; None where the case ran or failed."""
        refusal = self.first.refusal
        if refusal is None or refusal.stage == "compile":
            return refusal
        other = self.launch(replace(self.case, seed=self.case.seed ^ 1, magnitude=1.0))
        return refusal if other.refusal else None

    @cached_property
    def place(self) -> str:
        """The device of the tensors that are judged: the host for small cases, else the backend's."""
        near = self.case.num_elements <= HOST_COST and not self.case.far
        return "cpu" if near else self.backend.device

    @cached_property
    def reference(self) -> Reference:
        """The oracle's answers to the first launch, computed from the inputs as the launch left them."""
        return write(self.left)

    def launch(self, case: WriteCase, **changes: Any) -> Launch:  # type: ignore[override]
        """Return a new launch of the target on a case, made with the options of ``materialise``."""
        return self.launch_call(materialise(case, self.place, **changes))

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
    assert isinstance(experiment, WriteExperiment)
    return _SECOND[relation](experiment)


def digest(case: WriteCase) -> str:
    """Return 16 hexadecimal digits of the tensors of a case."""
    return digest_of(materialise(case))


def _poison_independence(experiment: WriteExperiment) -> Comparison:
    launch = experiment.launch(experiment.case, variant=1)
    return SameBits(launch, "a launch on caches that held something else", "poison_dependent")


def _token_order(experiment: WriteExperiment) -> Comparison:
    launch = experiment.launch(experiment.case, reverse=True)
    order = torch.arange(experiment.case.num_tokens - 1, -1, -1, device=launch.tensors.device)
    return SameBits(launch, "with the tokens in reverse order", tokens=order)


def _other_slots(experiment: WriteExperiment) -> Comparison:
    return SameBits(experiment.launch(experiment.case, other=1), "with the tokens in other slots")


_SECOND: Final[dict[str, Callable[[WriteExperiment], Comparison]]] = {
    "determinism": second_launch,
    "poison_independence": _poison_independence,
    "token_order": _token_order,
    "other_slots": _other_slots,
}
