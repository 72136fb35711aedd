"""Target: a callable that can be fuzzed, with the inputs that it promises to handle and how it rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from fuzz_attn.binding.binding import Binding, Constant, Signature, binding_of, format_of, python_value, signature_of
from fuzz_attn.binding.call import Call, call_of
from fuzz_attn.binding.matching import Match, match_of
from fuzz_attn.case.aspects import Feature
from fuzz_attn.case.cache_layout import CacheFormat
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import Family
from fuzz_attn.case.plain import shortened
from fuzz_attn.errors import BindingError
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.targets.gpu_answers import gpu_answers
from fuzz_attn.targets.process_state import restored_process_state, target_defaults


class Called(NamedTuple):
    """What a call of a target left beside its outputs.

    ``changed`` names what it changed of the memory that was made for the call only, and ``beyond`` is the number of
    tensors that it returned beside the outputs.
    """

    changed: tuple[str, ...] = ()
    beyond: int = 0


@dataclass(frozen=True)
class Target:
    """A callable, how it is called, the domain it promises, and how it rounds.

    ``binding`` states what the names of the parameters do not tell, as a :class:`Binding` or a dict with its fields.
    What it states of the roundings wins over ``rounding``; without a ``rounding``, ``read`` holds: what the IR
    of its kernels says (:mod:`fuzz_attn.targets.arithmetic`). ``tensor_core_slack`` is that of the device.
    """

    name: str
    call: Callable[..., object]
    domain: Domain = field(default_factory=Domain)
    rounding: RoundingModel | None = None
    without_gpu: bool = False
    """Whether it runs on a machine without a GPU and is told that there is one."""
    binding: Binding | dict[str, Any] | None = None
    tensor_core_slack: float = 1.0
    read: RoundingModel = field(default_factory=RoundingModel)
    promised: frozenset[Feature] = frozenset()
    """The features that its domain or its binding states by name: to refuse one of them is a failure."""
    unexercised: tuple[str, ...] = ()
    """Its optional arguments that no case has, in words, once they were looked for."""

    @property
    def family(self) -> Family:
        """The kernel family whose interface the callable has."""
        return self.domain.family

    @cached_property
    def signature(self) -> Signature:
        """The parameters of the callable; read once, because every launch needs them."""
        return signature_of(self.call)

    @cached_property
    def stated(self) -> Binding | None:
        """The stated part of the binding; raises :class:`BindingError` where it is wrong."""
        return binding_of(self.binding)

    @cached_property
    def match(self) -> Match:
        """The binding, with the reasons for it; raises :class:`BindingError` where there is none."""
        return match_of(self.signature, self.family, self.stated)

    @cached_property
    def stored_as(self) -> CacheFormat | None:
        """The format in which it takes the caches, None for a layout of which its calls get copies."""
        return format_of(self.match.binding.cache_layout, self.family)

    @property
    def autotuned(self) -> bool:
        """Whether cases choose among configurations of its kernels."""
        return self.domain.configurations > 1

    @property
    def slug(self) -> str:
        """The name as a folder name."""
        return slug_of(self.name)

    @cached_property
    def rounding_model(self) -> RoundingModel:
        """How the target rounds on its device; raises :class:`BindingError` for fields that do not exist."""
        stated = self.stated.rounding if self.stated is not None else {}
        model = overruled(self.rounding or self.read, stated)
        slack = max(model.tensor_core_slack, self.tensor_core_slack)
        return msgspec.structs.replace(model, tensor_core_slack=slack)

    def on_device(self, tensor_core_slack: float) -> Target:
        """Return the target for a device whose tensor cores lose ``tensor_core_slack`` units at each addition.

        Raises :class:`BindingError` where the binding states fields of a rounding model that do not exist.
        """
        return replace(self, tensor_core_slack=max(self.rounding_model.tensor_core_slack, tensor_core_slack))

    def call_on(self, tensors: AttentionTensors) -> Call:
        """Return the call of the target on tensors; raises :class:`BindingError` where it cannot be computed."""
        try:
            return call_of(self.match.binding, self.signature, tensors)
        except BindingError:
            raise
        except Exception as error:
            raise BindingError(f"the arguments of {self.name!r} cannot be computed: {error!r}") from error

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Restore what a call changes of the process; a target without a GPU is told in it that there is one."""
        with restored_process_state(), target_defaults(), gpu_answers() if self.without_gpu else nullcontext():
            yield

    def called(self, arguments: dict[str, Any]) -> object:
        """Return the result of a call; what it raises passes this frame, by which the target's own are known."""
        with self.surroundings():
            return self.call(**arguments)

    def run(self, tensors: AttentionTensors) -> Called:
        """Call the target on tensors; ``tensors.outputs`` then hold what it wrote or returned, each by its name.

        Raises :class:`BindingError` where the arguments of the call cannot be computed, else what the target raises.
        """
        call = self.call_on(tensors)
        result = self.called(call.arguments)
        beyond = call.finish(result)
        return Called(call.changed(), beyond)


def overruled(model: RoundingModel, stated: dict[str, Constant]) -> RoundingModel:
    """Return a rounding model with the stated fields in place of its own; raises :class:`BindingError` for others."""
    fields = {name: python_value(value) for name, value in stated.items()}
    try:
        return msgspec.convert({**msgspec.structs.asdict(model), **fields}, RoundingModel)
    except msgspec.ValidationError as error:
        raise BindingError(f"binding: rounding: {error}") from error


def slug_of(name: str) -> str:
    """Return a target's name as a folder name: letters, digits, dots, dashes and underscores only, and not many."""
    slug = "".join(c if c.isalnum() or c in "._-" else "-" for c in name.removesuffix(".py")).strip("-.") or "target"
    return shortened(slug)
