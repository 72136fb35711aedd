"""The bench: one case laid out once for many mutants, with all that their launches share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch

from fuzz_attn.backends.backend import Backend
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.inputs.tensors import AttentionTensors, materialise
from fuzz_attn.mutation import fixed_tolerances
from fuzz_attn.mutation.case_stream import Drawn
from fuzz_attn.oracle.reference import Reference, attend
from fuzz_attn.properties.experiment import Experiment, Launch
from fuzz_attn.targets.target import Target


class Material:
    """The tensors of a case, which can be put back to what they were."""

    def __init__(self, tensors: AttentionTensors) -> None:
        self.tensors = tensors
        self._kept = [(memory, memory.clone()) for memory in self._memories()]

    def _memories(self) -> Iterator[torch.Tensor]:
        """Yield the memory of every tensor, that of two views once."""
        seen = set()
        for tensor in (*(tensor for _, tensor in self.tensors.inputs()), self.tensors.output):
            memory = self.tensors.memory_of(tensor)
            if memory.data_ptr() not in seen:
                seen.add(memory.data_ptr())
                yield memory

    def restored(self) -> AttentionTensors:
        """Return the tensors as they were made."""
        for memory, kept in self._kept:
            memory.copy_(kept)
        return self.tensors


class Bench:
    """One case of the stream: its tensors, its reference, and what two fixed tolerances make of an output."""

    def __init__(self, drawn: Drawn, target: Target, backend: Backend) -> None:
        self.drawn = drawn
        self.target = target
        self.backend = backend
        self.reference: Reference
        self.yardsticks: dict[str, fixed_tolerances.Yardstick] = {}
        self._materials: dict[AttentionCase, list[Material]] = {}

    def tensors(self, case: AttentionCase, number: int) -> AttentionTensors:
        """Return the tensors of this case or of one derived from it; those of other numbers live beside them."""
        made = self._materials.setdefault(case, [])
        while len(made) <= number:
            made.append(Material(materialise(case, self.backend.device)))
        return made[number].restored()

    def refer(self, *, ruled: bool) -> None:
        """Work out the reference and, if asked, what the fixed tolerances allow; to be called before any launch."""
        tensors = self.tensors(self.drawn.case, 0)
        self.reference = attend(tensors, self.target.rounding_model)
        self.yardsticks = fixed_tolerances.yardsticks(tensors, self.reference) if ruled else {}


class SharedExperiment(Experiment):
    """An experiment on a bench: what does not depend on the target is there already."""

    def __init__(self, bench: Bench, target: Target) -> None:
        super().__init__(bench.drawn.case, target, bench.backend)
        self._bench = bench
        self._launches: dict[AttentionCase, int] = {}

    @cached_property
    def reference(self) -> Reference:
        """The bench's own: no launch changes it, since changed inputs are a failure of their own."""
        return self._bench.reference

    def launch(self, case: AttentionCase) -> Launch:
        """Return a new launch of the target on a case, on tensors that no other launch of this experiment has."""
        number = self._launches.get(case, 0)
        self._launches[case] = number + 1
        return self.launch_tensors(self._bench.tensors(case, number))
