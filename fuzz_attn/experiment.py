"""Experiment: one case on one target and backend. Launches are made once and shared by the properties that look."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from functools import cached_property

import torch

from fuzz_attn.backends.base import Backend, Observation, Watch
from fuzz_attn.case import AttentionCase
from fuzz_attn.errors import UnsupportedByBackendError
from fuzz_attn.targets import Target
from fuzz_attn.tensors import AttentionTensors, materialise, storage_bytes


@dataclass(frozen=True)
class Launch:
    """The tensors after one call of the target, what they held before, and what the target raised, if anything."""

    tensors: AttentionTensors
    inputs_before: dict[str, torch.Tensor]
    output_before: torch.Tensor
    error: str = ""
    """Empty, or the exception's type, text and innermost line."""
    observations: tuple[Observation, ...] = ()
    """What the backend's sanitizers saw."""

    @property
    def output_after(self) -> torch.Tensor:
        """The output's whole memory as bytes, padding included."""
        return storage_bytes(self.tensors.output)


class Experiment:
    """One case, on one target, on one backend."""

    def __init__(self, case: AttentionCase, target: Target, backend: Backend) -> None:
        self.case = case
        self.target = target
        self.backend = backend

    @cached_property
    def first(self) -> Launch:
        """The launch that most properties look at."""
        return self.launch(self.case)

    def launch(self, case: AttentionCase) -> Launch:
        """Return a new launch of the target on a case."""
        tensors = materialise(case, self.backend.device)
        inputs = {name: storage_bytes(tensor).clone() for name, tensor in tensors.inputs()}
        output = storage_bytes(tensors.output).clone()
        error, watch = "", Watch()
        try:
            with self.backend.running() as watch:
                self.target.run(case, tensors)
        except UnsupportedByBackendError:
            raise
        except Exception as raised:  # noqa: BLE001 - whatever a target raises on a promised input is a finding
            error = _told(raised)
        return Launch(tensors, inputs, output, error, tuple(watch.observations))


def _told(raised: Exception) -> str:
    frames = traceback.extract_tb(raised.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(raised).__name__}: {raised}{place}"
