"""Target: a callable that can be fuzzed, with the inputs that it promises to handle and how it rounds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec

from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import Family
from fuzz_attn.errors import BindingError
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.targets.bindings import BINDINGS
from fuzz_attn.targets.bindings.binding import Signature, signature_of
from fuzz_attn.targets.process_state import restored_process_state
from fuzz_attn.targets.published.gpu_answers import gpu_answers
from fuzz_attn.targets.torch_defaults import target_defaults


@dataclass(frozen=True)
class Target:
    """A callable with the interface of a kernel family, the domain it promises, and its rounding model."""

    name: str
    call: Callable[..., object]
    domain: Domain = field(default_factory=Domain)
    rounding_model: RoundingModel = field(default_factory=RoundingModel)
    without_gpu: bool = False
    """Whether it runs on a machine without a GPU and is told that there is one."""

    @property
    def family(self) -> Family:
        """The kernel family whose interface the callable has."""
        return self.domain.family

    @cached_property
    def signature(self) -> Signature:
        """The parameters of the callable; read once, because every launch needs them."""
        return signature_of(self.call)

    @property
    def slug(self) -> str:
        """The name as a folder name."""
        return slug_of(self.name)

    def on_device(self, tensor_core_slack: float) -> Target:
        """Return the target for a device whose tensor cores lose ``tensor_core_slack`` units at each addition."""
        slack = max(self.rounding_model.tensor_core_slack, tensor_core_slack)
        model = msgspec.structs.replace(self.rounding_model, tensor_core_slack=slack)
        return replace(self, rounding_model=model)

    def run(self, tensors: AttentionTensors) -> None:
        """Call the target on tensors; it writes ``tensors.output`` in place.

        Raises :class:`BindingError` where the arguments of the call cannot be computed, else what the target raises.
        """
        try:
            arguments = BINDINGS[self.family].arguments_for(self.signature, tensors)
        except Exception as error:
            raise BindingError(f"the arguments of {self.name!r} cannot be computed: {error!r}") from error
        with restored_process_state(), target_defaults(), gpu_answers() if self.without_gpu else nullcontext():
            self.call(**arguments)


def slug_of(name: str) -> str:
    """Return a target's name as a folder name: letters, digits, dots, dashes and underscores only."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name.removesuffix(".py")).strip("-.") or "target"
