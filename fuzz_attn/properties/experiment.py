"""Experiment: one case on one target and backend. Launches are made once and shared by the properties that look."""

from __future__ import annotations

import dataclasses
import traceback
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch

from fuzz_attn.backends.backend import Backend, Observation, Watch
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.errors import DeviceLostError, UnsupportedByBackendError
from fuzz_attn.inputs.snapshots import snapshot_of, still_holds
from fuzz_attn.inputs.tensors import AttentionTensors, materialise, output_of, storage_bytes
from fuzz_attn.oracle.reference import Reference, attend
from fuzz_attn.oracle.row_blocks import RowBlock, row_blocks
from fuzz_attn.targets.target import Target

SHOWN_CHARACTERS: Final = 4000
"""How much of what an exception says is told: a compiler may print the whole kernel."""


@dataclass(frozen=True)
class Launch:
    """The tensors after one call of the target, what the output held before, and what the target raised, if it did."""

    tensors: AttentionTensors
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
        self._inputs_before: dict[str, torch.Tensor] = {}

    @cached_property
    def first(self) -> Launch:
        """The launch that most properties look at."""
        tensors = self.fresh()
        self._inputs_before = {
            name: snapshot_of(tensor, tensors.void_before(tensor)) for name, tensor in tensors.inputs()
        }
        return self.launch_tensors(tensors)

    @cached_property
    def changed_inputs(self) -> list[str]:
        """The names of the inputs that the first launch changed, or whose surroundings it changed."""
        tensors, before = self.first.tensors, self._inputs_before
        return [
            name
            for name, tensor in tensors.inputs()
            if not still_holds(tensor, before[name], tensors.void_before(tensor))
        ]

    @cached_property
    def reference(self) -> Reference:
        """The oracle's answer to the first launch, from the inputs as that left them."""
        return attend(self.first.tensors, self.target.model, self.blocks)

    @cached_property
    def blocks(self) -> tuple[RowBlock, ...]:
        """The row blocks of the first launch's inputs, as that left them."""
        return tuple(row_blocks(self.first.tensors))

    def launch(self, case: AttentionCase) -> Launch:
        """Return a new launch of the target on a case."""
        return self.launch_tensors(materialise(case, self.backend.device))

    def fresh(self) -> AttentionTensors:
        """Return the tensors of the case as they are before a launch, to be changed and launched."""
        return materialise(self.case, self.backend.device)

    def again(self) -> AttentionTensors:
        """Return the tensors of the case with a new output, to be launched; the inputs are the first launch's own."""
        if self.changed_inputs:
            return self.fresh()
        return dataclasses.replace(self.first.tensors, output=output_of(self.case, self.backend.device))

    def launch_tensors(self, tensors: AttentionTensors) -> Launch:
        """Return the launch of the target on tensors; it writes their output, and they belong to the launch."""
        output = storage_bytes(tensors.output).clone()
        error, watch = "", Watch()
        try:
            with self.backend.running() as watch:
                self.target.run(tensors)
        except (DeviceLostError, UnsupportedByBackendError):
            raise
        except Exception as raised:  # noqa: BLE001 - whatever a target raises on a promised input is a finding
            error = _told(raised)
        return Launch(tensors, output, error, tuple(watch.observations))


def _told(raised: Exception) -> str:
    frames = traceback.extract_tb(raised.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(raised).__name__}: {_words(raised)}{place}"


def _words(raised: Exception) -> str:
    """Return the text of a target's exception, whose class may be the target's too: cut, and fit for a file."""
    try:
        text = str(raised)
    except Exception as error:  # noqa: BLE001 - it is anybody's code
        text = f"(its text raised {type(error).__name__})"
    more = f" ... ({len(text) - SHOWN_CHARACTERS} more characters)" if len(text) > SHOWN_CHARACTERS else ""
    return text[:SHOWN_CHARACTERS].encode(errors="backslashreplace").decode() + more
