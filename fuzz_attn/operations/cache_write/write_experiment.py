"""Write experiment: the launches of one cache write, and the second launches of its relations."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from msgspec.structs import replace

from fuzz_attn.operations.cache_write.write_case import WriteCase
from fuzz_attn.operations.cache_write.write_read_back import read_back
from fuzz_attn.operations.cache_write.write_reference import write
from fuzz_attn.operations.cache_write.write_tensors import WriteTensors, materialise
from fuzz_attn.operations.small.small_experiment import SmallExperiment
from fuzz_attn.oracle.reference import Reference
from fuzz_attn.properties.comparisons import Comparison, SameBits, second_launch


class WriteExperiment(SmallExperiment):
    """One cache write on one target and one backend."""

    @staticmethod
    def materialise(case: WriteCase, device: str = "cpu", **changes: Any) -> WriteTensors:
        """Return the tensors of a case, made with the options of the function of that name."""
        return materialise(case, device, **changes)

    @staticmethod
    def with_other_numbers(case: WriteCase) -> WriteCase:
        """Return the case with other numbers of an ordinary magnitude."""
        return replace(case, seed=case.seed ^ 1, magnitude=1.0)

    @cached_property
    def reference(self) -> Reference:
        """The oracle's answers to the first launch, computed from the inputs as the launch left them."""
        return write(self.left)


def _poison_independence(experiment: WriteExperiment) -> Comparison:
    launch = experiment.launch(experiment.case, variant=1)
    return SameBits(launch, "a launch on caches that held something else", "poison_dependent")


def _token_order(experiment: WriteExperiment) -> Comparison:
    launch = experiment.launch(experiment.case, reverse=True)
    order = torch.arange(experiment.case.num_tokens - 1, -1, -1, device=launch.tensors.device)
    return SameBits(launch, "with the tokens in reverse order", tokens=order)


def _other_slots(experiment: WriteExperiment) -> Comparison:
    return SameBits(experiment.launch(experiment.case, other=1), "with the tokens in other slots")


WriteExperiment.second = {
    "determinism": second_launch,
    "poison_independence": _poison_independence,
    "token_order": _token_order,
    "other_slots": _other_slots,
    "read_back": read_back,
}
