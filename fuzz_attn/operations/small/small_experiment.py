"""Small experiment: the launches of one case of a small operation, whose tensors all come from its case."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, Final

from fuzz_attn.inputs.output_tensors import CallTensors
from fuzz_attn.properties.comparisons import Comparison
from fuzz_attn.properties.experiment import Experiment, Launch
from fuzz_attn.properties.refusal import Refusal

HOST_COST: Final = 2**18
"""Elements of a case up to which the host judges it."""


class SmallExperiment(Experiment):
    """One case on one target and one backend.

    ``second`` has the second launch of each relation.
    """

    case: Any
    left: Any
    second: ClassVar[Mapping[str, Callable[[Any], Comparison]]]

    @staticmethod
    @abstractmethod
    def materialise(case: Any, device: str = "cpu", **changes: Any) -> CallTensors:
        """Return the tensors of a case."""

    @staticmethod
    @abstractmethod
    def with_other_numbers(case: Any) -> Any:
        """Return the case with other, ordinary numbers, which a target refuses too if it refuses for their sake."""

    @cached_property
    def refusal(self) -> Refusal | None:
        """What the target or the compiler refuses of the case, with any numbers; None where the case ran or failed."""
        refusal = self.first.refusal
        if refusal is None or refusal.stage == "compile":
            return refusal
        return refusal if self.launch(self.with_other_numbers(self.case)).refusal else None

    @cached_property
    def place(self) -> str:
        """The device of the tensors that are judged: the host for small cases, else the backend's.

        Far tensors have addresses on the backend's only.
        """
        on_host = self.case.num_elements <= HOST_COST and not self.case.is_far
        return "cpu" if on_host else self.backend.device

    def launch(self, case: Any, **changes: Any) -> Launch:
        """Return a new launch of the target on a case, made with the options of ``materialise``."""
        return self.launch_call(self.materialise(case, self.place, **changes))

    def fresh(self) -> Any:
        """Return new tensors of the case, which the caller may change and launch."""
        return self.materialise(self.case, self.place)

    def again(self) -> Any:
        """Return new tensors of the case for another launch."""
        return self.fresh()

    def launch_call(self, tensors: CallTensors) -> Launch:
        """Return the launch of the target on tensors."""
        launched: Any = tensors
        return self.launch_tensors(launched)
