"""Write target: a callable that writes new keys and values to a paged cache, called by the names of its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, get_args

from fuzz_attn.binding.binding import Binding
from fuzz_attn.binding.matching import Match
from fuzz_attn.errors import TargetError
from fuzz_attn.operations.cache_write.write_case import (
    NAME,
    NEEDED,
    OWN_SCALES,
    ROLES,
    SCALE_CACHES,
    SCALES,
    StoredType,
    WriteDomain,
)
from fuzz_attn.targets.built_in import launcher
from fuzz_attn.targets.loading import object_named
from fuzz_attn.targets.target import Called, Target

LAUNCHER: Final = "cache_write:cache_write"


@dataclass(frozen=True)
class WriteTarget(Target):
    """A callable with parameters of ``ROLES``, whose names are ``roles``."""

    domain: Any = field(default_factory=WriteDomain)
    roles: tuple[str, ...] = NEEDED

    @cached_property
    def match(self) -> Match:
        """Why each parameter has its role."""
        return Match(Binding(), dict.fromkeys(self.roles, "its name"), published=True)

    @property
    def stored_as(self) -> None:
        """The format in which attention's caches are made; these caches are made for their case."""

    def run(self, tensors: Any) -> Called:
        """Call the target on tensors; raises what the target raises."""
        given = dict(tensors.inputs()) | {name: output.tensor for name, output in tensors.outputs.items()}
        told = {"kv_cache_dtype": tensors.kv_cache_dtype, "kv_quant_mode": tensors.kv_quant_mode}
        given = dict.fromkeys(SCALE_CACHES) | given | told
        with self.surroundings():
            self.call(**{name: given[name] for name in self.roles})
        return Called()


def load(name: str, binding: Binding | None) -> WriteTarget:
    """Return the target that a specification names; raises :class:`TargetError` where its parameters do not fit.

    One without parameters for scales is not given the caches that need them.
    """
    if binding is not None:
        raise TargetError(f"target={name!r} writes a cache, and has no binding: its parameters are {', '.join(ROLES)}")
    call = launcher(LAUNCHER) if name == NAME else object_named(name)
    if not callable(call):
        raise TargetError(f"target={name!r} must be callable, and is a {type(call).__name__}")
    parameters = inspect.signature(call).parameters
    needed = [each.name for each in parameters.values() if each.default is each.empty]
    if missing := [role for role in NEEDED if role not in parameters]:
        raise TargetError(f"target={name!r} lacks the parameters {', '.join(missing)}")
    if more := [each for each in needed if each not in ROLES]:
        raise TargetError(f"target={name!r} needs parameters that no cache write has: {', '.join(more)}")
    roles = tuple(role for role in ROLES if role in parameters)
    domain = WriteDomain(stored_as=tuple(each for each in get_args(StoredType) if _fits(each, roles, needed)))
    return WriteTarget(name, call, domain=domain, roles=roles)


def _fits(stored_as: StoredType, roles: Collection[str], needed: Collection[str]) -> bool:
    """Return whether a target with parameters for these roles, some of them ``needed``, writes caches of a type."""
    if stored_as.endswith(OWN_SCALES):
        return all(scale in roles for scale in SCALE_CACHES)
    if any(scale in needed for scale in SCALE_CACHES):
        return False
    return not stored_as.startswith("float8") or all(scale in roles for scale in SCALES)
