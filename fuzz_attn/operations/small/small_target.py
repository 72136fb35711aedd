"""Small target: a callable that is called by the names of its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from fuzz_attn.binding.binding import Binding
from fuzz_attn.binding.matching import Match
from fuzz_attn.errors import TargetError
from fuzz_attn.targets.built_in import launcher
from fuzz_attn.targets.loading import object_named
from fuzz_attn.targets.target import Called, Target


@dataclass(frozen=True)
class SmallTarget(Target):
    """A callable with the parameters ``roles``."""

    domain: Any = None
    roles: tuple[str, ...] = ()

    @cached_property
    def match(self) -> Match:
        """Why each parameter has its role."""
        return Match(Binding(), dict.fromkeys(self.roles, "its name"), published=True)

    @property
    def stored_as(self) -> None:
        """The format in which attention's caches are made; other tensors are made for their case."""

    def arguments(self, tensors: Any) -> dict[str, Any]:
        """Return the arguments by name, of which the target gets those that it has a parameter for."""
        return dict(tensors.inputs()) | {name: output.tensor for name, output in tensors.outputs.items()}

    def run(self, tensors: Any) -> Called:
        """Call the target on tensors; raises what the target raises."""
        given = self.arguments(tensors)
        with self.surroundings():
            self.call(**{name: given[name] for name in self.roles})
        return Called()


class Signature(NamedTuple):
    """A callable, the roles that are among its parameters, and those parameters that it needs."""

    call: Callable[..., object]
    roles: tuple[str, ...]
    needed: tuple[str, ...]


def signature_of(name: str, binding: Binding | None, own: tuple[str, str], roles: Collection[str],
                 required: Collection[str], what: str) -> Signature:  # fmt: skip
    """Return the callable that a specification names, or this project's ``own`` one by its name and its launcher.

    Raises :class:`TargetError` where its parameters are not the ``roles`` of an operation (``what`` in words), lack
    ``required`` ones, or where a binding is given.
    """
    if binding is not None:
        raise TargetError(f"target={name!r} is {what}, and has no binding: its parameters are {', '.join(roles)}")
    call = launcher(own[1]) if name == own[0] else object_named(name)
    if not callable(call):
        raise TargetError(f"target={name!r} must be callable, and is a {type(call).__name__}")
    parameters = inspect.signature(call).parameters
    needed = tuple(each.name for each in parameters.values() if each.default is each.empty)
    if missing := [role for role in required if role not in parameters]:
        raise TargetError(f"target={name!r} lacks the parameters {', '.join(missing)}")
    if more := [each for each in needed if each not in roles]:
        raise TargetError(f"target={name!r} needs parameters that {what} does not have: {', '.join(more)}")
    return Signature(call, tuple(role for role in roles if role in parameters), needed)
