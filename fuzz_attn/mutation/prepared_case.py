"""PreparedCase: one case prepared once for many mutants, with everything that their launches share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch

from fuzz_attn.backends.backend import Backend
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.inputs.tensors import AttentionTensors, materialise
from fuzz_attn.mutation.case_stream import DrawnCase
from fuzz_attn.mutation.fixed_tolerances import AllowedErrors, allowed_errors
from fuzz_attn.oracle.reference import Reference, attend
from fuzz_attn.properties.experiment import Experiment, Launch
from fuzz_attn.targets.target import Target


class RestorableTensors:
    """The tensors of a case with a copy of their first contents."""

    def __init__(self, tensors: AttentionTensors) -> None:
        self.tensors = tensors
        self._copies = [(memory, memory.clone()) for memory in self._memories()]

    def _memories(self) -> Iterator[torch.Tensor]:
        """Yield the memory of every tensor; two views of one memory yield it once."""
        seen = set()
        for tensor in (*(tensor for _, tensor in self.tensors.inputs()), self.tensors.output):
            memory = self.tensors.memory_of(tensor)
            if memory.data_ptr() not in seen:
                seen.add(memory.data_ptr())
                yield memory

    def restored(self) -> AttentionTensors:
        """Return the tensors with their first contents."""
        for memory, copy in self._copies:
            memory.copy_(copy)
        return self.tensors


class PreparedCase:
    """One case of the stream: its tensors, its reference, and the errors that two fixed tolerances allow."""

    def __init__(self, drawn: DrawnCase, target: Target, backend: Backend) -> None:
        self.drawn = drawn
        self.target = target
        self.backend = backend
        self.reference: Reference
        self.allowed_errors: dict[str, AllowedErrors] = {}
        self._tensors: dict[AttentionCase, list[RestorableTensors]] = {}

    def tensors(self, case: AttentionCase, number: int) -> AttentionTensors:
        """Return tensors of this case or of one derived from it; each number has tensors of its own."""
        made = self._tensors.setdefault(case, [])
        while len(made) <= number:
            made.append(RestorableTensors(materialise(case, self.backend.device)))
        return made[number].restored()

    def compute_reference(self, *, with_tolerances: bool) -> None:
        """Compute the reference and, on demand, what the fixed tolerances allow; must precede any launch."""
        tensors = self.tensors(self.drawn.case, 0)
        self.reference = attend(tensors, self.target.rounding_model)
        self.allowed_errors = allowed_errors(tensors, self.reference) if with_tolerances else {}


class SharedExperiment(Experiment):
    """An experiment on a prepared case, which already has everything that does not depend on the target."""

    def __init__(self, prepared: PreparedCase, target: Target) -> None:
        super().__init__(prepared.drawn.case, target, prepared.backend)
        self._prepared = prepared
        self._launches: dict[AttentionCase, int] = {}

    @cached_property
    def reference(self) -> Reference:
        """The prepared case's reference. No launch changes it, since changed inputs are a failure of their own."""
        return self._prepared.reference

    def launch(self, case: AttentionCase) -> Launch:
        """Return a new launch of the target on a case, on tensors of its own within this experiment."""
        number = self._launches.get(case, 0)
        self._launches[case] = number + 1
        return self.launch_tensors(self._prepared.tensors(case, number))
