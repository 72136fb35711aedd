"""State target: a callable that merges attention states, called by the names of its parameters."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from fuzz_attn.binding.binding import Binding
from fuzz_attn.binding.matching import Match
from fuzz_attn.errors import TargetError
from fuzz_attn.operations.merge_states.state_case import NAME, ROLES, StateDomain
from fuzz_attn.targets.built_in import launcher
from fuzz_attn.targets.loading import object_named
from fuzz_attn.targets.target import Called, Target

LAUNCHER: Final = "merge_states:merge_states"


@dataclass(frozen=True)
class StateTarget(Target):
    """A callable with the parameters of ``ROLES``."""

    domain: Any = field(default_factory=StateDomain)

    @cached_property
    def match(self) -> Match:
        """Why each parameter has its role."""
        return Match(Binding(), dict.fromkeys(ROLES, "its name"), published=True)

    @property
    def stored_as(self) -> None:
        """The format of caches, of which there are none."""

    def run(self, tensors: Any) -> Called:
        """Call the target on tensors; raises what the target raises."""
        arguments = dict(tensors.inputs()) | {name: output.tensor for name, output in tensors.outputs.items()}
        with self.surroundings():
            self.call(**arguments)
        return Called()


def load(name: str, binding: Binding | None) -> StateTarget:
    """Return the target that a specification names; raises :class:`TargetError` where its parameters do not fit."""
    if binding is not None:
        raise TargetError(f"target={name!r} merges states, and has no binding: its parameters are {', '.join(ROLES)}")
    call = launcher(LAUNCHER) if name == NAME else object_named(name)
    if not callable(call):
        raise TargetError(f"target={name!r} must be callable, and is a {type(call).__name__}")
    parameters = inspect.signature(call).parameters
    needed = [each.name for each in parameters.values() if each.default is each.empty]
    if missing := [role for role in ROLES if role not in parameters]:
        raise TargetError(f"target={name!r} lacks the parameters {', '.join(missing)}")
    if more := [each for each in needed if each not in ROLES]:
        raise TargetError(f"target={name!r} needs parameters that no merge has: {', '.join(more)}")
    return StateTarget(name, call)
